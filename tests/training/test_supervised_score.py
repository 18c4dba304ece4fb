"""A policy whose demonstrations are scored in another way than its responses: a network with rules mixed into it."""

import jax
import numpy as np
import pytest
from reopened import first_state
from small_runs import SMALL, even_length

import rljax
from rljax.errors import InputError
from rljax.models import Scores
from rljax.rollout import demonstrated, pack
from rljax.tracking.rows import read_metrics
from rljax.training.update import check_policy, make_score, make_supervised_score

TINY = SMALL.replace(
    train_problems=12,
    heldout_problems=4,
    warm_start_steps=3,
    warm_start_batch=8,
    algorithm="gpg",
    auxiliary=0.5,
    steps=1,
    prompts=4,
    group_size=4,
    oversample=1.0,
    minibatches=1,
    eval_every=0,
    sample_every=0,
)


def test_demonstrations_and_examples_train_the_network_alone(tmp_path):
    """The losses of the warm start and the auxiliary one are those of a run without rules."""
    runs = {}
    for share in (None, 0.9):
        result = rljax.train(TINY.replace(run=str(tmp_path / str(share)), calculator=share), even_length)
        runs[share] = read_metrics(result.run / "metrics.jsonl")
    found = {
        share: [row["loss"] for row in rows if row["phase"] == "warm_start"]
        + [row["auxiliary_loss"] for row in rows if row["phase"] == "rl"]
        for share, rows in runs.items()
    }
    assert len(found[None]) == 4
    row = next(row for row in runs[None] if row["phase"] == "warm_start")
    numbers = {"loss", "entropy", "grad_norm", "skipped_updates", "learning_rate", "seconds"}
    assert set(row) == {"phase", "step"} | numbers
    np.testing.assert_allclose(found[0.9], found[None], rtol=1e-6)


@pytest.mark.parametrize("freeze", [(), ("embedding",)])
def test_rules_are_in_the_score_of_responses_alone(freeze):
    """The demonstrations hold results of sums, which the rules know; frozen parameters have no gradient in either score."""
    setup, state = first_state(TINY.replace(calculator=0.9, freeze=freeze))
    network, _ = first_state(TINY)
    sequences = jax.tree.map(lambda array: array[:8], demonstrated(setup.demonstrations))
    packed = pack(sequences)
    mixed, alone = make_score(setup.policy, 1.0), make_supervised_score(setup.policy, 1.0)
    expected = make_score(network.policy, 1.0)(state.params, packed).logp
    np.testing.assert_allclose(alone(state.params, packed).logp, expected, atol=1e-6)
    assert (np.asarray(mixed(state.params, packed).logp - expected)[sequences.attention] > 1).any()
    assert make_supervised_score(network.policy, 1.0) is make_score(network.policy, 1.0)
    slope = jax.grad(lambda params: alone(params, packed).logp.sum())(state.params)
    assert bool(np.abs(slope["embedding"]).max() > 0) == (not freeze)


def test_a_wrong_one_is_refused():
    setup, state = first_state(TINY.replace(warm_start_steps=0))
    wrong = setup.policy._replace(supervised_score=lambda params, packed, temperature: Scores(packed.tokens, packed.tokens))
    with pytest.raises(
        InputError, match=r"^policy.supervised_score: .* of the batch's shape \[B, T\] = \[2, 5\] are needed"
    ):
        check_policy(wrong, state.params, rows=2, prompt_length=3, response_length=5)
