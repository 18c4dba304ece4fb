"""`rljax adapt`: learn from feedback on the responses of a served model."""

import sys
from dataclasses import dataclass

import tyro

from rljax.cli.import_spinner import loading
from rljax.cli.restarting import note
from rljax.programs.adaptation_config import AdaptationConfig


@dataclass(frozen=True)
class Adapt:
    """Adapt a run's model to feedback that users write into a queue, one batch of lines at a time.

    A line is a JSON object with "prompt" (text or chat), "response" (text or token ids), and "reward" (a number) or "thumbs" (true
    or false). Optional keys: "id" keeps a line from being learned twice, "logp" is the log-probability of each token under the
    model that sampled it, and "finished" is false for a response that was cut off. Each reward is compared with the mean of the
    other rewards, the probability ratio to the model that sampled the response is clipped, and the policy is kept close to the
    served model. After each batch a checkpoint is saved with the position in the queue, and the same command continues from there.
    Invalid lines are reported and copied to rejects.jsonl.
    """

    config: tyro.conf.OmitArgPrefixes[AdaptationConfig]


def run_adapt(command: Adapt) -> int:
    """Learn from the queue until it is exhausted (with --once) or a signal arrives."""
    with loading(quiet=False):
        from rljax.programs.adaptation_run import adapt  # noqa: PLC0415  --help need not wait for JAX

    adapt(command.config, lambda line: note(line, sys.stdout))
    return 0
