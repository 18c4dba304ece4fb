"""The ops that each algorithm calls: all are found in the right slots, without the ops that only other ops call."""

from functools import partial

import pytest

from rljax.algorithms import BY_NAME, Algorithm
from rljax.algorithms.corrections import BY_NAME as CORRECTIONS
from rljax.book.slots import SIZES, SlotContent, describe_slot, slot_contents, table
from rljax.book.uses import BY_FLAG, callers, calls_of_ops, calls_of_records, names_of_ops, ops_in, slots, uses
from rljax.ops import group, ratio, surrogate, weights
from rljax.ops.divergence import k2, k3
from rljax.options import kl_target, moving_reference
from rljax.training.objective import optimizer


def make_closure(function):
    return lambda *arguments: [function(argument) for argument in arguments]


def use_globals(x):
    return [group.group_centered, k3(x, x)]


use_globals.__module__ = make_closure.__module__ = "rljax.made_up"


def as_user_function(function):
    function.__module__ = "rljax.made_up"
    return function


@pytest.mark.parametrize(
    ("value", "ops"),
    [
        (surrogate.clipped, ("surrogate.clipped",)),
        (partial(surrogate.clipped, low=0.1, high=0.2), ("surrogate.clipped",)),
        (partial(partial(surrogate.clipped, low=0.1), high=0.2), ("surrogate.clipped",)),
        (partial(as_user_function(lambda f, x: f(x)), weights.token_mean), ("weights.token_mean",)),
        (partial(as_user_function(lambda x, f: f(x)), f=weights.token_mean), ("weights.token_mean",)),
        (as_user_function(make_closure(k2)), ("divergence.k2",)),
        (as_user_function(make_closure(partial(k2))), ("divergence.k2",)),
        (as_user_function(lambda x: [k3(y, y) for y in x]), ("divergence.k3",)),
        (use_globals, ("divergence.k3",)),
        ((k3, (k2, k3)), ("divergence.k3", "divergence.k2")),
        (lambda x: k3(x, x), ()),
        (0.5, ()),
        (None, ()),
    ],
)
def test_ops_in_finds_ops_in_slot_values(value, ops):
    assert ops_in(value) == ops


def test_ops_in_ignores_attributes_named_like_ops():
    assert ops_in(as_user_function(lambda inputs: inputs.k3 + inputs.k2)) == ()


def test_ops_in_visits_a_recursive_function_once():
    def again(x):
        return again(k2(x, x))

    assert ops_in(as_user_function(again)) == ("divergence.k2",)


@pytest.mark.parametrize("name", BY_NAME)
def test_slots_match_the_record(name):
    record = BY_NAME[name]()
    flat = slots(record)
    roots = {slot.partition(".")[0] for slot in flat}
    assert roots == {field for field, value in record._asdict().items() if value is not None and value != ()}
    assert {slot for slot in flat if slot.startswith("terms.")} == {f"terms.{term.name}" for term in record.terms}


def test_corrections_are_flattened():
    record = BY_NAME["grpo"]()._replace(correction=CORRECTIONS["masked"]())
    assert {"correction.weight", "correction.cut"} <= set(slots(record))


def test_uses_map_slots_to_ops():
    assert {use.slot: use.ops for use in uses("dapo")} == {
        "advantage": ("group.group_normalized",),
        "log_ratio": ("ratio.token_log_ratio",),
        "surrogate": ("surrogate.clipped",),
        "weights": ("weights.token_mean",),
        "shape_reward": ("shaping.soft_overlong_penalty",),
        "keep_group": ("selection.has_mixed_outcomes",),
    }
    vapo = {use.slot: use.ops for use in uses("vapo")}
    assert vapo["critic.policy_lambda"] == ("gae.length_adaptive_lambda",)
    assert vapo["terms.positive_examples"] == ("regularization.positive_example_weights",)
    assert {use.slot: use.ops for use in uses("grpo")}["terms.reference_kl"] == ("divergence.k3",)


def test_uses_name_the_option_that_fills_a_slot():
    assert [(use.slot, use.ops, use.option) for use in uses("reinforce_pp_baseline") if use.option] == [
        ("terms.reference_kl", ("divergence.k2",), "beta")
    ]
    assert {use.option for use in uses("ppo")} == {None, "beta"}  # the entropy bonus reads a value and calls no op
    assert all(use.option is None for use in uses("dapo"))


