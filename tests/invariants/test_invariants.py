"""Every algorithm satisfies every invariant, in value and gradient, for the policy's and the critic's loss."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.algorithms import (
    BY_NAME,
    Algorithm,
    Batch,
    LossMetrics,
    Rollout,
    ValueMetrics,
    loss,
    prepare,
    value_loss,
)
from rljax.algorithms.corrections import BY_NAME as CORRECTIONS
from rljax.algorithms.corrections import off_policy_mask
from rljax.algorithms.terms import importance_weighted_kl
from rljax.ops.weights import overlong_filter

P, G, T = 4, 4, 8
LONGEST = 5  # tokens of the longest response; the other slots leave room for observations between tokens
NARROW = 6  # slots of the same rollout with less padding; every response still fits
PROGRESS = 0.25
EMPTY = (1, 2)  # indices of a response without tokens; its reward still counts in its group

# Options under which every slot of an algorithm has an effect, even on responses this short.
OPTIONS = {
    "a_star_po": {"beta2": 0.2},
    "clip_cov": {"share": 0.4, "lower": -0.1},
    "dapo": {"max_length": 6, "cache": 4},
    "dapo_grpo": {"beta": 0.5},
    "deepseek_v32": {"beta": 0.5, "delta": 0.05},
    "dppo": {"threshold": 0.05, "cap": 1.3},
    "dr_grpo": {"max_length": 6},
    "forking_tokens": {"share": 0.45, "max_length": 6, "cache": 4},
    "gspo": {"clip_low": 0.1, "clip_high": 0.1},
    "gspo_token": {"clip_low": 0.1, "clip_high": 0.1},
    "kl_cov": {"share": 0.3},
    "luspo": {"clip_low": 0.1, "clip_high": 0.1},
    "nash_md": {"mixture": 0.5, "tau": 0.1},
    "pass_at_k": {"k": 2},
    "pkpo": {"k": 3},
    "ppo": {"beta": 0.1, "entropy": 0.01, "dual_clip": 1.5},
    "reinforce_pp": {"beta": 0.1},
    "reinforce_pp_baseline": {"beta": 0.1},
    "rloo": {"beta": 0.1},
    "t1": {"beta": 0.1, "entropy": 0.01},
    "vapo": {"alpha": 0.5},
    "vapo_grpo": {"alpha": 0.5},
    "xpo": {"alpha": 0.3},
}
CASES: dict[str, Algorithm] = {name: factory(**OPTIONS.get(name, {})) for name, factory in BY_NAME.items()}
# Bounds of each correction, at which some tokens are cut.
BOUNDS = {
    "capped": {"high": 1.05},
    "masked": {"low": 0.9, "high": 1.1},
    "two_sided": {"low": 0.9, "high": 1.1},
    "sequence": {"high": 1.05},
    "sequence_masked": {"low": 0.8, "high": 1.2},
    "geometric": {"low": 0.95, "high": 1.05},
}
CORRECTED = {
    f"dapo, filtered and corrected: {name}": CASES["dapo"]._replace(
        filter_tokens=overlong_filter, correction=factory(**BOUNDS[name])
    )
    for name, factory in CORRECTIONS.items()
}
OFF_POLICY = "vc_ppo, masked off-policy"
CASES |= CORRECTED
CASES[OFF_POLICY] = CASES["vc_ppo"]._replace(surrogate_mask=off_policy_mask(0.05), terms=importance_weighted_kl(0.5))

# Algorithms whose statistics are computed over the rollout, not over a mini-batch.
BATCH_GLOBAL = {
    "clip_cov": "the covariances are over the rollout",
    "dapo_grpo": "the bonus is centered over the rollout",
    "forking_tokens": "the entropy threshold is over the rollout",
    "gdpo": "the sum of the rewards is normalized over the rollout",
    "kl_cov": "the covariances are over the rollout",
    "lite_ppo": "the standard deviation is over the rollout",
    "open_reasoner_zero": "advantages are normalized over the rollout",
    "reinforce_pp": "advantages are normalized over the rollout",
    "reinforce_pp_baseline": "advantages are normalized over the rollout",
    "scale_rl": "the standard deviation is over the rollout",
    "t1": "the KL's mean is over the rollout",
}


class Outputs(NamedTuple):
    """Outputs of the networks, `[P, G, T]`."""

    logp: np.ndarray
    entropy: np.ndarray
    values: np.ndarray
    divergence: np.ndarray


class Result(NamedTuple):
    """Both losses and all metrics, and the gradients of the losses with respect to each output, `[P, G, T]`."""

    metrics: tuple[LossMetrics, ValueMetrics | None]
    gradient: Outputs


class Data(NamedTuple):
    """A rollout and the outputs of the networks on it."""

    rollout: Rollout
    outputs: Outputs


def make_data() -> Data:
    rng = np.random.default_rng(7)
    lengths = rng.integers(1, LONGEST + 1, (P, G))
    lengths[EMPTY] = 0
    mask = np.arange(T) < lengths[..., None]

    def sample_normal(*shape):
        return rng.normal(size=shape or (P, G, T)).astype(np.float32)

    rewards = np.array([[1, 0, 0, 1], [1, 1, 1, 0], [0, 0, 0, 0], [1, 0, 1, 1]], np.float32)
    policy_logp = -np.abs(sample_normal()) - 0.1
    rollout = Rollout(
        mask=mask,
        behaviour_logp=policy_logp + 0.1 * sample_normal(),
        rewards=rewards,
        policy_logp=policy_logp,
        ref_logp=policy_logp + 0.3 * sample_normal(),
        truncated=rng.random((P, G)) < 0.2,
        valid=np.arange(P * G).reshape(P, G) != 5,
        values=sample_normal(),
        bootstrap=np.where(rng.random((P, G)) < 0.2, sample_normal(P, G), 0),
        step_rewards=sample_normal(),
        step_end=mask & (rng.random((P, G, T)) < 0.5),
        behaviour_entropy=np.abs(sample_normal()),
        teacher_logp=policy_logp + 0.3 * np.random.default_rng(8).normal(size=(P, G, T)).astype(np.float32),
        square_sum=np.random.default_rng(9).uniform(0.1, 1, (P, G, T)).astype(np.float32),
        greedy_rewards=np.array([1, 0, 1, 0.5], np.float32),
        correct=np.array([[1, 0, 0, 1], [1, 0, 1, 0], [0, 0, np.nan, 0], [1, 0, 1, 1]], np.float32),
        reward_parts={"answer": rewards, "form": np.random.default_rng(10).random((P, G)).astype(np.float32)},
    )
    outputs = Outputs(
        policy_logp + 0.3 * sample_normal(),
        np.abs(sample_normal()),
        rollout.values + 0.3 * sample_normal(),
        np.abs(sample_normal()),
    )
    return Data(rollout, outputs)


DATA = make_data()
MASK = DATA.rollout.mask & DATA.rollout.valid[..., None]


class Program:
    """An algorithm's two compiled phases, and the number of times that they were traced."""

    def __init__(self, algorithm: Algorithm):
        self.algorithm = algorithm
        self.traces = 0
        self.prepare = jax.jit(self.prepare_traced, static_argnames="minibatches")
        self.losses = jax.jit(self.losses_traced)

    def prepare_traced(self, rollout: Rollout, progress, minibatches: int = 1) -> Batch:
        self.traces += 1
        return prepare(self.algorithm, rollout, minibatches=minibatches, progress=progress)

    def losses_traced(self, batch: Batch, outputs: Outputs):
        self.traces += 1
        return self.metrics_and_gradients(batch, outputs)

    def metrics_and_gradients(self, batch: Batch, outputs: Outputs):
        def policy(logp, entropy, divergence):
            return loss(self.algorithm, logp, batch, entropy=entropy, teacher_divergence=divergence)

        by_policy, metrics = jax.grad(policy, (0, 1, 2), has_aux=True)(outputs.logp, outputs.entropy, outputs.divergence)
        by_logp, by_entropy, by_divergence = by_policy
        if self.algorithm.critic is None:
            return (metrics, None), Outputs(by_logp, by_entropy, jnp.zeros_like(by_logp), by_divergence)
        critic = partial(value_loss, self.algorithm, batch=batch)
        by_values, value_metrics = jax.grad(critic, has_aux=True)(outputs.values)
        return (metrics, value_metrics), Outputs(by_logp, by_entropy, by_values, by_divergence)

    def batch(self, rollout: Rollout, dtype=np.float64, minibatches: int = 1) -> Batch:
        with jax.enable_x64(dtype == np.float64):
            return jax.device_get(self.prepare(cast(rollout, dtype), dtype(PROGRESS), minibatches))

    def run_batch(self, batch: Batch, outputs: Outputs, dtype=np.float64) -> Result:
        with jax.enable_x64(dtype == np.float64):
            return Result(*jax.device_get(self.losses(batch, cast(outputs, dtype))))

    def run(self, data: Data, dtype=np.float64) -> Result:
        shape = data.rollout.mask.shape
        metrics, gradient = self.run_batch(self.batch(data.rollout, dtype), flatten_responses(data.outputs), dtype)
        return Result(metrics, jax.tree.map(lambda x: x.reshape(shape), gradient))


