"""The conformance kit finds every planted fault with one small counterexample, and passes correct implementations."""

import math
import re
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from testing import correct, faults

from rljax.algorithms import BY_NAME
from rljax.cli import main
from rljax.errors import InputError
from rljax.ops.gae import gae
from rljax.ops.surrogate import dual_clipped
from rljax.parallel import make_mesh
from rljax.testing import check_algorithm, check_gae, check_loss, conform, conform_gae
from rljax.testing.algorithm_checks import as_function, rollout_of
from rljax.testing.cases import full_example, gae_cases, gap_cases, loss_cases, triple_cases
from rljax.testing.example import Example
from rljax.testing.invariants import broken_invariant
from rljax.testing.loss_conventions import LIKE, loss_and_gradient, neighbors
from rljax.testing.strategies import examples

MAX_SECONDS = 60


def compile_source(source, library=np):
    names = {"np": library, "math": math, "jax": jax}
    exec(source, names)
    return names.get("loss", names.get("gae"))


def plant_fault(source, old, new):
    assert source.count(old) >= 1, f"{old!r} is not in the source"
    return compile_source(source.replace(old, new))


def fault_names(rows):
    return [row[0] for row in rows]


@pytest.mark.parametrize(("name", "old", "new"), faults.GRPO_FAULTS, ids=fault_names(faults.GRPO_FAULTS))
def test_a_fault_in_grpo_is_found(name, old, new):
    assert_loss_fault_is_found(plant_fault(correct.GRPO, old, new), "grpo", "median" in name)


@pytest.mark.parametrize(("name", "old", "new"), faults.DAPO_FAULTS, ids=fault_names(faults.DAPO_FAULTS))
def test_a_fault_in_dapo_is_found(name, old, new):
    assert_loss_fault_is_found(plant_fault(correct.DAPO, old, new), "dapo", False)


def assert_loss_fault_is_found(function, like, needs_three_responses):
    start = time.process_time()
    with pytest.raises(AssertionError, match=f"differs from {like} in: ") as caught:
        check_loss(function, like=like, arrays="numpy")
    assert time.process_time() - start < MAX_SECONDS
    text = str(caught.value)
    prompts, group = map(int, re.search(r"(\d+) prompts x (\d+) responses", text).groups())
    assert (prompts <= 2 and group <= 2) or needs_three_responses, text
    assert len(text.splitlines()) <= 12
    assert re.search(r" -0(?![.\d])", text) is None, text


@pytest.mark.parametrize(("name", "old", "new"), faults.GAE_FAULTS, ids=fault_names(faults.GAE_FAULTS))
def test_a_fault_in_gae_is_found(name, old, new):
    with pytest.raises(AssertionError, match="differs from GAE"):
        check_gae(plant_fault(correct.GAE, old, new), arrays="numpy")


def test_small_cases_are_small():
    assert all(case.example.mask.shape <= (2, 2, 3) and case.example.group == 2 for case in loss_cases())
    assert all(
        case.mask.shape[0] <= 2 and case.mask.shape[1] == 3 for gaps in (False, True) for case in gae_cases(gaps=gaps)
    )
    assert all(case.example.mask.shape == (1, 3, 3) for case in triple_cases())
    assert all(case.example.mask.shape == (1, 2, 3) for case in gap_cases())


def test_cases_with_gaps_contain_gaps():
    for mask in [case.mask for case in gae_cases(gaps=True)] + [case.example.mask[0] for case in gap_cases()]:
        assert (mask[:, 1:] & ~mask[:, :-1]).any()
        assert mask.any(-1).all()


@pytest.mark.parametrize(
    ("like", "source"), [("grpo", correct.GRPO), ("dapo", correct.DAPO), ("grpo", correct.LOOPS), ("dapo", correct.FLAT)]
)
def test_correct_losses_of_several_styles_pass(like, source):
    check_loss(compile_source(source), like=like, arrays="numpy")


@pytest.mark.parametrize("source", [correct.GAE, correct.MATRIX])
def test_correct_gae_of_several_styles_passes(source):
    check_gae(compile_source(source), arrays="numpy")


def test_gae_of_rljax_passes():
    check_gae(gae)


