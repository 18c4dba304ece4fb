"""Each value has one name, in the records and in the equations, and names that were given up are not used."""

import ast
from doctest import DocTestParser
from pathlib import Path

import pytest

import rljax
from rljax.algorithms import Batch, Rollout
from rljax.models import Packed
from rljax.rollout import Groups, Request, Response, Sequences
from rljax.rollout.judging import Verdicts
from rljax.training import reinforce, update

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
def test_a_value_has_one_name(record):
    """There are only a few names of log-probabilities, and groups have no field that their rollout has."""
    assert FIELDS[record] <= set(record._fields)
    assert not {"parts"} & set(record._fields)
    assert record is not Groups or not set(Groups._fields) & set(Rollout._fields)
    names = {"behaviour_logp", "policy_logp", "old_logp", "ref_logp", "teacher_logp"}
    assert {name for name in record._fields if "logp" in name} <= names


LOGP_OF_OPS = {
    *("behaviour_logp", "policy_logp", "old_logp", "ref_logp", "teacher_logp"),  # as in the records
    *(
        "logp",
        "mean_logp",
        "symbolic_logp",
    ),  # of the trained policy, its mean over a response, of a symbolic model
}


def parameters_of(tree):
    """Names of the parameters of every function in a syntax tree, with the function's name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.Lambda):
            arguments = node.args
            for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
                yield argument.arg, getattr(node, "name", "lambda")


def test_equations_name_log_probabilities_as_their_callers_do():
    found = {}
    for file in sorted((PACKAGE / "ops").rglob("*.py")):
        for name, function in parameters_of(ast.parse(file.read_text())):
            if name.endswith("logp"):
                found.setdefault(name, []).append(f"{file.stem}.{function}")
    assert set(found) == LOGP_OF_OPS, found
    assert "correction.truncated_importance_weight" in found["behaviour_logp"]
    assert "divergence.importance_weighted_k3" in found["behaviour_logp"]


FORMER = {"denominator_logp", "learner_logp", "sampler_logp", "make_lesson_learner", "LearnLesson"}
UNCLEAR_NAMES = {"asked", "given", "said", "there", "told"}
REPOSITORY = PACKAGE.parent
FILES = sorted(file for folder in ("rljax", "experiments", "tests") for file in (REPOSITORY / folder).rglob("*.py"))


def names_in(node):
    """Every name that a node of the syntax tree uses: of a variable, an attribute, a parameter, a function or a class."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name) | ast.keyword(arg=name):
            return {name}
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.alias(asname=name):
            return {name}
        case ast.MatchAs(name=name) | ast.MatchStar(name=name) | ast.ExceptHandler(name=name):
            return {name}
    return set()


def variables_in(node):
    """The variables and parameters that a node of the syntax tree binds."""
    match node:
        case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()) | ast.arg(arg=name):
            return {name}
    return set()


def former_names(tree):
    """Names that were given up, with their lines: complete names anywhere, and words within a variable's name, such as `is_there`.

    `given` of hypothesis, which decorates a test, is another library's name.
    """
    nodes = list(ast.walk(tree))
    decorators = [part for node in nodes if isinstance(node, ast.FunctionDef) for part in node.decorator_list]
    of_hypothesis = {node for part in decorators for node in ast.walk(part) if names_in(node) == {"given"}}
    names = FORMER | UNCLEAR_NAMES
    found = {(name, node.lineno) for node in nodes if node not in of_hypothesis for name in names_in(node) & names}
    return found | {
        (name, node.lineno)
        for node in nodes
        for name in variables_in(node)
        if UNCLEAR_NAMES & set(name.strip("_").split("_"))
    }


def examples_in(tree):
    """The examples of the docstrings of a module, each as a syntax tree."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ">>>" in (
            text := ast.get_docstring(node) or ""
        ):
            yield ast.parse("".join(example.source for example in DocTestParser().get_examples(text)))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.relative_to(REPOSITORY).as_posix())
def test_no_former_name_is_left(file):
    tree = ast.parse(file.read_text())
    assert not former_names(tree)
    assert not set().union(*map(former_names, examples_in(tree)))


def test_no_function_assigns_a_state_to_an_attribute():
    """A new state is returned instead."""
    for file in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
                assert node.attr != "state", (file, node.lineno)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "setattr":
                raise AssertionError((file, node.lineno))


def test_the_checks_find_what_they_look_for():
    tree = ast.parse(
        "def f(asked, *, given=1):\n    run.state = there\n    x.said = told(denominator_logp=1)\n    is_there = 1\n"
    )
    assert {name for name, _ in former_names(tree)} == UNCLEAR_NAMES | {"denominator_logp", "is_there"}
    assert not former_names(ast.parse("@given(x)\ndef test_what_was_said(x):\n    stop_if_asked()\n"))
    (example,) = examples_in(ast.parse('def f():\n    """Text.\n\n    >>> told = []\n    """\n'))
    assert former_names(example) == {("told", 1)}
    assert len(FILES) > 600
    assert {file.relative_to(REPOSITORY).parts[0] for file in FILES} == {"rljax", "experiments", "tests"}
    assert update.make_policy_update is reinforce.make_policy_update
