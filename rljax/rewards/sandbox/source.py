"""Analyze and change the source of the tests before the program runs.

Everything here depends only on the tests, never on the program.
"""

import ast
import bisect
import builtins
import collections
import copy
import datetime
import decimal
import fractions
import functools
import heapq
import itertools
import math
import re
import statistics
import string
import sys
import typing
from collections.abc import Iterable, Sequence
from types import MappingProxyType

_BUILTIN = frozenset(dir(builtins))
_PLAIN_ATTRIBUTES = frozenset(name for kind in (str, bytes, int, float, list, tuple, set, dict) for name in dir(kind))
_CLASS_NAME = re.compile(r"_*[A-Z][A-Za-z0-9]*")
_TYPE_CHECKS = frozenset({"isinstance", "issubclass"})
_EXPECT_ERROR = frozenset({"assertRaises", "assertRaisesRegex"})
# These modules are imported once for all programs, because the fork server imports this module.
_STANDARD = (
    *(math, collections, itertools, functools, fractions, decimal, statistics, copy, datetime, typing),
    *(heapq, bisect, string),
)
_ALIASES = MappingProxyType({"np": "numpy", "pd": "pandas", "nx": "networkx", "plt": "matplotlib", "tf": "tensorflow"})
_PACKAGES = frozenset({*_ALIASES.values(), "pytest", "scipy", "torch", "sympy", "jax", "sklearn", "hypothesis"})
_ORACLE = re.compile(r"assert_\w+|approx\w*|(?:is|all|almost)_?(?:close|equal)|array_equal|raises")
_REFERENCE = re.compile(r"(?:expected|correct|naive|brute_?force|reference|ground_truth|oracle)(?:_\w+)?|ref(?:_\w+)?")


def walk(trees: Iterable[ast.AST]) -> list[ast.AST]:
    """List all nodes of several trees."""
    return [node for tree in trees for node in ast.walk(tree)]


def find_loaded_names(trees: Sequence[ast.Module]) -> set[str]:
    """Find the names that the tests read, except those of builtins.

    Example:
        >>> sorted(find_loaded_names([ast.parse("y = len(f(x))")]))
        ['f', 'x']
    """
    return {node.id for node in walk(trees) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)} - _BUILTIN