def test_wrong_stop_gradients_are_found_in_jax(standard_promotion):
    with jax.numpy_rank_promotion("allow"):
        check_loss(compile_source(correct.STOPPED, jnp), like="grpo")
        for old, new in (
            ("(logp - sg(logp))", "(logp - logp)"),
            ("sg(value)", "value"),
            ("logp - old_logp", "logp - sg(logp)"),
            ("(np.exp(away) - away - 1)", "sg(np.exp(away) - away - 1)"),
        ):
            assert old in correct.STOPPED
            with pytest.raises(AssertionError, match="differs from grpo in: "):
                check_loss(compile_source(correct.STOPPED.replace(old, new), jnp), like="grpo")


def test_a_convention_is_named():
    report = conform(plant_fault(correct.GRPO, "ddof=1", "ddof=0"), like="grpo", arrays="numpy")
    assert report.slot == "advantage"
    assert "It equals grpo with ddof=0" in report.text
    text = correct.GRPO.replace("ddof=1", "ddof=0").replace(
        "((per_token * mask).sum(axis=2) / lengths).mean()", "(per_token * mask).sum() / mask.sum()"
    )
    report = conform(compile_source(text), like="grpo", arrays="numpy")
    assert "It equals grpo with ddof=0, mean=batch" in report.text
    text = conform(compile_source(text), like="grpo", arrays="numpy", ddof=0, mean="batch").text
    assert text.startswith("equals grpo with ddof=0, mean=batch\n")
    assert (
        "group's standard deviation (ddof 0, eps 1e-06); mean over the tokens of the batch; token ratio within [0.8, 1.2]"
        in text
    )


def test_three_conventions_at_once_are_named():
    text = correct.GRPO.replace("ddof=1", "ddof=0").replace(
        "np.clip(ratio, 1 - 0.2, 1 + 0.2)", "np.exp(np.clip(np.log(ratio), -0.2, 0.2))"
    )
    text = text.replace("((per_token * mask).sum(axis=2) / lengths).mean()", "(per_token * mask).sum(axis=2).mean()")
    report = conform(compile_source(text), like="grpo", arrays="numpy")
    assert "It equals grpo with ddof=0, mean=sequence_sum, clip=log_ratio" in report.text


@pytest.mark.parametrize(("like", "options"), [("gspo", {}), ("cispo", {}), ("lite_ppo", {}), ("rloo", {"beta": 0.0})])
def test_records_of_other_algorithms_follow_their_conventions(like, options):
    check_loss(as_function(BY_NAME[like](**options)), like=like)


def capped_grpo(cap):
    """GRPO with the k3 penalty of each token clamped."""
    text = correct.GRPO.replace("def loss(", "def capped(")
    plain = compile_source(text.replace("def capped(", "def loss("))

    def loss(logp, old_logp, ref_logp, rewards, mask):
        away = np.where(mask, ref_logp - logp, 0.0)
        k3 = np.exp(away) - away - 1
        excess = ((k3 - np.minimum(k3, cap)) * mask).sum(-1) / mask.sum(-1)
        return plain(logp, old_logp, ref_logp, rewards, mask) - 0.04 * excess.mean()

    return loss


@pytest.mark.parametrize("cap", [10.0, 3.5])
def test_a_clamped_kl_is_an_option(cap):
    check_loss(capped_grpo(cap), like="grpo", arrays="numpy", kl_cap=cap)
    report = conform(capped_grpo(cap), like="grpo", arrays="numpy")
    assert report.slot == "KL"
    assert ("It equals grpo with kl_cap=10.0" in report.text) == (cap == 10.0)
    assert "k3 clamped to [-10, 10] in the loss" in report.text or cap != 10.0


@pytest.mark.parametrize(
    ("kind", "away", "value", "slope"),
    [
        ("k3", -4.0, 10.0, 0.0),
        ("k3", -2.0, np.exp(2.0) - 3, 1 - np.exp(2.0)),
        ("k1", -14.0, -10.0, 0.0),
        ("k3+", -4.0, 10.0, -4.0),
    ],
)
def test_a_clamped_kl_has_its_value_and_no_gradient(kind, away, value, slope):
    one = np.ones((1, 2, 1))
    example = Example(one > 0, -20 * one, -20 * one, (-20 - away) * one, np.array([[1.0, 1.0]]))
    convention = replace(LIKE["grpo"], kl=kind, kl_cap=10.0, beta=1.0)
    total, gradient = loss_and_gradient(example, convention)
    np.testing.assert_allclose(total, value)
    np.testing.assert_allclose(gradient[0, :, 0], slope / 2)


