"""`--remedy controller`: its rule matches plain Python, and a controlled run resumes exactly."""

import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from small_runs import SMALL, even_length, is_time, stopping_after

import rljax
from rljax.algorithms import BY_NAME, LossMetrics
from rljax.errors import InputError
from rljax.options.controller import (
    MAX_UPDATE_SCALE,
    NAME,
    TARGET,
    Control,
    check_controller,
    divergence_by_update,
    first_control,
    make_control_update,
    next_control,
    scale_updates,
    with_bonus,
    with_control,
)
from rljax.parallel import make_mesh, put, replicated
from rljax.tracking.rows import read_metrics
from rljax.training.config import TrainConfig
from rljax.training.interrupt import Interrupted
from rljax.training.metrics import LearnMetrics, UpdateMetrics
from rljax.training.state import Updates, create


def apply_rule(control, divergence, entropy):
    """Apply the controller's formula, in plain Python."""
    scale, _, weight, first = control
    first = entropy if math.isnan(first) else first
    ratio = math.sqrt(TARGET / (divergence / entropy)) if divergence else 1e9
    rise = math.log(2) if scale < 1 else 0.25
    deficit = max(-1.0, min(1.0, 1 - entropy / (0.1 * first)))
    return (
        max(0.01, min(100.0, scale * math.exp(max(-1.0, min(rise, math.log(ratio) / 4))))),
        max(0.5, min(1.0, ratio)),
        max(0.0, min(0.01, weight + 0.001 * deficit)),
        first,
    )


