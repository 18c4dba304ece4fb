"""Tests of custom options: ideas that a user adds to a run without changing the library."""

import json

import jax.numpy as jnp
import pytest
from run_states import first_state, read_checkpoint
from small_runs import STEPPED, even_length, stopping_after

import rljax
from rljax.errors import InputError
from rljax.options import INSTALLERS
from rljax.training.interrupt import Interrupted
from rljax.training.parts.custom_parts import CustomParts
from rljax.training.setup import make_setup
from rljax.training.state import Option

CONFIG = STEPPED.replace(steps=3, checkpoint_every=1)


def count_tokens(setup):
    """Keep the number of tokens trained on so far in the checkpoint, and log it."""

    def measure(rollout, batch):
        return {"longest_response": float(rollout.mask.sum(-1).max()), "trained_now": float(batch.mask.sum())}

    def after_updates(state, metrics, updates):
        total = state.options["tokens"] + 1
        return state._replace(options=state.options | {"tokens": total}), {"steps_counted": float(total)}

    return setup.with_option(
        Option("tokens", init=lambda params: jnp.float32(0), measure=measure, after_updates=after_updates)
    )


def rl_rows(run):
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if row["phase"] == "rl"]


def test_an_option_adds_metrics_and_a_state_that_a_resumed_run_keeps(tmp_path):
    config = CONFIG.replace(run=str(tmp_path / "run"))
    with pytest.raises(Interrupted):
        rljax.train(config, stopping_after(3), options=[count_tokens])
    with pytest.raises(InputError, match=r"The run was started with options passed to train\(\); pass the same arguments"):
        rljax.train(resume=tmp_path / "run", reward=even_length)
    run = rljax.train(resume=tmp_path / "run", reward=even_length, options=[count_tokens]).run
    assert [row["steps_counted"] for row in rl_rows(run)] == [1.0, 2.0, 3.0]
    assert all(1 <= row["longest_response"] <= 12 and row["trained_now"] >= row["longest_response"] for row in rl_rows(run))
    state = read_checkpoint(config, run, reward=even_length, options=[count_tokens]).state
    assert state.options["tokens"] == 3


def test_an_option_runs_after_the_built_in_ones(tmp_path):
    names = []

    def note(setup):
        names.append([option.name for option in setup.options])
        return setup

    first_state(CONFIG.replace(kl_limit=0.1, passes=2), reward=even_length, options=[note])
    assert len(names) == 2, "once to count memory, and once with data"
    assert all("kl_limit" in found for found in names)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([count_tokens, count_tokens], r"The options 'tokens' and 'tokens' have the same name; leave one of them out\."),
        (
            [lambda setup, name=name: setup.with_option(Option(name, step=print)) for name in "ab"],
            r"The options 'a' and 'b' both replace the step; leave one of them out\.",
        ),
        (["tokens"], r"options: expected functions of the setup"),
    ],
)
@pytest.mark.usefixtures("without_type_checks")
def test_options_that_exclude_each_other_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        make_setup(CONFIG, CustomParts(reward=even_length, options=options), INSTALLERS)