def test_gae_that_counts_gaps_as_steps_is_found():
    text = """
def gae(rewards, values, mask, gamma, lambda_, bootstrap):
    rewards, values = rewards * mask, values * mask
    out, carried = np.zeros(rewards.shape), np.zeros(len(rewards))
    last = rewards.shape[1] - 1 - mask[:, ::-1].argmax(1)
    for t in reversed(range(rewards.shape[1])):
        after = np.where(last == t, bootstrap, values[:, t + 1] if t + 1 < rewards.shape[1] else 0.0)
        carried = (rewards[:, t] + gamma * after - values[:, t] + gamma * lambda_ * carried) * (t <= last)
        out[:, t] = carried
    return out
"""
    convention, report = conform_gae(compile_source(text), arrays="numpy")
    assert convention is None
    assert report.startswith("differs from GAE in: gaps between tokens")
    assert "mask [True, False, True]" in report or "mask [False, True, True]" in report
    assert report.endswith("Without gaps it equals GAE.")


def test_a_loss_that_assumes_left_aligned_tokens_is_found():
    def loss(logp, old_logp, ref_logp, rewards, mask):
        left_aligned = np.arange(mask.shape[-1]) < mask.sum(-1, keepdims=True)
        return compile_source(correct.GRPO)(logp, old_logp, ref_logp, rewards, left_aligned)

    report = conform(loss, like="grpo", arrays="numpy")
    assert report.slot == "gaps between tokens"
    assert "1 prompts x 2 responses, mask [[[0, 1, 1], [1, 0, 1]]]" in report.text


@pytest.mark.parametrize("wrong", [True, False])
def test_an_exception_does_not_hide_a_counterexample(wrong):
    source = compile_source(correct.GRPO.replace("ddof=1", "ddof=0") if wrong else correct.GRPO)

    def loss(logp, old_logp, ref_logp, rewards, mask):
        if rewards.shape[0] == 1 and (rewards < 0).any():
            raise ZeroDivisionError("no negative rewards")
        return source(logp, old_logp, ref_logp, rewards, mask)

    report = conform(loss, like="grpo", arrays="numpy")
    assert report.slot == ("advantage" if wrong else "exception")
    assert report.equals is None
    assert ("It equals grpo with ddof=0" in report.text) == wrong
    assert "ZeroDivisionError: no negative rewards" in report.text
    assert "rewards [[0.5, -0.75]]" in report.text
    assert not wrong or "rewards [[1.0, 0.0]]\n  loss: expected" in report.text


def test_an_exception_in_every_case_is_explained():
    def loss(logp):
        raise ZeroDivisionError("no groups.")

    def of_batch(logp, rewards):
        rows, _ = logp.shape
        return rows

    line = loss.__code__.co_firstlineno + 1
    with pytest.raises(
        InputError, match=rf"at test_testing.py:{line}: ZeroDivisionError: no groups\. It gets rewards"
    ) as caught:
        conform(loss, like="grpo", arrays="numpy")
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    with pytest.raises(InputError, match=r"ValueError: .*the other arrays \[prompts, responses, tokens\]"):
        check_loss(of_batch, like="grpo", arrays="numpy")
    with pytest.raises(InputError, match=r"ZeroDivisionError: .*arrays \[rows, tokens\], and bootstrap \[rows\]"):
        conform_gae(lambda rewards: 1 / 0, arrays="numpy")


@pytest.mark.parametrize(
    "loss",
    [
        lambda logp, rewards: logp.sum() if rewards.std() > 0 else -logp.sum(),
        lambda logp, rewards: np.asarray(rewards).std() * logp.sum(),
    ],
)
def test_a_function_that_jax_cannot_trace_is_refused(loss):
    with pytest.raises(InputError, match=r"JAX traces it: .* needs arrays='numpy'"):
        check_loss(loss, like="grpo")


def dr_grpo(logp, old_logp, rewards, mask, *, sign=1.0, dtype=np.float64):
    rewards -= rewards.mean(-1, keepdims=True)  # a NumPy function may change its arguments in place
    logp[~mask] = old_logp[~mask] = 0
    ratio, advantage = np.exp(logp - old_logp), rewards[..., None].astype(dtype)
    surrogate = np.minimum(ratio * advantage, np.clip(ratio, 0.8, 1.2) * advantage)
    return -sign * (surrogate * mask).sum(-1).mean() / 3


def test_a_function_may_change_its_arguments():
    check_loss(dr_grpo, like="dr_grpo", arrays="numpy")
    assert LIKE["dr_grpo"] == conform(dr_grpo, like="dr_grpo", arrays="numpy").equals, "the cases must not be changed"


