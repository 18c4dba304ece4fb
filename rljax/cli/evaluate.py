"""`rljax eval`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from rljax.errors import InputError


@dataclass(frozen=True)
class Eval:
    """Answer problems greedily and say how many answers are right, with a 95 % confidence interval."""

    target: tyro.conf.Positional[str]
    """Folder of a run, Hugging Face folder, or hub id."""
    dataset: str | None = None
    """Problems to answer (file or hub id); by default the run's held-out ones."""
    reward: str | None = None
    """What judges, in place of the run's reward."""
    tokenizer: str | None = None
    """For a model folder without one: 'bytes', 'characters', a folder or a hub id."""
    checkpoint: Literal["best", "last"] = "best"
    """Which checkpoint of the run."""
    limit: int | None = None
    """Answer only the first so many problems."""
    max_response_tokens: int | None = None
    """Budget of a response; by default the run's."""
    out: Path | None = None
    """Write prompts, completions, answers and rewards here, one JSON object a line."""


def run_eval(command: Eval) -> int:
    """Print accuracy with its interval; write the answers if asked."""
    from rljax.data.dataset import load_problems  # noqa: PLC0415
    from rljax.training.evaluation import evaluate, write_answers  # noqa: PLC0415
    from rljax.training.policy import open_policy  # noqa: PLC0415

    if command.limit is not None and command.limit < 1:
        raise InputError(f"--limit is {command.limit}; it must be at least 1.")
    if command.out is not None and command.out.exists():
        raise InputError(f"{str(command.out)!r} exists already; choose another file for --out.")
    setup, params = open_policy(
        command.target,
        which=command.checkpoint,
        reward=command.reward,
        tokenizer=command.tokenizer,
        problems=load_problems(command.dataset)[: command.limit] if command.dataset else None,
        max_response_tokens=command.max_response_tokens,
    )
    engine = setup.heldout if command.dataset or command.limit is None else setup.heldout.first(command.limit)
    evaluation = evaluate(engine, params)
    print(evaluation.summary())
    if command.out is not None:
        write_answers(command.out, engine.shown(evaluation.groups, evaluation.groups.count))
        print(f"Answers: {command.out}")
    return 0