def cast(tree, dtype):
    return jax.tree.map(lambda x: x.astype(dtype) if np.issubdtype(x.dtype, np.floating) else x, tree)


def flatten_responses(tree):
    return jax.tree.map(lambda x: x.reshape(-1, x.shape[-1]), tree)


def map_token_arrays(change, data: Data) -> Data:
    """Apply a function to every array that has a token axis."""
    return jax.tree.map(lambda x: change(x) if x.ndim == 3 else x, data)


def assert_same(actual: Result, expected: Result, rtol: float = 1e-9) -> None:
    def assert_close(path, ours, theirs):
        np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=rtol / 10, err_msg=jax.tree_util.keystr(path))

    jax.tree_util.tree_map_with_path(assert_close, actual.metrics, expected.metrics)
    for name, ours, theirs in zip(Outputs._fields, actual.gradient, expected.gradient, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=rtol * np.abs(theirs).max(), err_msg=name)


class Case(NamedTuple):
    name: str
    program: Program
    result: Result


@pytest.fixture(scope="module", params=CASES)
def case(request) -> Case:
    program = Program(CASES[request.param])
    return Case(request.param, program, program.run(DATA))


def test_losses_are_finite_and_gradients_are_not_zero(case):
    gradient = case.result.gradient
    assert all(np.isfinite(value) for value in jax.tree.leaves(case.result.metrics))
    learned_from = gradient.divergence if case.name == "gkd" else gradient.logp
    assert np.abs(learned_from).max() > 1e-3
    assert not gradient.divergence[~MASK].any()
    assert gradient.divergence.any() == (case.name in {"gkd", "minillm"})
    assert not gradient.logp[~MASK].any()
    assert not gradient.entropy[~MASK].any()
    assert gradient.entropy.any() == (case.name in {"ppo", "t1"})
    assert not gradient.values[~MASK].any()
    assert gradient.values.any() == (case.program.algorithm.critic is not None)


