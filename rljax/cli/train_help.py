"""`rljax train --help`: one screen, with the settings that most runs change."""

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
            ("temperature", "of sampling"),
        ),
    ),
    (
        "learning",
        (
            ("learning_rate", "peak, of the policy"),
            ("minibatches", "of a rollout, an update each"),
            ("warm_start_steps", "supervised, on demonstrations"),
            ("dtype", "float32 or bfloat16"),
        ),
    ),
    (
        "the run",
        (
            ("run", "folder; by default runs/NAME-DATE-TIME"),
            ("seed", "of everything"),
            ("eval_every", "RL steps between evaluations"),
            ("quiet", "a few plain lines"),
        ),
    ),
)
"""Twenty settings, each described in a few words that fit one terminal line."""

USAGE = """usage: rljax train [FLAGS]

Train a language model with reinforcement learning. Without flags a small
transformer learns arithmetic from random weights
(experiments/arithmetic_dapo.py).

  rljax train --smoke                                a test of about a minute
  rljax train --model FOLDER --dataset FILE.jsonl --reward file.py:function
  rljax train --config FILE                          settings; flags override
  rljax train --resume RUN --steps 300               continue, or extend, a run
"""


def short_help(config: TrainConfig) -> str:
    """One screen: twenty settings with the values that the command would use.

    Args:
        config: the settings before the flags.
    """
    flat = config.to_flat()
    lines = [USAGE]
    for title, settings in SHOWN:
        lines.append(title)
        for name, text in settings:
            flag = f"--{name.replace('_', '-')} {_written(flat[name])}".rstrip()
            lines.append(f"  {flag:<38} {text}" if len(flag) <= 38 else f"  {flag}\n{'':<41}{text}")
    lines.append("\n`rljax train --help-all` lists every setting by group;\n`rljax config` prints those in force.")
    return "\n".join(lines)


def _written(value: Any) -> str:
    """A value as it is typed after its flag; nothing for an absent one and for a switch."""
    if value is None or isinstance(value, bool):
        return ""
    if isinstance(value, dict):
        return " ".join(f"{name}={number:g}" for name, number in value.items())
    return f"{value:g}" if isinstance(value, float) else str(value)