def not_finite(logp, old_logp, rewards, mask):

    centered = rewards - rewards.mean(-1, keepdims=True)
    advantage = (centered / rewards.std(-1, ddof=1, keepdims=True))[..., None]
    return -jnp.where(mask, jnp.exp(logp - old_logp) * advantage, 0).sum()


@pytest.mark.parametrize(
    ("loss", "arrays", "hint"),
    [
        (partial(dr_grpo, sign=-1.0), "numpy", "It is the negative of the loss in every case"),
        (partial(dr_grpo, dtype=np.float16), "numpy", "It agrees in every case within rtol=0.0"),
        (lambda logp, rewards: rewards.sum() + 0 * logp.sum(), "jax", "Its gradient is 0 in every case"),
        (not_finite, "jax", "not finite for some rollouts, such as one with rewards"),
    ],
)
def test_a_report_names_a_likely_cause(loss, arrays, hint):
    assert hint in conform(loss, like="dr_grpo" if arrays == "numpy" else "grpo", arrays=arrays).text


@pytest.mark.parametrize("wrong", [True, False])
def test_an_exception_in_gae_does_not_hide_a_counterexample(wrong):
    source = compile_source(correct.GAE.replace("- values[:, t]", "") if wrong else correct.GAE)

    def gae_of_one_row(rewards, values, mask, gamma, lambda_, bootstrap):
        if len(rewards) > 1:
            raise ValueError("one row only")
        return source(rewards, values, mask, gamma, lambda_, bootstrap)

    convention, report = conform_gae(gae_of_one_row, arrays="numpy")
    assert convention is None
    assert report.startswith(f"differs from GAE in: {'TD error' if wrong else 'exception'}")
    assert "ValueError: one row only" in report


def test_an_exception_for_a_rearranged_rollout_is_named():
    def loss(logp, old_logp, ref_logp, rewards, mask):
        if logp.shape[-1] > 3:
            raise IndexError("too wide")
        return compile_source(correct.GRPO)(logp, old_logp, ref_logp, rewards, mask)

    report = conform(loss, like="grpo", arrays="numpy")
    assert report.slot == "exception"
    assert "With 2 prompts x 4 responses rearranged, it raises IndexError: too wide" in report.text


def test_an_exception_for_every_rollout_with_gaps_is_named():
    def has_gaps(mask):
        return bool((mask[..., 1:] & ~mask[..., :-1]).any())

    def loss(logp, old_logp, ref_logp, rewards, mask):
        if has_gaps(mask):
            raise NotImplementedError("gaps")
        return compile_source(correct.GRPO)(logp, old_logp, ref_logp, rewards, mask)

    def gae_without_gaps(rewards, values, mask, gamma, lambda_, bootstrap):
        if has_gaps(mask):
            raise NotImplementedError("gaps")
        return compile_source(correct.GAE)(rewards, values, mask, gamma, lambda_, bootstrap)

    report = conform(loss, like="grpo", arrays="numpy")
    assert report.slot == "exception"
    assert "NotImplementedError: gaps\n  1 prompts x 2 responses, mask [[[0, 1, 1], [1, 0, 1]]]" in report.text
    convention, text = conform_gae(gae_without_gaps, arrays="numpy")
    assert convention is None
    assert text.startswith("differs from GAE in: exception. NotImplementedError: gaps")


@pytest.mark.parametrize(
    ("like", "source", "old", "new"),
    [
        ("grpo", correct.GRPO, "rewards.mean(axis=1, keepdims=True)", "np.median(rewards, axis=1, keepdims=True)"),
        ("dapo", correct.DAPO, None, None),
    ],
)
def test_a_fault_that_needs_three_responses_is_found_with_three(like, source, old, new):
    def compare_only_the_ends(logp, old_logp, rewards, mask):
        same = (rewards[:, :1] == rewards[:, -1:]) & np.ones(rewards.shape, bool)
        return compile_source(source)(logp, old_logp, np.where(same, 0.0, rewards), mask)

    assert old is None or old in source
    function = compare_only_the_ends if old is None else plant_fault(source, old, new)
    text = conform(function, like=like, arrays="numpy").text
    assert re.search(r"1 prompts x 3 responses, lengths \[\[1, 1, 1\]\]", text), text


def test_a_dual_clip_is_an_option():
    algorithm = BY_NAME["dapo"]()._replace(surrogate=partial(dual_clipped, low=0.2, high=0.28, cap=3.0))
    check_loss(as_function(algorithm), like="dapo", dual_clip=3.0)
    assert conform(as_function(algorithm), like="dapo").equals.dual_clip == 3.0


