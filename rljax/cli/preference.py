"""`rljax preference`: train a language model on preference pairs."""

from dataclasses import dataclass

import tyro

from rljax.cli.import_spinner import loading
from rljax.preference.config import PreferenceConfig


@dataclass(frozen=True)
class Preference:
    """Train a language model on preference pairs directly, without a reward model (DPO, IPO, KTO, SimPO, ORPO).

    A row of the dataset has a prompt, a chosen and a rejected response, as text or as chat messages. Without a prompt column, the
    common beginning of the two responses is the prompt. The reference of DPO, IPO and KTO is the model before training; its
    log-probabilities are computed once. The command writes a Hugging Face folder, which `rljax sample FOLDER`, `rljax eval FOLDER`
    and `rljax train --model FOLDER` open.
    """

    config: tyro.conf.OmitArgPrefixes[PreferenceConfig]
    resume: str | None = None
    """Folder of an interrupted run to continue, instead of a dataset; its settings, optimizer state and data order are restored."""


def run_preference(command: Preference) -> int:
    """Train the model, and write its folder."""
    with loading(quiet=command.config.quiet):
        from rljax.programs.preference import train_preference  # noqa: PLC0415  --help need not wait for JAX

    train_preference(command.config, resume=command.resume)
    return 0