def find_bound_names(trees: Sequence[ast.Module]) -> set[str]:
    """Find all names that the tests bind themselves, at any depth.

    Example:
        >>> sorted(find_bound_names([ast.parse("import math as m\\ndef f(x): y = 1")]))
        ['f', 'm', 'x', 'y']
    """
    found = set()
    for node in walk(trees):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                found.add(name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                found.add(name)
            case ast.alias(name=name, asname=other):
                found.add(other or name.partition(".")[0])
            case ast.ExceptHandler(name=str(name)):
                found.add(name)
            case _:
                pass
    return found


def find_builtin_under_test(tests: Sequence[ast.Module]) -> set[str]:
    """Find the builtin function that all tests call, if there is exactly one.

    Example:
        >>> find_builtin_under_test([ast.parse("assert sum(10, 15) == 6"), ast.parse("assert sum(1, 2) == 3")])
        {'sum'}
        >>> find_builtin_under_test([ast.parse("assert max(abs(-2)) == -2")])
        set()
    """
    called = [
        {node.func.id for node in walk([test]) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
        for test in tests
    ]
    common = set.intersection(*called) & _BUILTIN if called else set()
    return common if len(common) == 1 else set()


def find_modules(trees: Sequence[ast.Module], defined: Iterable[str]) -> dict[str, set[str]]:
    """Find the names of standard modules whose attributes the tests use, and these attributes.

    A name that the tests also use in another way, such as a call, is not treated as a module.

    Args:
        trees: the tests.
        defined: the names that are already defined, which are left out.

    Returns:
        Name of a module -> the attributes used.

    Example:
        >>> find_modules([ast.parse("assert math.isclose(f(3), math.pi)\\nassert queue(3).x")], ["f"])["math"] == {"isclose", "pi"}
        True
    """
    attributes: dict[str, set[str]] = {}
    for node in walk(trees):
        match node:
            case ast.Attribute(value=ast.Name(id=name), attr=attribute) if name in sys.stdlib_module_names:
                attributes.setdefault(name, set()).add(attribute)
            case _:
                pass
    roots = {id(node.value) for node in walk(trees) if isinstance(node, ast.Attribute)}
    elsewhere = {node.id for node in walk(trees) if isinstance(node, ast.Name) and id(node) not in roots}
    return {name: used for name, used in attributes.items() if name not in elsewhere | set(defined)}


def list_imports(trees: Sequence[ast.Module]) -> list[ast.stmt]:
    """List the imports in the tests at any depth, except inside a `try`; `import_module("x")` becomes `import x`.

    Example:
        >>> tree = ast.parse("def check(f):\\n    import numpy\\ntry: import os\\nfinally: f()")
        >>> [ast.unparse(statement) for statement in list_imports([tree])]
        ['import numpy']
    """
    guarded = {id(node) for guard in walk(trees) if isinstance(guard, ast.Try) for node in ast.walk(guard)}
    nodes = [node for node in walk(trees) if id(node) not in guarded]
    called = [name for node in nodes if (name := _read_imported_module(node)) is not None]
    return [
        *(
            node
            for node in nodes
            if isinstance(node, ast.Import | ast.ImportFrom) and getattr(node, "module", "") != "__future__"
        ),
        *(ast.fix_missing_locations(ast.Import([ast.alias(name)])) for name in called),
    ]


def _read_imported_module(node: ast.AST) -> str | None:
    """Return the module that `__import__("x")` or `importlib.import_module("x")` names."""
    match node:
        case ast.Call(
            func=ast.Name(id="__import__" | "import_module") | ast.Attribute(attr="import_module"),
            args=[ast.Constant(value=str(name)), *_],
        ):
            return name
        case _:
            return None


def find_oracles(setup: ast.Module, tests: Sequence[ast.Module], names: Iterable[str], entry_point: str) -> dict[str, str]:
    """Find the undefined names that decide the tests, such as `isclose`. The program must not supply them.

    These are names of the standard library, package names and aliases such as `np`, names such as `allclose`, functions that judge
    another function's result, such as `check` in `assert check(f(3), 42)`, and references to compare with, such as `expected` in
    `f(3) == expected(3)`.
    The function under test is left out: the entry point, or, if there is none, a name that some test uses without using any other
    name that the program can define.

    Args:
        setup: the statements before the tests.
        tests: the tests.
        names: the names that neither the tests nor the setup define.
        entry_point: the name of the function under test; empty if unknown.

    Returns:
        Name -> the module that must supply it; an empty string if no such module is known.

    Example:
        >>> test = ast.parse("assert isclose(f(2), np.pi)\\nassert approx(f(3)) == 1")
        >>> find_oracles(ast.parse(""), [test], ["isclose", "np", "approx", "f"], "")
        {'approx': '', 'isclose': 'math', 'np': 'numpy'}
        >>> find_oracles(ast.parse(""), [ast.parse("assert gcd(4, 6) == 2")], ["gcd"], "")
        {}
    """
    judges = _find_judges([setup, *tests], set(names))
    known = {name: "" if (module := _find_origin(name)) is None and name in judges else module for name in sorted(names)}
    known = {name: module for name, module in known.items() if module is not None and name != entry_point}
    others = set(names) - set(known)
    setup_names = find_bound_names([setup])
    found = dict(known)
    for test in tests if not entry_point else ():
        trees = [test, setup] if setup_names & find_loaded_names([test]) else [test]
        used = find_loaded_names(trees)
        for name in set(found) & used:
            if _ORACLE.fullmatch(name) is None and not (others & used or _encloses(trees, name, set(known) - {name})):
                del found[name]
    return {
        name: module
        for name, module in found.items()
        if module not in _PACKAGES or _has_attribute_use(name, [setup, *tests])
    }


def _find_judges(trees: Sequence[ast.Module], names: set[str]) -> set[str]:
    """Find the functions that alone decide a test by judging another function's result, and the references to compare with."""
    found = set()
    for tree in trees:
        asserts = any(_is_assertion(node) for node in ast.walk(tree))
        for node in ast.walk(tree):
            match node:
                case ast.Assert(test=ast.UnaryOp(op=ast.Not(), operand=tested)) | ast.Assert(test=tested):
                    decides = _find_called([tested], names)
                case ast.Expr(value=tested) if not asserts:
                    decides = _find_called([tested], names)
                case ast.Compare(left=left, comparators=others) if len(sides := _find_called([left, *others], names)) > 1:
                    found |= {name for name in sides if _REFERENCE.fullmatch(name)}
                    continue
                case _:
                    continue
            found |= {name for name in decides if _encloses([tree], name, names - {name})}
    return {name for name in found if not _CLASS_NAME.fullmatch(name)}


def _find_called(nodes: Sequence[ast.expr], names: set[str]) -> set[str]:
    """Return which of `names` the nodes call directly."""
    return {node.func.id for node in nodes if isinstance(node, ast.Call) and _is_named(node.func, names)}  # type: ignore[attr-defined]


def _find_origin(name: str) -> str | None:
    """Return a name's module; an empty string for a name such as `allclose` whose module is unknown, and None for other names."""
    if name in _ALIASES or name in _PACKAGES:
        return _ALIASES.get(name, name)
    standard = next((module.__name__ for module in _STANDARD if name in vars(module) and not name.startswith("_")), None)
    return "" if standard is None and _ORACLE.fullmatch(name) else standard


def _has_attribute_use(name: str, trees: Sequence[ast.Module]) -> bool:
    """True if the tests read an attribute of the name."""
    return any(isinstance(node, ast.Attribute) and _is_named(node.value, {name}) for node in walk(trees))


def _is_named(node: ast.AST, names: set[str]) -> bool:
    return isinstance(node, ast.Name) and node.id in names


def _encloses(trees: Sequence[ast.Module], name: str, others: set[str]) -> bool:
    """True if a call of the function `name` uses one of `others` in its positional arguments."""
    calls = [node for node in walk(trees) if isinstance(node, ast.Call) and _is_named(node.func, {name})]
    return any(_is_named(inner, others) for call in calls for argument in call.args for inner in ast.walk(argument))


def find_class_names(trees: Sequence[ast.Module], names: Iterable[str]) -> set[str]:
    """Find the names that the tests treat as classes.

    These are names in type checks, and names in CapWords that the tests use on the right of `in` or whose attributes they read,
    either on the class or on the result of calling it. Attributes that plain data also has do not count.

    Args:
        trees: the tests.
        names: the names to consider.

    Returns:
        The names that the tests treat as classes.

    Example:
        >>> tree = ast.parse("s = Stack()\\ns.push(3)\\nassert Extract([1]) == 1\\nassert isinstance(p, point)")
        >>> sorted(find_class_names([tree], ["Stack", "Extract", "point", "p"]))
        ['Stack', 'point']
    """
    nodes = walk(trees)
    made: dict[str, str] = {}
    for node in nodes:
        match node:
            case ast.Assign(targets=[ast.Name(id=variable)], value=ast.Call(func=ast.Name(id=name))):
                made[variable] = name
            case ast.withitem(context_expr=ast.Call(func=ast.Name(id=name)), optional_vars=ast.Name(id=variable)):
                made[variable] = name
            case _:
                pass
    checked = {name for node in nodes for name in _list_checked_types(node)}
    used = {name for node in nodes for name in _list_used_objects(node, made)}
    return {name for name in names if name in checked or (name in used and _CLASS_NAME.fullmatch(name))}


def _list_checked_types(node: ast.AST) -> list[str]:
    """List the names that a node uses as types, as in `isinstance(x, A)` and `type(x) is A`."""
    match node:
        case ast.Call(func=ast.Name(id=name), args=[_, kinds]) if name in _TYPE_CHECKS:
            return [part.id for part in ast.walk(kinds) if isinstance(part, ast.Name)]
        case ast.Compare(left=ast.Call(func=ast.Name(id="type")), comparators=[ast.Name(id=name)]):
            return [name]
        case _:
            return []


def _list_used_objects(node: ast.AST, made: dict[str, str]) -> list[str]:
    """List the names that a node uses as objects; `made` maps a variable to the name whose call is its value."""
    match node:
        case ast.Attribute(value=subject, attr=attribute) if attribute not in _PLAIN_ATTRIBUTES:
            subjects = [subject]
        case ast.Compare(ops=operators, comparators=comparators):
            pairs = zip(operators, comparators, strict=True)
            subjects = [right for operator, right in pairs if isinstance(operator, ast.In | ast.NotIn)]
        case _:
            return []
    found = []
    for subject in subjects:
        match subject:
            case ast.Call(func=ast.Name(id=name)):
                found.append(name)
            case ast.Name(id=name):
                found.append(made.get(name, name))
            case _:
                pass
    return found


def can_fail(trees: Iterable[ast.AST]) -> bool:
    """Decide whether the tests contain anything that can fail a program: an assertion, `raise`, `try` or `exit`.

    Example:
        >>> can_fail([ast.parse("assert f(2) == 4")]), can_fail([ast.parse("print(f(2) == 4)")])
        (True, False)
    """
    return any(_is_assertion(node) or isinstance(node, ast.Raise | ast.Try) or _exits(node) for node in walk(trees))


def _exits(node: ast.AST) -> bool:
    match node:
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return name in ("exit", "quit", "_exit", "abort", "fail")
        case _:
            return False


def append_test_calls(tree: ast.Module) -> str | None:
    """Append calls of the tests that a script defines but does not call: functions `test_...` and `unittest` test cases.

    Args:
        tree: the script; it is changed.

    Returns:
        The name of a test that only pytest could call; None if there is no such test.

    Example:
        >>> tree = ast.parse("def test_f(): assert f(2) == 4")
        >>> append_test_calls(tree), ast.unparse(tree.body[-1])
        (None, 'test_f()')
    """
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    defined = [
        node
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name not in used
    ]
    for node in defined:
        match node:
            case ast.FunctionDef(name=name, args=ast.arguments(posonlyargs=[], args=[], kwonlyargs=[])) if name.startswith(
                "test"
            ):
                calls = [f"{name}()"]
            case ast.ClassDef(name=name, bases=bases) if any(ast.unparse(base).endswith("TestCase") for base in bases):
                methods = (inner.name for inner in node.body if isinstance(inner, ast.FunctionDef))
                calls = [f"{name}({method!r}).debug()" for method in methods if method.startswith("test")]
            case _ if node.name.lower().startswith("test") and can_fail([node]):
                return node.name
            case _:
                continue
        tree.body += [statement for call in calls for statement in ast.parse(call).body]
    return None


def instrument(tree: ast.Module) -> ast.Module:
    """Change the source of a test so that it reports how it handles exceptions, types and arguments.

    An exception handler first calls `__handled__()`. The object of a `with` statement becomes `__guarded__(..., asserts)`, where
    `asserts` is True if the body of the statement contains an assertion. A call of `assertRaises` with a function becomes
    `__settled__(__unhandled__(), ...)`: `__unhandled__()` lists the exceptions that the test has yet to handle, and
    `__settled__` forgets the exceptions that the call adds. The condition of an assertion becomes `__answer__(...)`. `type(x)` and
    `x.__class__` become `__type__(x)`. A variable that is passed to a function and then compared with a constant is passed as
    `__examined__(variable)`.

    Args:
        tree: the test; it is changed.

    Returns:
        The same tree.

    Example:
        >>> print(ast.unparse(instrument(ast.parse("f(xs)\\nassert xs == [1]\\nassert type(y) == list"))))
        f(__examined__(xs))
        assert __answer__(xs == [1])
        assert __answer__(__type__(y) == list)
    """
    return ast.fix_missing_locations(_Instrumenter(tree).visit(tree))


def wrap_assertions(tree: ast.Module) -> int:
    """Wrap each assertion so that it is counted and does not end the test. Constants such as `assert True` stay unchanged.

    Args:
        tree: the source of a `check`; it is changed: each assertion becomes the body of `with __assertion__(number):`.

    Returns:
        The number of assertions.

    Example:
        >>> tree = ast.parse("assert f(1)\\nassert False"); wrap_assertions(tree); print(ast.unparse(tree))
        1
        with __assertion__(0):
            assert f(1)
        assert False
    """
    counter = _AssertionWrapper()
    ast.fix_missing_locations(counter.visit(tree))
    return counter.count


def _call(name: str, *arguments: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(name, ast.Load()), list(arguments), [])


class _AssertionWrapper(ast.NodeTransformer):
    count = 0

    def visit_Assert(self, node: ast.Assert) -> ast.stmt:
        if isinstance(node.test, ast.Constant):
            return node
        self.count += 1
        return ast.With([ast.withitem(_call("__assertion__", ast.Constant(self.count - 1)))], [node])


class _Instrumenter(ast.NodeTransformer):
    def __init__(self, tree: ast.Module) -> None:
        self._examined = _find_examined_arguments(tree)

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return _call("__examined__", node) if id(node) in self._examined else node

    def visit_Assert(self, node: ast.Assert) -> ast.stmt:
        self.generic_visit(node)
        if not isinstance(node.test, ast.Constant):
            node.test = _call("__answer__", node.test)
        return node

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> ast.ExceptHandler:
        self.generic_visit(node)
        node.body.insert(0, ast.Expr(_call("__handled__")))
        return node

    def visit_With(self, node: ast.With) -> ast.With:
        asserts = ast.Constant(any(_is_assertion(part) for statement in node.body for part in ast.walk(statement)))
        self.generic_visit(node)
        for item in node.items:
            item.context_expr = _call("__guarded__", item.context_expr, asserts)
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        self.generic_visit(node)
        return _call("__type__", node.value) if node.attr == "__class__" and isinstance(node.ctx, ast.Load) else node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        match node:
            case ast.Call(func=ast.Name(id="type"), args=[value], keywords=[]):
                return _call("__type__", value)
            case ast.Call(func=ast.Attribute(attr=attribute), args=[_, _, *_]) if attribute in _EXPECT_ERROR:
                return _call("__settled__", _call("__unhandled__"), node)
            case _:
                return node


def _find_examined_arguments(tree: ast.Module) -> set[int]:
    """Return the `id`s of argument nodes whose variables are otherwise used only in comparisons with constants."""
    nodes = list(ast.walk(tree))
    calls = [node for node in nodes if isinstance(node, ast.Call) and not _is_builtin(node.func)]
    arguments = {id(argument) for call in calls for argument in (*call.args, *(word.value for word in call.keywords))}
    compared = {
        id(node) for comparison in nodes if isinstance(comparison, ast.Compare) for node in _list_compared_nodes(comparison)
    }
    uses: dict[str, list[int]] = {}
    for node in nodes:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            uses.setdefault(node.id, []).append(id(node))
    examined: set[int] = set()
    for node_ids in uses.values():
        others = {node_id for node_id in node_ids if node_id not in arguments}
        if others and others <= compared:
            examined |= {node_id for node_id in node_ids if node_id in arguments}
    return examined


def _is_assertion(node: ast.AST) -> bool:
    match node:
        case ast.Assert():
            return True
        case ast.Call(func=ast.Attribute(attr=name)):
            return name.startswith("assert")
        case _:
            return False


def _is_builtin(function: ast.expr) -> bool:
    return isinstance(function, ast.Name) and function.id in _BUILTIN


def _list_compared_nodes(node: ast.Compare) -> list[ast.AST]:
    """List the nodes of a comparison's only side that is not constant; none if several sides are not constant."""
    sides = [side for side in (node.left, *node.comparators) if not _is_constant(side)]
    return list(ast.walk(sides[0])) if len(sides) == 1 else []


def _is_constant(node: ast.expr) -> bool:
    try:
        ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False
    return True