@pytest.mark.parametrize(
    ("slot", "old", "new"),
    [
        ("value", "surrogate = sg(value)", "surrogate = 1 + sg(value)"),
        ("gradient", "sg(ratio) * advantage)", "0.5 * sg(ratio) * advantage)"),
    ],
)
def test_differences_in_the_value_and_the_gradient_are_distinguished(slot, old, new, standard_promotion):
    assert old in correct.STOPPED
    new = correct.STOPPED.replace(old, new)
    with jax.numpy_rank_promotion("allow"):
        assert conform(compile_source(new, jnp), like="grpo").slot == slot


def test_normalized_advantages_are_named():
    text = correct.GAE.replace("return out", "return (out - out[mask].mean()) / (out[mask].std(ddof=1) + 1e-8)")
    convention, report = conform_gae(compile_source(text), arrays="numpy")
    assert convention.ddof == 1
    assert "It equals GAE, normalized over the tokens of the batch (ddof 1)" in report


def test_a_dependence_on_the_order_is_named():
    def loss(logp, old_logp, rewards, mask):
        return compile_source(correct.DAPO)(logp, old_logp, rewards, mask) * (
            1 if rewards.shape[1] < 4 or rewards[0, 0] == 1 else 2
        )

    assert conform(loss, like="dapo", arrays="numpy").slot == "order of the prompts"


@pytest.mark.parametrize("like", LIKE)
def test_algorithms_of_rljax_conform(like):
    algorithm = BY_NAME[like](**({"max_length": 3} if like == "dr_grpo" else {}))
    check_algorithm(algorithm, like=like, mesh=make_mesh(2, 1, devices=jax.devices()[:2]))


def test_a_gradient_that_depends_on_the_order_is_reported_with_its_size():
    def evaluate(example):
        return 0.0, np.where(example.mask, np.arange(3.0)[:, None, None], 0.0)

    found = broken_invariant(evaluate, full_example())
    assert found is not None
    assert (found.name, found.text) == ("order of the prompts", "The gradient moved by up to 2.")


def test_a_record_that_breaks_an_invariant_is_named():
    def first_response(mask):
        return jnp.zeros(mask.shape).at[:, 0].set(1.0) / mask.size

    with pytest.raises(AssertionError, match="order of the responses"):
        check_algorithm(BY_NAME["grpo"]()._replace(weights=first_response))


def test_a_record_that_counts_responses_without_reward_is_named():
    def all_rewards(rewards, *, valid=None):
        return rewards - rewards.mean(-1, keepdims=True)

    with pytest.raises(AssertionError, match="responses without reward"):
        check_algorithm(BY_NAME["dr_grpo"](max_length=3)._replace(advantage=all_rewards))


@given(examples(marks=True))
def test_valid_and_truncated_become_fields_of_a_rollout(example):
    rollout = rollout_of(example)
    np.testing.assert_array_equal(rollout.valid, example.valid)
    np.testing.assert_array_equal(rollout.truncated, example.truncated)
    assert example.valid.shape == example.truncated.shape == example.rewards.shape


def test_the_overlong_punishment_is_an_option():
    function = as_function(BY_NAME["dapo"](max_length=3, cache=2))
    assert conform(function, like="dapo", max_length=3, cache=2).slot is None
    assert conform(function, like="dapo").slot is not None


@given(examples(gaps=False))
def test_gradients_match_finite_differences(example):
    lengths = example.mask.sum(-1, keepdims=True)
    log_ratios = np.where(example.mask, example.logp - example.old_logp, 0.0)
    ratios = np.exp(np.concatenate([log_ratios, log_ratios.sum(-1, keepdims=True) / lengths], -1))
    edges = [0.8, 1.2, 1.28, np.exp(-0.2), np.exp(0.2), np.exp(0.28), 1 - 3e-4, 1 + 4e-4, 3.0]
    near = np.abs(ratios[..., None] - np.array(edges)).min() < 1e-4
    for convention in neighbors(LIKE["grpo"], changes=1):
        value, gradient = loss_and_gradient(example, convention)
        assert np.isfinite(value)
        # next to a clip bound, or if the gradient is not the derivative of the value, a finite difference does not match it
        if near or convention.surrogate != "clipped" or convention.kl == "k3+":
            continue
        moved = example.logp.copy()
        moved[0, 0, 0] += 1e-6
        other, _ = loss_and_gradient(replace(example, logp=moved), convention)
        np.testing.assert_allclose((other - value) / 1e-6, gradient[0, 0, 0], rtol=1e-3, atol=1e-4)


