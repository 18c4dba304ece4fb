"""`rljax pairs`: write preference pairs of a policy's own responses."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from rljax.programs.answer_settings import PairSettings
from rljax.text import counted


@dataclass(frozen=True)
class Pairs(PairSettings):
    """Sample a policy's responses, judge them, and write pairs, each of a right and a wrong response.

    A reward model trained on these pairs learns from what the policy does now, including responses that an older reward model
    overrated: run `rljax pairs RUN new.jsonl --reward exact`, then `rljax reward-model new.jsonl` and
    then `rljax train --model RUN/last --reward model:FOLDER`. `rljax preference` also reads the pairs.
    """

    target: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN_OR_MODEL")]
    """Folder of a run or of its checkpoint (RUN/checkpoints/last), Hugging Face folder, or hub id."""
    out: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="FILE")]
    """JSONL file to write; it must not exist yet, but its folder must."""


def run_pairs(command: Pairs) -> int:
    """Write the pairs, and print a summary."""
    from rljax.programs.labeled_pairs import label_responses  # noqa: PLC0415  --help need not wait for JAX

    counts = label_responses(command.target, command.out, command)
    print(f"Responses that are right: {counts.right:.1%}.")
    if counts.unjudged:
        print(f"Responses without a verdict, which are in no pair: {counts.unjudged}.")
    if counts.dropped:
        print(f"Left out {counted(counts.dropped, 'problem')} with a prompt that is too long.")
    if counts.from_demonstrations:
        print(
            f"Prompts without a right response, paired with the demonstration as the chosen response: {counts.from_demonstrations}."
        )
    if counts.without_pair:
        print(f"Prompts without a pair: {counts.without_pair}.")
    print(f"Pairs: {counts.pairs} in {command.out}")
    return 0