def test_every_algorithm_has_ops_in_the_common_slots():
    for name in BY_NAME:
        found = {use.slot for use in uses(name)}
        assert {"log_ratio", "surrogate", "weights"} <= found
        assert found & {"advantage", "critic.advantage", "teacher_divergence"}, name


def test_callers_invert_calls():
    calls = calls_of_records()
    used = callers(calls)
    assert set(used) == set(names_of_ops().values())
    assert {(name, op) for name, ops in calls.items() for op in ops} == {(n, op) for op, ns in used.items() for n in ns}
    assert "dapo" in used["surrogate.clipped"]
    assert "grpo" not in used["shaping.soft_overlong_penalty"]
    assert used["correction.masked_importance_weight"] == ("--correction masked",)
    assert used["correction.off_policy_sequence_mask"] == ("deepseek_v32", "--off-policy-delta")
    assert "ppo" in used["divergence.kl_in_reward"]
    assert used["divergence.ema_update"] == ("t1",)


def test_flags_name_the_trainers_ops():
    called = {
        *ops_in(kl_target.install),
        *ops_in(moving_reference.make_average),
        *ops_in(moving_reference.make_restart),
        *ops_in(optimizer.quarter_cosine_schedule),
    }
    assert called == {op for flag in BY_FLAG for op in calls_of_records()[flag]} | {"divergence.ema_update"}


def test_swappable_parts_are_listed_as_callers():
    used = callers(calls_of_records())
    assert used["unpublished.group_baseline.rank_based"] == ("--with advantage=rank",)
    assert used["unpublished.schedule.warmup_cosine"] == ("--schedule quarter_cosine",)


def test_calls_of_ops():
    calls = calls_of_ops()
    assert calls["gae.lambda_returns"] == ("gae.gae", "masked.zero_outside")
    assert calls["divergence.k3"] == ("divergence.k1",)
    assert calls["divergence.k1"] == ()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.25, "0.25"),
        (partial(surrogate.clipped, low=0.2, high=3e-4), "clipped low=0.2 high=0.0003"),
        (ratio.token_log_ratio, "token_log_ratio"),
        (as_user_function(lambda x: (k2, k3)), "k2 + k3"),
        (as_user_function(use_globals), "k3"),
    ],
)
def test_describe_slot_text(value, text):
    assert describe_slot(value).text() == text


def test_describe_slot_rejects_other_values():
    with pytest.raises(TypeError, match="a slot must contain a number, a function or a record of functions, got 'clip'"):
        describe_slot("clip")


def test_slot_contents_without_ops():
    assert slot_contents(BY_NAME["ppo"]())["critic.head"] == SlotContent("1 number", "")
    assert describe_slot(as_user_function(lambda x: x)).function == "<lambda>"
    assert "reference_rate" not in slot_contents(BY_NAME["grpo"]())
    assert slot_contents(BY_NAME["t1"]())["reference_rate"] == SlotContent("", "0.01")


def read_cells(page: str) -> dict[tuple[str, str], str]:
    """Map (algorithm, column) to the cell, for both tables of a page; column names of the second table get the prefix `critic.`."""
    found, head, prefix = {}, None, ""
    for line in page.splitlines():
        row = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else None
        if row is None:
            prefix = "critic." if line == "## Their critics" else prefix
            head = None
        elif head is None:
            head = row
        elif not row[0].startswith("-"):
            found |= {(row[0].strip("`"), prefix + column): cell for column, cell in zip(head[1:], row[1:], strict=True)}
    return found


def test_table_has_every_filled_slot():
    found = read_cells(table())
    for name in BY_NAME:
        contents = slot_contents(BY_NAME[name]())
        for slot, content in contents.items():
            if slot in SIZES:
                continue
            if slot.startswith("terms."):
                assert slot.removeprefix("terms.") in found[name, "terms"].split(", ")
            else:
                assert found[name, slot] == (content.function or content.numbers)
    rows = {name for name, _ in found}
    assert rows == set(BY_NAME)
    columns = {column for _, column in found}
    assert columns <= {*Algorithm._fields, *(f"critic.{field}" for field in BY_NAME["ppo"]().critic._fields)}
    assert found["grpo", "keep_group"] == ""
    assert found["ppo", "critic"] == "see below"