@given(examples())
def test_a_compact_example_has_the_same_tokens(example):
    compact = example.compact()
    np.testing.assert_array_equal(compact.lengths, example.lengths)
    np.testing.assert_array_equal(compact.logp[compact.mask], example.logp[example.mask])
    np.testing.assert_array_equal(example.spread(compact.logp), np.where(example.mask, example.logp, 0.0))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: check_loss(lambda logp: logp, like="pop"), "like is 'pop'; choose one of grpo"),
        (lambda: check_loss(lambda logp: logp, like="grpo", dof=0), "'dof' is not an option"),
        (lambda: check_loss(lambda x: x, like="grpo"), "unknown parameter 'x'"),
        (lambda: check_loss(lambda rewards: rewards, like="grpo", arrays="numpy"), "no parameter 'logp'"),
        (lambda: check_gae(lambda rewards, q: rewards), "unknown parameter 'q'"),
        (
            lambda: check_loss(lambda logp: logp, like="grpo"),
            "The loss returns an array of shape [1, 2, 3]; return one number",
        ),
        (
            lambda: check_loss(lambda logp: {"loss": logp.sum()}, like="grpo", arrays="numpy"),
            "The loss returns a dict; return",
        ),
        (lambda: check_loss(lambda logp: logp, like="grpo", low="abc"), "low is 'abc'; choose a number"),
        (lambda: check_loss(lambda logp: logp, like="grpo", beta=None), "beta is None; choose a number"),
    ],
)
def test_invalid_arguments_are_refused(call, message):
    with pytest.raises(InputError, match=re.escape(message)):
        call()


def test_the_package_does_not_need_hypothesis():
    code = """
        import sys
        sys.modules["hypothesis"] = None
        import rljax.testing
        from rljax.errors import InputError
        try:
            import rljax.testing.strategies
        except InputError as refused:
            print(refused)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True)
    assert "pip install hypothesis" in done.stdout


def write_module(folder, text):
    (folder / "mine.py").write_text(f"import numpy as np\n{text}", encoding="utf-8")
    return str(folder / "mine.py")


def test_the_command_names_the_convention(tmp_path, capsys):
    file = write_module(tmp_path, correct.GRPO.replace("ddof=1", "ddof=0"))
    arguments = ["conform", f"{file}:loss", "--like", "grpo", "--arrays", "numpy"]
    assert main(arguments) == 1
    assert "It equals grpo with ddof=0" in capsys.readouterr().out
    assert main([*arguments, "--convention", "ddof=0"]) == 0
    assert capsys.readouterr().out.startswith("equals grpo with ddof=0\n")
    assert main([*arguments, "--convention", "mean=tokens"]) == 2
    assert "mean is 'tokens'; choose one of batch, prompt" in capsys.readouterr().err
    assert main([*arguments, "--convention", "ddof"]) == 2


def test_the_command_checks_gae(tmp_path, capsys):
    right, wrong = (write_module(tmp_path / name, text) for name, text in write_sources(tmp_path))
    assert main(["conform", f"{right}:gae", "--like", "gae", "--arrays", "numpy"]) == 0
    assert main(["conform", f"{wrong}:gae", "--like", "gae", "--arrays", "numpy"]) == 1
    assert "differs from GAE in: TD error" in capsys.readouterr().out


def write_sources(folder):
    texts = {"right": correct.GAE, "wrong": correct.GAE.replace("- values[:, t]", "")}
    for name in texts:
        (folder / name).mkdir()
    return texts.items()


def test_a_loss_of_torch_tensors_passes():
    torch = pytest.importorskip("torch", reason="losses of PyTorch need it: pip install torch")

    def loss(logp, old_logp, rewards, mask):
        keep = rewards.amax(1) > rewards.amin(1)
        advantage = ((rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-6))[..., None]
        ratio = torch.exp(torch.where(mask, logp - old_logp, torch.zeros_like(logp)))
        surrogate = torch.minimum(ratio * advantage, torch.clamp(ratio, 0.8, 1.28) * advantage)
        counted = mask & keep[:, None, None]
        return -(surrogate * counted).sum() / counted.sum().clamp(min=1)

    check_loss(loss, like="dapo", arrays="torch")

    def half_stopped(logp, old_logp, rewards, mask):
        return loss((logp + logp.detach()) / 2, old_logp, rewards, mask)

    with pytest.raises(AssertionError, match="differs from dapo in: gradient"):
        check_loss(half_stopped, like="dapo", arrays="torch")
