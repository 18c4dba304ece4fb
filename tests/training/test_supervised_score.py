"""A policy that scores demonstrations and responses differently: a mixture of a network and rules."""

import jax
import numpy as np
import pytest
from run_states import first_state
from scripted_policy import TOKENIZER, places, probability, scripted_policy, table
from small_runs import SMALL, even_length

import rljax
from rljax.data.problem import Problem
from rljax.errors import InputError
from rljax.models import Scores
from rljax.models.calculator_rules import calculator_of
from rljax.models.mixed_policy import mixed_policy
from rljax.rollout import pack_one_per_row, sequences_of_demonstrations
from rljax.tracking.rows import read_metrics
from rljax.training.scoring import check_score, make_score, make_supervised_score

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


def test_supervised_losses_ignore_the_rules(tmp_path):
    """The warm-start and auxiliary losses equal those of a run without rules."""
    runs = {}
    for calculator in (None, 0.9):
        result = rljax.train(TINY.replace(run=str(tmp_path / str(calculator)), calculator=calculator), even_length)
        runs[calculator] = read_metrics(result.run / "metrics.jsonl")
    found = {
        calculator: [row["loss"] for row in rows if row["phase"] == "warm_start"]
        + [row["auxiliary_loss"] for row in rows if row["phase"] == "rl"]
        for calculator, rows in runs.items()
    }
    assert len(found[None]) == 4
    row = next(row for row in runs[None] if row["phase"] == "warm_start")
    metric_names = {"loss", "entropy", "grad_norm", "skipped_updates", "learning_rate", "seconds"}
    assert set(row) == {"phase", "step"} | metric_names
    np.testing.assert_allclose(found[0.9], found[None], rtol=1e-6)


@pytest.mark.parametrize("freeze", [(), ("embedding",)])
def test_only_the_score_of_responses_contains_the_rules(freeze):
    """The rules raise the probability of the sums in the demonstrations; frozen parameters get no gradient."""
    setup, state = first_state(TINY.replace(calculator=0.9, freeze=freeze))
    network, _ = first_state(TINY)
    sequences = jax.tree.map(lambda array: array[:8], sequences_of_demonstrations(setup.demonstrations))
    packed = pack_one_per_row(sequences)
    mixture_score, network_score = make_score(setup.policy, 1.0), make_supervised_score(setup.policy, 1.0)
    expected = make_score(network.policy, 1.0)(state.params, packed).logp
    np.testing.assert_allclose(network_score(state.params, packed).logp, expected, atol=1e-6)
    assert (np.asarray(mixture_score(state.params, packed).logp - expected)[sequences.attention] > 1).any()
    assert make_supervised_score(network.policy, 1.0) is make_score(network.policy, 1.0)
    score_gradient = jax.grad(lambda params: network_score(params, packed).logp.sum())(state.params)
    assert bool(np.abs(score_gradient["embedding"]).max() > 0) == (not freeze)


@pytest.mark.parametrize("digit", ["3", "5"], ids=["the rules' digit", "another digit"])
def test_rl_trains_the_network_through_the_mixture(tmp_path, prepared, digit):
    """In `1+2=?`, the rules give the result, 3, half of the probability; the network spreads its half over four digits."""
    script, rules = "1+2=?", calculator_of(TOKENIZER.encode, TOKENIZER.vocab_size)
    (place,), start = places(script), table(script, {})
    problems = [Problem(f"{number}+2=", digit) for number in range(8)]
    settings = {
        "tokenizer": "bytes",
        "warm_start_steps": 0,
        "auxiliary": 0.0,
        "learning_rate": 0.5,
        "learning_rate_warmup": 0,
    }
    result = rljax.train(
        TINY.replace(**settings, group_size=16, run=str(tmp_path / "run")),
        lambda completions, answer: [float(text.endswith(right)) for text, right in zip(completions, answer, strict=True)],
        policy=mixed_policy(scripted_policy(start), rules, share=0.5),
        problems=(problems[:4], problems[4:]),
    )
    rollout = prepared[0][0]
    sampling_probability = np.exp(rollout.behaviour_logp[..., len(script) - 1])
    expected = 0.5 * probability(start, place, digit) + 0.5 * (digit == "3")
    np.testing.assert_allclose(sampling_probability[rollout.rewards > 0], expected, rtol=1e-4)
    assert probability(result.params, place, digit) > probability(start, place, digit) + 0.05


def test_a_supervised_score_of_the_wrong_shape_is_refused():
    setup, state = first_state(TINY.replace(warm_start_steps=0))
    wrong_policy = setup.policy._replace(
        supervised_score=lambda params, packed, temperature: Scores(packed.tokens, packed.tokens)
    )
    with pytest.raises(InputError, match=r"^policy.supervised_score: .* of the batch's shape \[B, T\] = \[2, 5\]"):
        check_score(wrong_policy, state.params, rows=2, prompt_length=3, response_length=5)
