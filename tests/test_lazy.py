"""Imports load few modules, and names are imported on first use."""

import subprocess
import sys

import pytest

import rljax.algorithms.dapo
from rljax import algorithms, rewards, tasks
from rljax.algorithms import plan_credit
from rljax.algorithms.dapo import dapo
from rljax.book.errata import Evidence
from rljax.data import iterated_addition
from rljax.lazy import LazyTable
from rljax.models.families import FAMILIES
from rljax.rewards.sandbox import Verdict

COUNT = "import sys, {module}; print(sum(name.partition('.')[0] == 'rljax' for name in sys.modules))"
MAX_MODULES = {
    "rljax": 3,
    "rljax.algorithms": 4,
    "rljax.rewards": 8,
    "rljax.tasks": 10,
    "rljax.training": 4,
    "rljax.training.loop": 168,
    "rljax.cli": 95,
}
"""Largest number of rljax modules that an import may load; lower these limits, never raise them."""


@pytest.mark.parametrize(("module", "most"), MAX_MODULES.items())
def test_an_import_loads_few_modules(module, most):
    found = subprocess.run([sys.executable, "-c", COUNT.format(module=module)], capture_output=True, text=True, check=True)
    assert int(found.stdout) <= most


@pytest.mark.parametrize("table", [algorithms.BY_NAME, rewards.BY_NAME, tasks.TASKS])
def test_every_name_in_a_table_resolves_to_its_object(table):
    assert len(table) == len(list(table)) > 5
    for name, value in table.items():
        assert callable(value), name
        module, _, attribute = table.sources[name].partition(":")
        assert (value.__module__, value.__name__) == (module, attribute)


def test_only_the_lookup_of_a_known_name_imports_its_module():
    table = LazyTable({"gone": "no_such_module:name"})
    assert "gone" in table
    assert "other" not in table
    with pytest.raises(KeyError, match="other"):
        table["other"]
    with pytest.raises(ModuleNotFoundError):
        table["gone"]


@pytest.mark.parametrize("first", ["rljax.algorithms", "rljax.algorithms.dapo", "rljax.algorithms.forking_tokens"])
def test_a_module_does_not_replace_the_algorithm_of_the_same_name(first):
    assert rljax.algorithms.dapo is dapo is algorithms.BY_NAME["dapo"]
    program = f"import {first}, rljax.algorithms; print(callable(rljax.algorithms.dapo))"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout == "True\n"


def test_dunder_all_contains_every_algorithm():
    assert set(algorithms.BY_NAME) < set(algorithms.__all__) <= set(dir(algorithms))
    assert all(getattr(algorithms, name) is not None for name in algorithms.__all__)


@pytest.mark.parametrize(
    ("package", "earlier", "present"),
    [
        (rljax.algorithms, "Past", "EarlierRewards"),
        (rljax.ops, "regularise", "regularization"),
        (rljax.ops, "later_tokens", "discounted_sums"),
        (rljax.models, "not_saved", "refuse_to_save"),
        (rljax.rollout, "demonstrated", "sequences_of_demonstrations"),
        (rljax.parallel, "together", "run_together"),
        (rljax.parallel, "with_places", "add_shardings"),
        (rljax.options, "hierarchy", "plans_and_answers"),
        (plan_credit, "plan_then_answer", "nested_group_advantage"),
        (rljax.models.packed, "MEMBERS", "SEGMENTS_PER_PROMPT"),
        (rljax.models.adapters, "scoring_params", "unmerged_params"),
        (rljax.options.distillation, "make_comparison", "make_forward"),
        (rljax.options.span_distributions, "make_comparison", "make_forward"),
        (iterated_addition, "iteration", "sample_problems"),
        (iterated_addition, "lapses", "add_errors"),
    ],
)
def test_an_earlier_name_works_with_a_warning(package, earlier, present):
    with pytest.warns(DeprecationWarning, match=rf"{earlier} is now {package.__name__}.{present}; .* next version"):
        assert getattr(package, earlier) is getattr(package, present)
    assert earlier not in dir(package)


@pytest.mark.parametrize(
    ("record", "earlier", "present"),
    [
        (Verdict((1.0, 0.0), "done", ""), "shares", "pass_rates"),
        (Evidence("1 + 1 = 2", confirms=True), "holds", "confirms"),
        (FAMILIES["llama"], "classes", "class_prefix"),
        (FAMILIES["llama"], "neutral", "supported_values"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_an_earlier_field_can_be_read_and_set_with_a_warning(record, earlier, present):
    kind = type(record)
    with pytest.warns(
        DeprecationWarning, match=rf"^{kind.__name__}.{earlier} is now {kind.__name__}.{present}; .* next version"
    ):
        assert getattr(record, earlier) is getattr(record, present)
    fields = {name: getattr(record, name) for name in kind.__match_args__}
    with pytest.warns(DeprecationWarning, match=rf"^the argument {earlier} of {kind.__name__}\.__\w+__ is now {present}; "):
        assert kind(**{earlier if name == present else name: value for name, value in fields.items()}) == record
    if isinstance(record, tuple):
        with pytest.warns(DeprecationWarning, match=rf"^the argument {earlier} of .* is now {present}; "):
            assert getattr(record._replace(**{earlier: None}), present) is None


def test_a_field_cannot_be_set_under_both_names():
    with pytest.raises(TypeError, match="unexpected keyword argument 'shares'"):
        Verdict(pass_rates=(1.0,), shares=(1.0,), ended="done", reason="")