@pytest.mark.parametrize("name", CORRECTED)
def test_every_correction_cuts_some_tokens(name):
    batch = Program(CASES[name]).batch(DATA.rollout)
    assert set(batch.correction_cut[batch.mask].tolist()) == {False, True}
    assert not batch.correction_cut[~batch.mask].any()


def test_surrogate_masks_exclude_some_tokens(case):
    fraction = case.result.metrics[0].surrogate_masked
    assert (fraction is not None) == (CASES[case.name].surrogate_mask is not None)
    # DeepSeek-V3.2 has the mask of OFF_POLICY, but here its policy has moved towards every response that it disfavors.
    if case.name == "deepseek_v32":
        assert fraction == 0
    else:
        assert fraction is None or 0 < fraction < 0.9


def test_a_response_without_tokens_has_no_gradient(case):
    assert not MASK[EMPTY].any()
    assert MASK.any(-1).sum() == P * G - 2, "the other response without tokens is not valid"
    for by_output in case.result.gradient:
        np.testing.assert_array_equal(by_output[EMPTY], 0)


def test_neither_padding_nor_compilation_changes_anything(case):
    # One run with less padding and without jit tests both, because each further shape costs a compilation per algorithm.
    with jax.enable_x64(True):
        data = map_token_arrays(lambda x: x[..., :NARROW], jax.tree.map(jnp.asarray, cast(DATA, np.float64)))
        batch = prepare(case.program.algorithm, data.rollout, progress=PROGRESS)
        metrics, gradient = jax.device_get(case.program.metrics_and_gradients(batch, flatten_responses(data.outputs)))
    wide = jax.tree.map(lambda x: np.pad(x, ((0, 0), (0, T - NARROW))).reshape(P, G, T), gradient)
    assert_same(Result(metrics, wide), case.result)


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_nothing_outside_the_mask_is_read(case, poison):
    def corrupt(x, is_read):
        return np.where(is_read, x, poison).astype(x.dtype) if np.issubdtype(x.dtype, np.floating) else x

    corrupted = map_token_arrays(lambda x: corrupt(x, MASK), DATA)
    rollout = corrupted.rollout._replace(
        rewards=corrupt(DATA.rollout.rewards, DATA.rollout.valid),
        reward_parts={name: corrupt(part, DATA.rollout.valid) for name, part in DATA.rollout.reward_parts.items()},
        bootstrap=corrupt(DATA.rollout.bootstrap, DATA.rollout.valid),
        step_rewards=corrupt(DATA.rollout.step_rewards, DATA.rollout.step_end & MASK),
    )
    assert_same(case.program.run(corrupted._replace(rollout=rollout)), case.result, rtol=1e-14)


