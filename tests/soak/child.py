"""One tiny run that the soak starts, stops and starts again: `python tests/soak/child.py FAMILY FOLDER`."""

import sys

from small_runs import SMALL, even_length
from soak.families import FAMILIES

import rljax
from rljax.errors import InputError
from rljax.training.config import TrainConfig
from rljax.training.interrupt import Interrupted

TINY = SMALL.replace(
    name="soak",
    train_problems=40,
    heldout_problems=6,
    warm_start_steps=4,
    warm_start_batch=8,
    warm_start_accuracy=1.0,
    warm_start_eval_every=2,
    steps=12,
    prompts=4,
    group_size=4,
    minibatches=2,
    microbatch_rows=4,
    learning_rate=1e-2,
    eval_every=3,
    checkpoint_every=2,
    sample_every=2,
)


def config_of(family: str, folder: str) -> TrainConfig:
    """Settings of a run of a family."""
    return TINY.replace(run=folder, **FAMILIES[family])


def main() -> int:
    """Begin the run, or go on with it."""
    try:
        rljax.train(config_of(*sys.argv[1:]), even_length, resume="auto")
    except Interrupted:
        return 130
    except InputError as error:
        print(f"rljax: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
