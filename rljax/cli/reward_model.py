"""`rljax reward-model`: train a reward model on preference pairs."""

from dataclasses import dataclass

import tyro

from rljax.preference.config import RewardModelConfig

INTERRUPTED = 130


@dataclass(frozen=True)
class RewardModel:
    """Train a reward model on preference pairs (Bradley-Terry).

    A row of the dataset has a prompt, a chosen and a rejected response, as text or as chat messages; without a prompt column the
    beginning that both share is the prompt. What is written is a Hugging Face sequence-classification folder: give it to
    `rljax train` as `--reward model:FOLDER`, or as `--critic FOLDER`.
    """

    config: tyro.conf.OmitArgPrefixes[RewardModelConfig]


def run_reward_model(command: RewardModel) -> int:
    """Train, and write the folder."""
    from rljax.training.interrupt import Interrupted  # noqa: PLC0415  --help need not wait for JAX
    from rljax.training.reward_model import train_reward_model  # noqa: PLC0415

    try:
        train_reward_model(command.config)
    except Interrupted:
        return INTERRUPTED
    return 0