def test_the_order_of_prompts_does_not_matter(case):
    order = np.array([2, 0, 3, 1])
    shuffled = case.program.run(jax.tree.map(lambda x: x[order], DATA))
    assert_same(shuffled, Result(case.result.metrics, jax.tree.map(lambda x: x[order], case.result.gradient)))


def test_the_order_of_responses_does_not_matter(case):
    order = np.array([[3, 1, 0, 2], [1, 2, 3, 0], [0, 3, 2, 1], [2, 0, 1, 3]])

    def shuffle(x):
        return x if x.ndim == 1 else x[np.arange(P)[:, None], order]

    shuffled = case.program.run(jax.tree.map(shuffle, DATA))
    assert_same(shuffled, Result(case.result.metrics, jax.tree.map(shuffle, case.result.gradient)))


@pytest.mark.parametrize("rows", [np.arange(P * G), np.random.default_rng(0).permutation(P * G)], ids=["in order", "mixed"])
def test_micro_batches_add_up(case, rows):
    batch, outputs = case.program.batch(DATA.rollout), flatten_responses(DATA.outputs)
    parts = [
        case.program.run_batch(*jax.tree.map(lambda x, part=part: x[part], (batch, outputs))) for part in np.split(rows, 2)
    ]
    inverse = np.argsort(rows)
    gradient = jax.tree.map(lambda *x: np.concatenate(x)[inverse].reshape(P, G, T), *[part.gradient for part in parts])
    assert_same(Result(jax.tree.map(np.add, parts[0].metrics, parts[1].metrics), gradient), case.result)


def test_observations_between_tokens_are_not_time_steps(case):
    rng = np.random.default_rng(1)
    # Token t of a response moves to slot `slots[p, i, t]`; tokens keep their order. The entries after them are the other slots.
    slots = np.empty((P, G, T), int)
    for row in np.ndindex(P, G):
        order = rng.permutation(T)
        tokens = int(DATA.rollout.mask[row].sum())
        slots[row] = np.concatenate([np.sort(order[:tokens]), order[tokens:]])
    moved = map_token_arrays(lambda x: np.take_along_axis(x, np.argsort(slots, -1), -1), DATA)
    assert (np.diff(moved.rollout.mask.astype(int), axis=-1) > 0).any(), "no observation precedes a token"
    result = case.program.run(moved)
    assert_same(
        Result(result.metrics, jax.tree.map(lambda x: np.take_along_axis(x, slots, -1), result.gradient)), case.result
    )


def test_single_precision_is_enough(case):
    single = case.program.run(DATA, np.float32)
    assert {x.dtype for x in jax.tree.leaves(single)} == {np.dtype(np.float32)}
    assert_same(single, case.result, rtol=1e-5)


def test_new_values_are_not_recompiled(case):
    case.program.run(DATA)
    before = case.program.traces
    other = jax.tree.map(lambda x: x[::-1].copy() if x.dtype == bool else 0.5 * x, DATA)
    with jax.enable_x64(True):
        batch = case.program.prepare(cast(other.rollout, np.float64), np.float64(0.75), 1)
    case.program.run_batch(jax.device_get(batch), flatten_responses(other.outputs))
    assert case.program.traces == before


def test_mini_batches_are_prepared_like_separate_rollouts(case):
    halves = [
        case.program.batch(jax.tree.map(lambda x, part=part: x[part], DATA.rollout)) for part in np.split(np.arange(P), 2)
    ]
    separate = jax.tree.map(lambda *x: np.concatenate(x), *halves)
    together = case.program.batch(DATA.rollout, minibatches=2)
    equal = all(
        np.allclose(ours, theirs, rtol=1e-9, atol=1e-12)
        for ours, theirs in zip(jax.tree.leaves(together), jax.tree.leaves(separate), strict=True)
    )
    assert equal == (case.name not in BATCH_GLOBAL)
    if equal:
        outputs = flatten_responses(DATA.outputs)
        rows = np.split(np.arange(P * G), 2)
        for part, half in zip(rows, halves, strict=True):
            ours = case.program.run_batch(*jax.tree.map(lambda x, part=part: x[part], (together, outputs)))
            theirs = case.program.run_batch(half, jax.tree.map(lambda x, part=part: x[part], outputs))
            assert_same(ours, theirs)


@pytest.mark.parametrize("name", BATCH_GLOBAL)
def test_global_statistics_keep_weights_per_mini_batch(name):
    program = Program(CASES[name])
    batch = program.batch(DATA.rollout, minibatches=2)
    for part in np.split(batch.token_share, 2):
        np.testing.assert_allclose(part.sum(), 1.0, rtol=1e-9)
