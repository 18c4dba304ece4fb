"""Help of `rljax train`, `sft` and `pretrain`: one screen each, with the settings that most runs change."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rljax.training.config import TrainConfig

SHOWN: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = (
    (
        "what to train",
        (
            ("model", "Hugging Face folder or hub id"),
            ("dataset", "JSONL, JSON, Parquet, folder or hub id"),
            ("reward", "a name, or your file.py:function"),
            ("algorithm", "`rljax algorithms` lists them"),
            ("algorithm_options", "hyper-parameters of the paper"),
            ("chat", "apply the model's chat template"),
        ),
    ),
    (
        "sizes",
        (
            ("steps", "RL steps; one step is one rollout"),
            ("prompts", "prompts per rollout"),
            ("group_size", "responses per prompt"),
            ("max_prompt_tokens", "longer prompts are left out"),
            ("max_response_tokens", "EOS included"),
            ("temperature", "sampling temperature"),
        ),
    ),
    (
        "learning",
        (
            ("learning_rate", "peak learning rate of the policy"),
            ("minibatches", "per rollout; each makes one update"),
            ("warm_start_steps", "supervised updates on demonstrations"),
            ("dtype", "float32 or bfloat16"),
        ),
    ),
    (
        "the run",
        (
            ("run", "folder; by default runs/NAME-DATE-TIME"),
            ("seed", "random seed of the run"),
            ("eval_every", "RL steps between evaluations"),
            ("quiet", "print only a few plain lines"),
        ),
    ),
)
"""Twenty settings, each described in a few words that fit one terminal line."""

USAGE = """usage: rljax train [FLAGS]

Train a language model with reinforcement learning. Without flags, a small
transformer learns arithmetic from random weights
(experiments/arithmetic_dapo.py).

  rljax train --smoke                                a test of about a minute
  rljax train --model FOLDER --dataset FILE.jsonl --reward file.py:function
  rljax train --config FILE                          settings; flags override
  rljax train --resume RUN --steps 300               continue, or extend, a run
"""


SFT_SHOWN: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = (
    (
        "what to train",
        (
            ("model", "Hugging Face folder or hub id"),
            ("dataset", "JSONL, JSON, Parquet, folder or hub id"),
            ("heldout_dataset", "by default a part of the dataset"),
            ("demonstration_column", "or messages, prompt + completion"),
            ("chat", "apply the model's chat template"),
            ("max_prompt_tokens", "longer prompts are left out"),
            ("max_response_tokens", "longer demonstrations are left out"),
            ("reward", "judge greedy held-out answers as well"),
        ),
    ),
    (
        "learning",
        (
            ("epochs", "passes over the rows; 1 by default"),
            ("warm_start_steps", "updates, instead of epochs"),
            ("warm_start_batch", "demonstrations per update"),
            ("warm_start_learning_rate", "peak; then a cosine to a tenth"),
            ("learning_rate_warmup", "updates, at most a tenth of all"),
            ("lora_rank", "train an adapter"),
            ("dtype", "float32 or bfloat16"),
        ),
    ),
    (
        "the run",
        (
            ("run", "folder; by default runs/NAME-DATE-TIME"),
            ("seed", "random seed of the run"),
            ("warm_start_eval_every", "updates between held-out measurements"),
            ("checkpoint_every", "updates between checkpoints"),
            ("resume", "continue the run in this folder"),
            ("quiet", "print only a few plain lines"),
        ),
    ),
)
"""The same for supervised fine-tuning."""

SFT_USAGE = """usage: rljax sft [FLAGS]

Fine-tune a language model on demonstrations (supervised fine-tuning, SFT).
Only the assistant's tokens are trained. Held-out rows measure perplexity.

  rljax sft --model FOLDER --dataset FILE.jsonl --chat --epochs 2
  rljax sft --model FOLDER --dataset FILE.jsonl --lora-rank 16
  rljax sft --resume RUN                             continue a run
  rljax train --model RUN/last --reward ...          then RL
"""


PRETRAIN_SHOWN: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = (
    (
        "what to train",
        (
            ("model", "folder or hub id; else a small model"),
            ("layers", "layers of the small model"),
            ("width", "width of its residual stream"),
            ("tokenizer", "bytes, or a folder or hub id"),
            ("max_response_tokens", "tokens that a block predicts"),
            ("heldout_problems", "at most this many held-out blocks"),
        ),
    ),
    (
        "learning",
        (
            ("warm_start_steps", "updates"),
            ("warm_start_batch", "blocks per update"),
            ("warm_start_learning_rate", "peak; then a cosine to a tenth"),
            ("dtype", "float32 or bfloat16"),
        ),
    ),
    SFT_SHOWN[-1],
)
"""The same for pretraining."""

PRETRAIN_USAGE = """usage: rljax pretrain FILES [FLAGS]

Train a language model to predict the next token of plain text.
The last tenth of each file is held out, and measures perplexity.

  rljax pretrain book.txt --steps 500
  rljax pretrain texts/*.txt --model FOLDER --learning-rate 1e-4
  rljax pretrain --resume RUN                        continue a run
"""


def pretrain_help(config: TrainConfig, names: Mapping[str, str]) -> str:
    """One screen for `rljax pretrain`; see `sft_help`."""
    return sft_help(config, names, PRETRAIN_USAGE, PRETRAIN_SHOWN)


def sft_help(
    config: TrainConfig,
    names: Mapping[str, str],
    usage: str = SFT_USAGE,
    shown: Sequence[tuple[str, Sequence[tuple[str, str]]]] = SFT_SHOWN,
) -> str:
    """One screen for `rljax sft`.

    Args:
        config: the settings before the flags.
        names: a short flag -> the flag of `rljax train` that it stands for.
        usage: the first lines.
        shown: settings to list, with their meaning.
    """
    short = {full.removeprefix("--").replace("-", "_"): flag[2:].replace("-", "_") for flag, full in names.items()}
    flat = {"epochs": None, "resume": None} | config.to_flat()
    flat |= {"learning_rate_warmup": 10} | ({"warm_start_steps": None} if "--epochs" in usage else {})
    last = "\nThe other flags of `rljax train --help-all` (devices, checkpoints, columns,\n--freeze, --remat, ...) work here too."
    return "\n".join([usage, *_settings(shown, flat, short), last])


def short_help(config: TrainConfig) -> str:
    """One screen: twenty settings with the values that the command would use.

    Args:
        config: the settings before the flags.
    """
    last = "\n`rljax train --help-all` lists every setting by group;\n`rljax config` prints those in force."
    return "\n".join([USAGE, *_settings(SHOWN, config.to_flat(), {}), last])


def _settings(
    shown: Sequence[tuple[str, Sequence[tuple[str, str]]]], flat: Mapping[str, Any], names: Mapping[str, str]
) -> Iterator[str]:
    """Lines with the flags of some settings, their values and their meaning; `names` maps settings to their shorter flags."""
    for title, settings in shown:
        yield title
        for name, text in settings:
            flag = f"--{names.get(name, name).replace('_', '-')} {_written(flat[name])}".rstrip()
            yield f"  {flag:<38} {text}" if len(flag) <= 38 else f"  {flag}\n{'':<41}{text}"


def _written(value: Any) -> str:
    """The words to type after a flag for a value; empty for None and for a switch."""
    if value is None or isinstance(value, bool):
        return ""
    if isinstance(value, dict):
        return " ".join(f"{name}={number:g}" for name, number in value.items())
    return f"{value:g}" if isinstance(value, float) else str(value)