def test_the_rule_matches_its_formula():
    random = np.random.default_rng(0)
    for _ in range(200):
        control = (
            10 ** random.uniform(-2, 2),
            random.uniform(0.5, 1),
            random.uniform(0, 0.01),
            random.choice([1.0, math.nan]),
        )
        divergence, entropy = 10 ** random.uniform(-8, 1), random.uniform(0.001, 2)
        found = next_control(Control(*control), divergence=divergence, entropy=entropy)
        np.testing.assert_allclose(list(found), apply_rule(control, divergence, entropy), rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("rate", [0.1, 1.0, 10.0, 100.0])
def test_update_sizes_approach_the_target_from_below(rate):
    """In this model, the divergence is proportional to the update's squared size, and the ideal size is 1."""
    control, sizes = Control(), []
    for _ in range(60):
        sizes.append(rate * float(control.update_scale))
        control = next_control(control, divergence=TARGET * 0.5 * sizes[-1] ** 2, entropy=0.5)
    assert max(sizes) < 1.001
    assert sizes[-1] == pytest.approx(1.0, rel=1e-3)
    assert float(control.clip_scale) == pytest.approx(1.0, rel=1e-3)


def test_too_large_updates_shrink_to_the_target():
    control = Control(update_scale=1.0)
    for _ in range(40):
        control = next_control(control, divergence=TARGET * 0.5 * (10 * float(control.update_scale)) ** 2, entropy=0.5)
    assert float(control.update_scale) == pytest.approx(0.1, rel=1e-3)


def test_the_control_stays_within_its_bounds():
    small, large = Control(update_scale=1.0), Control()
    for _ in range(100):
        small = next_control(small, divergence=10.0, entropy=0.001)
        large = next_control(large, divergence=0.0, entropy=1.0)
    assert float(small.update_scale) == pytest.approx(1 / MAX_UPDATE_SCALE)
    assert float(large.update_scale) == pytest.approx(MAX_UPDATE_SCALE)
    assert float(small.clip_scale) == 0.5


def test_the_bonus_grows_below_a_tenth_of_the_initial_entropy():
    control = next_control(Control(), divergence=0.001, entropy=1.0)
    for _ in range(3):
        control = next_control(control, divergence=0.001, entropy=0.05)
    assert float(control.entropy_weight) == pytest.approx(3 * 0.0005)
    assert float(next_control(control, divergence=0.001, entropy=0.5).entropy_weight) == pytest.approx(0.0005)


@pytest.mark.parametrize(("divergence", "entropy"), [(math.nan, 1.0), (math.inf, 1.0), (0.1, math.nan), (0.1, 0.0)])
def test_non_finite_metrics_change_nothing(divergence, entropy):
    before = Control(2.0, 0.75, 0.005, 1.0)
    chex.assert_trees_all_close(next_control(before, divergence=divergence, entropy=entropy), before)


def test_divergence_by_update_inverts_the_mean_over_equal_updates():
    for updates in (2, 3, 8):
        mean = np.mean([0.7 * before**2 for before in range(updates)])
        assert divergence_by_update(mean, updates=updates) == pytest.approx(0.7)


def test_updates_are_scaled_and_the_optimizers_state_is_unchanged():
    params, gradient = {"w": jnp.ones(3)}, {"w": jnp.array([1.0, -2.0, 0.5])}
    plain = optax.sgd(0.1)
    optimizer = scale_updates(plain)
    options = {NAME: Control(update_scale=jnp.float32(3.0))}
    updates, after = optimizer.update(gradient, optimizer.init(params), params, options=options)
    chex.assert_trees_all_close(updates, {"w": -0.3 * gradient["w"]})
    chex.assert_trees_all_equal(after, plain.init(params))


def test_clip_and_bonus_of_an_algorithm_follow_the_control():
    algorithm = with_control(with_bonus(BY_NAME["dapo"]()), Control(clip_scale=0.5, entropy_weight=0.01))
    assert algorithm.surrogate.keywords == pytest.approx({"low": 0.1, "high": 0.14})
    assert [(term.name, term.coefficient) for term in algorithm.terms] == [("entropy_bonus", -0.01)]
    unclipped = with_control(BY_NAME["kl_cov"](), Control(clip_scale=0.5))
    assert unclipped.surrogate.keywords == BY_NAME["kl_cov"]().surrogate.keywords


def control_after(kl, updates, *, algorithm="dapo"):
    """Return the control and the metrics after a step whose updates had this mean divergence."""
    params = {"w": jnp.ones(2)}
    state = create(params, optax.sgd(0.1), 0, with_reference=False, options={NAME: first_control(params)})
    state = put(state, replicated(make_mesh(1, 1)))
    loss_metrics = LossMetrics(*np.ones(6), terms={})._replace(kl=kl, entropy=0.5)
    steer = make_control_update(with_bonus(BY_NAME[algorithm]()))
    update = UpdateMetrics(loss_metrics, 1.0)
    state, metrics = steer(state, LearnMetrics(policy=update), Updates(updates, [update] * updates))
    return state.options[NAME], metrics


def test_the_control_does_not_depend_on_the_number_of_equal_updates():
    per_update = 0.5 * TARGET * 0.5
    expected = next_control(Control(), divergence=per_update, entropy=0.5)
    for updates in (2, 4, 6):
        kl = np.mean([per_update * before**2 for before in range(updates)])
        chex.assert_trees_all_close(control_after(kl, updates)[0], expected, rtol=1e-5)
    chex.assert_trees_all_equal(control_after(0.0, 1)[0], jax.tree.map(jnp.float32, Control()))


def test_learning_rate_warm_up_does_not_change_the_final_update_size():
    def scales(warm_up, best_rate=1.0, steps=60):
        control, found = Control(), []
        for step in range(steps):
            size = float(control.update_scale) * min(1.0, (step + 1) / warm_up) / best_rate
            control = next_control(control, divergence=TARGET * 0.5 * size**2, entropy=0.5)
            found.append(size)
        return found

    for best_rate in (0.1, 1.0, 10.0):
        for warm_up in (5, 20):
            sizes = scales(warm_up, best_rate)
            assert sizes[-1] == pytest.approx(scales(1, best_rate)[-1], rel=0.05)
            assert max(sizes) < 1.5


@pytest.mark.parametrize(("algorithm", "clip_scale"), [("dapo", 1.0), ("rloo", None), ("kl_cov", None)])
def test_the_clip_range_is_logged_if_the_algorithm_has_one(algorithm, clip_scale):
    assert control_after(0.1, 2, algorithm=algorithm)[1].get("clip_scale") == clip_scale


@pytest.mark.parametrize(
    ("settings", "own", "message"),
    [
        ({"minibatches": 1}, False, "at least two updates; set --minibatches 2 or --passes 2"),
        ({"minibatches": 2, "kl_limit": 0.1}, False, "kl_limit=0.1 both limit the divergence"),
        ({"minibatches": 2}, True, "leave out either remedy or your own optimizer"),
        ({"minibatches": 2, "algorithm": "t1"}, False, "adds an entropy bonus, but t1 already has one"),
    ],
)
def test_a_controller_with_nothing_to_measure_or_change_is_refused(settings, own, message):
    config = TrainConfig.flat(remedy="controller", **settings)
    with pytest.raises(InputError, match=message):
        check_controller(config, BY_NAME[config.algorithm.name](), own_optimizer=own)


def test_the_controller_accepts_one_minibatch_in_several_passes():
    check_controller(TrainConfig.flat(remedy="controller", passes=4), BY_NAME["dapo"](), own_optimizer=False)


STEERED = SMALL.replace(
    algorithm="grpo",
    algorithm_options={"beta": 0.0},
    remedy="controller",
    train_problems=24,
    heldout_problems=4,
    steps=6,
    prompts=4,
    group_size=4,
    minibatches=2,
    microbatch_rows=8,
    learning_rate=0.3,
    learning_rate_warmup=0,
    eval_every=0,
    checkpoint_every=100,
)
"""Settings with updates that are far too large."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The folders of an uninterrupted run, and of the same run stopped and resumed."""
    uninterrupted, stopped = (tmp_path_factory.mktemp("controller") / name for name in ("whole", "stopped"))
    rljax.train(STEERED.replace(run=str(uninterrupted)), even_length)
    with pytest.raises(Interrupted):
        rljax.train(STEERED.replace(run=str(stopped)), stopping_after(4))
    rljax.train(resume=stopped, reward=even_length)
    return uninterrupted, stopped


def read_rl_rows(run):
    rows = [row for row in read_metrics(run / "metrics.jsonl") if row["phase"] == "rl"]
    return [{name: value for name, value in row.items() if not is_time(name)} for row in rows]


def test_the_update_scale_of_a_run_follows_its_metrics(runs):
    rows = read_rl_rows(runs[0])
    control = Control()
    for row in rows:
        recorded = (row["update_scale"], row["clip_scale"], row["entropy_weight"])
        np.testing.assert_allclose(recorded, [float(number) for number in control[:3]], rtol=1e-5)
        assert row["learning_rate"] == pytest.approx(0.3 * row["update_scale"], rel=1e-5)
        if "kl" in row:
            divergence = divergence_by_update(row["kl"], updates=2)
            control = next_control(control, divergence=divergence, entropy=row["entropy"])
    assert rows[0]["update_scale"] < rows[-1]["update_scale"]


def test_a_resumed_run_equals_an_uninterrupted_one(runs):
    uninterrupted, stopped = runs
    assert read_rl_rows(stopped) == read_rl_rows(uninterrupted)
    chex.assert_trees_all_equal(*(rljax.load(run, which="last", reward=even_length).params for run in runs))


COPYING = STEERED.replace(max_response_tokens=2, steps=60, prompts=8, group_size=8, passes=2, microbatch_rows=64)
"""A learning rate a hundred times too large for this task: repeating the prompt's first character."""


def first_character(prompts, completions):
    return [float(completion[:1] == prompt[:1]) for prompt, completion in zip(prompts, completions, strict=True)]


def test_a_run_with_far_too_large_a_learning_rate_learns_only_with_the_controller(tmp_path):
    ends = {}
    for remedy in ("off", "controller"):
        rljax.train(COPYING.replace(remedy=remedy, run=str(tmp_path / remedy)), first_character)
        ends[remedy] = np.mean([row["reward"] for row in read_rl_rows(tmp_path / remedy)[-10:]])
    assert ends["off"] < 0.05
    assert ends["controller"] > 0.4  # it levels off at about 0.5, but rounding differs between machines
