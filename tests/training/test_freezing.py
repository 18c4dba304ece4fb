"""Frozen parameters: they keep their values, have no optimizer state and do not count in the gradient norm."""

import jax
import numpy as np
import optax
import pytest
from run_states import first_state, make_rl_state
from small_runs import SMALL, even_length

import rljax
from rljax.errors import InputError
from rljax.models import count_parameters
from rljax.rollout import lay_out_examples, pack_one_per_row, sequences_of_demonstrations
from rljax.training.objective.optimizer import learning_rate_of, warm_start_optimizer
from rljax.training.scoring import make_score
from rljax.training.update import make_supervised_step

TINY = SMALL.replace(
    train_problems=16,
    heldout_problems=4,
    layers=2,
    warm_start_steps=1,
    warm_start_batch=8,
    steps=1,
    prompts=4,
    group_size=4,
    oversample=1.0,
    algorithm="gpg",
    learning_rate=1e-2,
    weight_decay=0.1,
    eval_every=0,
    sample_every=0,
    freeze=("embedding", "layers/0", "*_norm"),
)


def frozen_parts(params):
    norms = {name: params["layers"][1][name] for name in ("attention_norm", "feed_forward_norm")}
    return {"embedding": params["embedding"], "first": params["layers"][0], "norms": norms}


def test_run_changes_only_trained_parameters(tmp_path):
    """Weight decay in the warm start and in RL would move frozen parameters; also checks a resumed run."""
    first = jax.device_get(first_state(TINY, reward=even_length)[1].params)
    result = rljax.train(TINY.replace(run=str(tmp_path / "run"), wandb=False), even_length)
    jax.tree.map(np.testing.assert_array_equal, frozen_parts(jax.device_get(result.params)), frozen_parts(first))
    moved = result.params["layers"][1]["attention"]["query"] - first["layers"][1]["attention"]["query"]
    assert np.abs(moved).max() > 1e-4
    resumed = rljax.train(TINY.replace(run=str(tmp_path / "run"), steps=2), even_length, resume=tmp_path / "run")
    jax.tree.map(np.testing.assert_array_equal, frozen_parts(jax.device_get(resumed.params)), frozen_parts(first))
    with pytest.raises(InputError, match="cannot change freeze"):
        rljax.train(TINY.replace(freeze=("embedding",), steps=2), even_length, resume=tmp_path / "run")


@pytest.mark.parametrize("custom_optimizer", [None, optax.adam(1e-2)])
def test_frozen_parameters_have_no_moments(custom_optimizer):
    setup, state = first_state(TINY, reward=even_length, optimizer=custom_optimizer)
    state = make_rl_state(setup, state)
    trained = count_parameters(state.params) - count_parameters(frozen_parts(state.params))
    assert sum(leaf.size for leaf in jax.tree.leaves(state.opt_state) if leaf.ndim) == 2 * trained
    if custom_optimizer is None:
        assert learning_rate_of(state.opt_state) is not None


def test_the_gradient_norm_counts_only_trained_parameters():
    norms = {}
    for name, freeze in (("all", ()), ("some", TINY.optimization.freeze)):
        setup, state = first_state(TINY.replace(freeze=freeze))
        score = make_score(setup.policy, 1.0)
        step = make_supervised_step(setup, warm_start_optimizer(setup.config), state)
        sequences = jax.tree.map(lambda array: array[:8], sequences_of_demonstrations(setup.demonstrations))
        packed = pack_one_per_row(sequences)

        def total(params, score=score, packed=packed):
            return score(params, packed).logp.sum()

        frozen_gradient = frozen_parts(jax.jit(jax.grad(total))(state.params))
        assert (float(optax.tree.norm(frozen_gradient)) == 0) == (name == "some")
        layout = lay_out_examples(sequences, sequences.attention, rows=8)
        norms[name] = float(step(state, layout, sequences.attention)[1].grad_norm)
    assert 0 < norms["some"] < norms["all"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"freeze": ("embeding",)},
            r"freeze: 'embeding' matches no parameter; the parameters are embedding, layers/\*/attention/key, ",
        ),
        ({"freeze": ("*",)}, r"freeze=\* matches every parameter, so nothing could be learned"),
        ({"freeze": ("embedding",), "lora_rank": 1}, "freeze cannot be used if lora_rank is set"),
    ],
)
def test_invalid_patterns_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        first_state(TINY.replace(**settings), reward=even_length)
