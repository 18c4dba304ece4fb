"""Which settings may change on resume, tested without training."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from rljax.errors import InputError
from rljax.training.config import TrainConfig
from rljax.training.lifecycle.resume import CHANGEABLE_ON_RESUME, changes_between, check_changes, check_steps
from rljax.training.objective.algorithm import make_algorithm


def test_settings_that_may_change_exist_and_others_are_refused_by_name():
    config = TrainConfig()
    assert set(CHANGEABLE_ON_RESUME) <= set(config.to_flat())
    check_changes(
        changes_between(config, config.replace(steps=7, quiet=True, wandb=True, eval_every=3, replicas=2, fsdp=2, tensor=2))
    )
    with pytest.raises(
        InputError, match=r"cannot change prompts: 32 -> 16, seed: 0 -> 1; its results .*: steps, eval_every"
    ):
        check_changes(changes_between(config, config.replace(steps=7, seed=1, prompts=16)))


def test_documentation_lists_the_settings_that_may_change():
    page = (Path(__file__).parents[2] / "notebooks/resuming.md").read_text(encoding="utf-8")
    listed = page.partition("do not depend on:")[2].partition("With a different mesh")[0]
    assert re.findall(r"`--([a-z-]+)`", listed) == [name.replace("_", "-") for name in CHANGEABLE_ON_RESUME]


def test_an_unset_task_is_not_a_change():
    assert changes_between(TrainConfig(), TrainConfig.flat(task="sums")) == ()
    assert [change.name for change in changes_between(TrainConfig(), TrainConfig.flat(operands=(2, 3)))] == ["operands"]
    assert changes_between(TrainConfig.flat(run="runs/a"), TrainConfig()) == ()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"difficulty_window": (0.1, 0.9), "difficulty_window_end": (0.0, 0.5)}, "difficulty_window_end"),
        ({"algorithm": "ppo", "learning_rate_warmup": 20}, "the warm-up of the critic's learning rate"),
        ({"algorithm": "ppo", "learning_rate_warmup": 20, "minibatches": 4}, None),
        ({"algorithm": "dapo", "learning_rate_warmup": 20}, None),
        ({}, None),
    ],
)
@pytest.mark.usefixtures("without_type_checks")
def test_the_steps_of_a_schedule_cannot_change_once_it_has_begun(settings, message):
    config = TrainConfig.flat(**settings)
    setup = SimpleNamespace(config=config, algorithm=make_algorithm(config))
    changes = changes_between(config, config.replace(steps=200))
    check_steps(changes, setup, SimpleNamespace(step=0))
    if message is None:
        check_steps(changes, setup, SimpleNamespace(step=3))
    else:
        with pytest.raises(InputError, match=message):
            check_steps(changes, setup, SimpleNamespace(step=3))
