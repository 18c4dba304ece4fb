"""Short help of `rljax train`, `sft` and `pretrain`: one screen each, with the settings that most runs change."""

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
            ("algorithm_options", "the algorithm's own hyperparameters"),
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
"""Twenty settings by group, each described in a few words that fit on a terminal line."""

USAGE = """usage: rljax train [FLAGS]

Train a language model with reinforcement learning. Without flags, a small,
randomly initialized transformer learns arithmetic
(experiments/arithmetic_dapo.py).

  rljax train --smoke                                a test run of a minute
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
            ("demonstration_column", "unset: messages, or prompt + completion"),
            ("chat", "apply the model's chat template"),
            ("max_prompt_tokens", "longer prompts are left out"),
            ("max_response_tokens", "longer demonstrations are left out"),
            ("reward", "scores greedy answers to held-out rows"),
        ),
    ),
    (
        "learning",
        (
            ("epochs", "passes over the rows; 1 by default"),
            ("warm_start_steps", "updates, instead of epochs"),
            ("warm_start_batch", "demonstrations per update"),
            ("warm_start_learning_rate", "peak; cosine decay to a tenth of it"),
            ("learning_rate_warmup", "warm-up updates"),
            ("lora_rank", "train a LoRA adapter of this rank"),
            ("dtype", "float32 or bfloat16"),
        ),
    ),
    (
        "the run",
        (
            ("run", "folder; by default runs/NAME-DATE-TIME"),
            ("seed", "random seed of the run"),
            ("warm_start_eval_every", "updates between held-out evaluations"),
            ("checkpoint_every", "updates between checkpoints"),
            ("resume", "continue the run in this folder"),
            ("quiet", "print only a few plain lines"),
        ),
    ),
)
"""The settings in the short help of `rljax sft`."""

SFT_USAGE = """usage: rljax sft [FLAGS]

Fine-tune a language model on demonstrations (supervised fine-tuning, SFT).
Only the assistant's tokens are trained on. Perplexity is measured on
held-out rows.

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
            ("max_response_tokens", "tokens to predict per block"),
            ("heldout_problems", "at most this many held-out blocks"),
        ),
    ),
    (
        "learning",
        (
            ("warm_start_steps", "updates"),
            ("warm_start_batch", "blocks per update"),
            ("warm_start_learning_rate", "peak; cosine decay to a tenth of it"),
            ("dtype", "float32 or bfloat16"),
        ),
    ),
    SFT_SHOWN[-1],
)
"""The settings in the short help of `rljax pretrain`."""

PRETRAIN_USAGE = """usage: rljax pretrain FILES [FLAGS]

Train a language model to predict the next token of plain text.
The last tenth of each file is held out to measure perplexity.

  rljax pretrain book.txt --steps 500
  rljax pretrain texts/*.txt --model FOLDER --learning-rate 1e-4
  rljax pretrain --resume RUN                        continue a run
"""


def pretrain_help(config: TrainConfig, full_flags: Mapping[str, str]) -> str:
    """Return one screen of help for `rljax pretrain`; see `_supervised_help`."""
    return _supervised_help(config, full_flags, PRETRAIN_USAGE, PRETRAIN_SHOWN)


def sft_help(config: TrainConfig, full_flags: Mapping[str, str]) -> str:
    """Return one screen of help for `rljax sft`; see `_supervised_help`."""
    return _supervised_help(config, full_flags, SFT_USAGE, SFT_SHOWN)


def _supervised_help(
    config: TrainConfig,
    full_flags: Mapping[str, str],
    usage: str,
    shown: Sequence[tuple[str, Sequence[tuple[str, str]]]],
) -> str:
    """Return one screen of help for a command of supervised training.

    Args:
        config: the settings to which the flags apply.
        full_flags: short flag -> the flag of `rljax train` that it abbreviates.
        usage: the lines above the settings.
        shown: settings to list by group, each with a description.
    """
    short = {full.removeprefix("--").replace("-", "_"): flag[2:].replace("-", "_") for flag, full in full_flags.items()}
    flat = {"epochs": None, "resume": None} | config.to_flat()
    flat |= {"learning_rate_warmup": 10} | ({"warm_start_steps": None} if "--epochs" in usage else {})
    last = "\nThe other flags of `rljax train --help-all` (devices, checkpoints, columns,\n--freeze, --remat, ...) work here too."
    return "\n".join([usage, *_setting_lines(shown, flat, short), last])


def short_help(config: TrainConfig) -> str:
    """Return one screen of help for `rljax train`: twenty settings with the values that the command would use.

    Args:
        config: the settings to which the flags apply.
    """
    last = "\n`rljax train --help-all` lists every setting by group;\n`rljax config` prints the values in use."
    return "\n".join([USAGE, *_setting_lines(SHOWN, config.to_flat(), {}), last])


def _setting_lines(
    shown: Sequence[tuple[str, Sequence[tuple[str, str]]]], flat: Mapping[str, Any], short_names: Mapping[str, str]
) -> Iterator[str]:
    """Yield lines with the flag, value and description of each setting; `short_names` maps settings to their shorter names."""
    for title, settings in shown:
        yield title
        for name, text in settings:
            flag = f"--{short_names.get(name, name).replace('_', '-')} {_typed(flat[name])}".rstrip()
            yield f"  {flag:<38} {text}" if len(flag) <= 38 else f"  {flag}\n{'':<41}{text}"


def _typed(value: Any) -> str:
    """Format a value as a user would type it after its flag; return "" for None and for a switch."""
    if value is None or isinstance(value, bool):
        return ""
    if isinstance(value, dict):
        return " ".join(f"{name}={number:g}" for name, number in value.items())
    return f"{value:g}" if isinstance(value, float) else str(value)
