"""Tests of naming: each value has the same name in all records and equations, and abandoned names are not used."""

import ast
from doctest import DocTestParser
from pathlib import Path

import pytest

import rljax
from rljax.algorithms import Batch, Rollout
from rljax.models import Packed
from rljax.rollout import Groups, Request, Response, Sequences
from rljax.rollout.judging import Verdicts
from rljax.training import rl_phase, update

PACKAGE = Path(rljax.__file__).parent

FIELDS = {
    Request: {"prompt_tokens", "prompt_id", "group"},
    Response: {"prompt_id", "group", "tokens", "mask", "behaviour_logp", "policy_logp", "finish", "version", "turns"},
    Verdicts: {"rewards", "valid", "reward_parts", "correct"},
    Rollout: {"mask", "behaviour_logp", "policy_logp", "truncated", "rewards", "valid", "reward_parts", "correct"},
    Groups: {"rollout", "prompt_ids", "prompt_tokens", "tokens", "attention", "version", "turns"},
    Sequences: {"prompt_tokens", "tokens", "attention", "policy_logp"},
    Packed: {"tokens", "policy_logp"},
    Batch: {"mask", "policy_logp", "old_logp"},
}


@pytest.mark.parametrize("record", FIELDS, ids=lambda record: record.__name__)
def test_records_use_the_same_names(record):
    """Records contain the expected fields, log-probabilities have few names, and `Groups` repeats no field of `Rollout`."""
    assert FIELDS[record] <= set(record._fields)
    assert not {"parts"} & set(record._fields)
    assert record is not Groups or not set(Groups._fields) & set(Rollout._fields)
    names = {"behaviour_logp", "policy_logp", "old_logp", "ref_logp", "teacher_logp"}
    assert {name for name in record._fields if "logp" in name} <= names


LOGP_OF_OPS = {
    # The records use the same names.
    *("behaviour_logp", "policy_logp", "old_logp", "ref_logp", "teacher_logp"),
    # Under the trained policy; its mean over a response; under a symbolic model.
    *("logp", "mean_logp", "symbolic_logp"),
}


def parameters_in(tree):
    """Yield (parameter name, function name) for every parameter of every function in a syntax tree."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.Lambda):
            arguments = node.args
            for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
                yield argument.arg, getattr(node, "name", "lambda")


def test_equations_use_known_names_for_log_probabilities():
    found = {}
    for file in sorted((PACKAGE / "ops").rglob("*.py")):
        for name, function in parameters_in(ast.parse(file.read_text())):
            if name.endswith("logp"):
                found.setdefault(name, []).append(f"{file.stem}.{function}")
    assert set(found) == LOGP_OF_OPS, found
    assert "correction.truncated_importance_weight" in found["behaviour_logp"]
    assert "divergence.importance_weighted_k3" in found["behaviour_logp"]


ABANDONED_NAMES = {"denominator_logp", "learner_logp", "sampler_logp", "make_lesson_learner", "LearnLesson"}
UNCLEAR_NAMES = {"asked", "given", "said", "there", "told"}
REPOSITORY = PACKAGE.parent
FILES = sorted(file for folder in ("rljax", "experiments", "tests") for file in (REPOSITORY / folder).rglob("*.py"))


def names_in(node):
    """Return the names in a syntax-tree node: of variables, attributes, parameters, functions or classes."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name) | ast.keyword(arg=name):
            return {name}
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.alias(asname=name):
            return {name}
        case ast.MatchAs(name=name) | ast.MatchStar(name=name) | ast.ExceptHandler(name=name):
            return {name}
    return set()


def variables_in(node):
    """Return the variables, attributes and parameters that a syntax-tree node binds."""
    match node:
        case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()) | ast.arg(arg=name):
            return {name}
    return set()


def abandoned_names_in(tree):
    """Return the abandoned names in a tree, with their lines.

    A variable name is also abandoned if it contains an unclear word, such as `is_there`. The decorator `given` is allowed,
    because it belongs to Hypothesis.
    """
    nodes = list(ast.walk(tree))
    decorators = [part for node in nodes if isinstance(node, ast.FunctionDef) for part in node.decorator_list]
    allowed = {node for part in decorators for node in ast.walk(part) if names_in(node) == {"given"}}
    names = ABANDONED_NAMES | UNCLEAR_NAMES
    found = {(name, node.lineno) for node in nodes if node not in allowed for name in names_in(node) & names}
    return found | {
        (name, node.lineno)
        for node in nodes
        for name in variables_in(node)
        if UNCLEAR_NAMES & set(name.strip("_").split("_"))
    }


def examples_in(tree):
    """Yield the doctest examples of each docstring in a module, as a syntax tree."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ">>>" in (
            text := ast.get_docstring(node) or ""
        ):
            yield ast.parse("".join(example.source for example in DocTestParser().get_examples(text)))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.relative_to(REPOSITORY).as_posix())
def test_abandoned_names_are_not_used(file):
    tree = ast.parse(file.read_text())
    assert not abandoned_names_in(tree)
    assert not set().union(*map(abandoned_names_in, examples_in(tree)))


def test_state_attributes_are_never_assigned():
    """Functions return a new state instead."""
    for file in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
                assert node.attr != "state", (file, node.lineno)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "setattr":
                raise AssertionError((file, node.lineno))


def test_abandoned_names_are_detected():
    tree = ast.parse(
        "def f(asked, *, given=1):\n    run.state = there\n    x.said = told(denominator_logp=1)\n    is_there = 1\n"
    )
    assert {name for name, _ in abandoned_names_in(tree)} == UNCLEAR_NAMES | {"denominator_logp", "is_there"}
    assert not abandoned_names_in(ast.parse("@given(x)\ndef test_what_was_said(x):\n    stop_if_asked()\n"))
    (example,) = examples_in(ast.parse('def f():\n    """Text.\n\n    >>> told = []\n    """\n'))
    assert abandoned_names_in(example) == {("told", 1)}
    assert len(FILES) > 600
    assert {file.relative_to(REPOSITORY).parts[0] for file in FILES} == {"rljax", "experiments", "tests"}
    assert update.make_policy_update is rl_phase.make_policy_update
