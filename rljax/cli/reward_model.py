"""`rljax reward-model`: train a reward model on preference pairs."""

from dataclasses import dataclass

import tyro

from rljax.cli.import_spinner import loading
from rljax.preference.config import RewardModelConfig


@dataclass(frozen=True)
class RewardModel:
    """Train a reward model on preference pairs (Bradley-Terry) or, with --process, on labeled steps.

    Each row of the dataset has a prompt, a chosen response and a rejected response, as text or as chat messages. Without a prompt
    column, the prompt is the common prefix of both responses. The command writes a Hugging Face sequence-classification
    folder, which `rljax train` accepts as `--reward model:FOLDER` or `--critic FOLDER`.

    With --process, each row has a prompt, the steps of a solution and a label per step, as in TRL's stepwise format. The trained
    model then scores steps. Use it as `--step-reward model:FOLDER` with `--algorithm grpo_process`, as `--reward model:FOLDER` (the
    score of the worst step), or as `--value model:FOLDER` with `rljax search`.
    """

    config: tyro.conf.OmitArgPrefixes[RewardModelConfig]
    """Settings for training a reward model on preference pairs."""
    resume: str | None = None
    """Folder of an interrupted run to continue; omit --dataset. The run's settings, optimizer state and data order are restored."""


def run_reward_model(command: RewardModel) -> int:
    """Train the reward model, and write its folder."""
    with loading(quiet=command.config.quiet):
        from rljax.programs.reward_model_training import train_reward_model  # noqa: PLC0415  --help need not wait for JAX

    train_reward_model(command.config, resume=command.resume)
    return 0
