"""`rljax preference`: train a language model on preference pairs."""

from dataclasses import dataclass

import tyro

from rljax.cli.import_spinner import loading
from rljax.preference.config import PreferenceConfig


@dataclass(frozen=True)
class Preference:
    """Train a language model on preference pairs directly, without a reward model (DPO, IPO, KTO, SimPO, ORPO).

    A row of the dataset has a prompt, a chosen response and a rejected response, as text or as chat messages. Without a prompt
    column, the common prefix of the two responses is the prompt. DPO, IPO and KTO use the model before training as their reference
    model; its log-probabilities are computed once. The command writes a Hugging Face folder, which can be passed to the
    commands `rljax sample`, `rljax eval` and `rljax train --model`.
    """

    config: tyro.conf.OmitArgPrefixes[PreferenceConfig]
    resume: str | None = None
    """Folder of an interrupted run to continue; omit --dataset. The run's settings, optimizer state and data order are
    restored."""


def run_preference(command: Preference) -> int:
    """Train the model, and write its folder."""
    with loading(quiet=command.config.quiet):
        from rljax.programs.preference import train_preference  # noqa: PLC0415  --help need not wait for JAX

    train_preference(command.config, resume=command.resume)
    return 0
