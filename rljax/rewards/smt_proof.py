"""Proofs in propositional logic and linear arithmetic, written in SMT-LIB's syntax; Z3 decides each step.

A statement declares constants, asserts premises, and names a goal. The premises are numbered 1, 2, ..., and the steps of a proof
continue their numbers. A statement, and the two steps of its proof:

    (declare-const p Bool) (declare-const x Real) (assert (=> p (< x 3))) (assert p) (prove (< x 4))
    3. (< x 3) by 1, 2
    4. (< x 4) by 3

Z3 could prove many goals in one step. A proof must spell out its steps, so a step may use at most two earlier lines. A step must
also not be longer than the statement's longest formula, so premises cannot be collected in one long conjunction.
"""

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple

from rljax.importing import import_optional

MOST_PREMISES = 2
"""Largest number of earlier lines that a step may use."""
MOST_TOKENS, MOST_DEPTH = 2_000, 50
"""Largest number of tokens in a statement or step, and the deepest nesting that it may have."""
RESOURCES = 1_000_000
"""Z3's limit for one step, in its own units, so that verdicts do not depend on the machine's speed."""
Formula = str | list[Any]
"""A name or a number, or the list of formulas inside parentheses."""
_STEP = re.compile(r"[ \t]*([0-9]{1,4})\.[ \t]*([^\n]*?)[ \t]+by[ \t]+([0-9]{1,4}(?:[ \t]*,[ \t]*[0-9]{1,4})*)[ \t]*")
_NUMBER = re.compile(r"-?[0-9]{1,18}(?:\.[0-9]{1,18})?")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SORTS = ("Bool", "Int", "Real")


class Statement(NamedTuple):
    """A statement to prove."""

    sorts: Mapping[str, str]
    """Constant -> Bool, Int or Real."""
    premises: Sequence[Formula]
    """Formulas that the proof may assume."""
    goal: Formula
    """The formula to prove."""


class Step(NamedTuple):
    """A line of a proof."""

    number: int
    """Number of the line; the premises have the first numbers."""
    formula: str
    """The formula that the line claims, as text."""
    premises: tuple[int, ...]
    """Numbers of the earlier lines from which the formula should follow."""


def tokens_of(text: str) -> list[str]:
    """Split a text in SMT-LIB's syntax into parentheses, names and numbers; comments begin with a semicolon.

    Example:
        >>> tokens_of("(=> p q) ; a comment")
        ['(', '=>', 'p', 'q', ')']
    """
    return re.findall(r"[()]|[^\s();]+", re.sub(r";[^\n]*", "", text))


def read_formulas(text: str) -> list[Formula]:
    """Read a sequence of formulas.

    Raises:
        ValueError: parentheses do not match, or the text is too long or nested too deeply.

    Example:
        >>> read_formulas("p (and p (not q))")
        ['p', ['and', 'p', ['not', 'q']]]
    """
    tokens, open_lists = tokens_of(text), [[]]
    if len(tokens) > MOST_TOKENS:
        raise ValueError(f"the text has {len(tokens)} words and parentheses; at most {MOST_TOKENS} are allowed")
    for token in tokens:
        if token == "(":
            open_lists.append([])
        elif token == ")":
            closed = open_lists.pop()
            if not open_lists:
                raise ValueError("a closing parenthesis has no opening one")
            open_lists[-1].append(closed)
        else:
            open_lists[-1].append(token)
        if len(open_lists) > MOST_DEPTH:
            raise ValueError(f"its parentheses are nested more than {MOST_DEPTH} deep")
    if len(open_lists) > 1:
        raise ValueError("a parenthesis is not closed")
    return open_lists[0]


def read_statement(text: str) -> Statement:
    """Read a statement from its text.

    Raises:
        ValueError: an entry is not a declaration, a premise or a goal, or there is not exactly one goal.

    Example:
        >>> read_statement("(declare-const p Bool) (assert p) (prove (or p p))")
        Statement(sorts={'p': 'Bool'}, premises=['p'], goal=['or', 'p', 'p'])
    """
    sorts, premises, goals = {}, [], []
    for entry in read_formulas(text):
        match entry:
            case ["declare-const", str(name), str(sort)] if _NAME.fullmatch(name) and sort in _SORTS and name not in sorts:
                sorts[name] = sort
            case ["assert", formula]:
                premises.append(formula)
            case ["prove", formula]:
                goals.append(formula)
            case _:
                raise ValueError(
                    f"{_as_text(entry):.80} is none of these: (declare-const NAME Bool | Int | Real), each name once; "
                    "(assert FORMULA); (prove FORMULA)"
                )
    if len(goals) != 1:
        raise ValueError(f"the statement has {len(goals)} goals (prove FORMULA); give one")
    return Statement(sorts, premises, goals[0])


def read_steps(text: str) -> list[Step]:
    """Read the steps of a proof: lines such as `3. (or p q) by 1, 2`; other lines are ignored.

    Example:
        >>> read_steps("From the second line:\\n3. q by 1, 2\\n4. (or q r) by 3")
        [Step(number=3, formula='q', premises=(1, 2)), Step(number=4, formula='(or q r)', premises=(3,))]
    """
    found = [_STEP.fullmatch(line) for line in text.splitlines()]
    return [Step(int(step[1]), step[2], tuple(int(n) for n in step[3].split(","))) for step in found if step]


def find_proof_fault(statement: str, proof: str) -> str:
    """Check a proof, and describe its first fault.

    Args:
        statement: the text of the statement.
        proof: a text with the steps of a proof.

    Returns:
        "" if the proof is right, else a description of its first fault.

    Raises:
        ValueError: the statement cannot be read.

    Example:
        >>> modus_ponens = "(declare-const p Bool) (declare-const q Bool) (assert (=> p q)) (assert p) (prove q)"
        >>> find_proof_fault(modus_ponens, "3. q by 1, 2"), find_proof_fault(modus_ponens, "3. q by 1")  # doctest: +SKIP
        ('', 'step 3 does not follow from 1')
    """
    task = read_statement(statement)
    lines = [to_z3(formula, task.sorts) for formula in (*task.premises, task.goal)]
    for line in lines:
        _check_truth_value(line)
    goal, longest = lines.pop(), max(len(tokens_of(_as_text(formula))) for formula in (*task.premises, task.goal))
    steps = read_steps(proof)
    for step in steps:
        used = ", ".join(map(str, step.premises))
        if step.number != len(lines) + 1:
            return f"step {step.number} should have the number {len(lines) + 1}"
        if len(step.premises) > MOST_PREMISES or not all(0 < number < step.number for number in step.premises):
            return f"step {step.number} uses {used}; at most {MOST_PREMISES} earlier lines are allowed"
        if len(tokens_of(step.formula)) > longest:
            return f"step {step.number} is longer than every formula of the statement"
        try:
            (formula,) = read_formulas(step.formula)
            line = _check_truth_value(to_z3(formula, task.sorts))
        except ValueError as error:
            return f"step {step.number} cannot be read: {error}"
        if not follows([lines[number - 1] for number in step.premises], line):
            return f"step {step.number} does not follow from {used}"
        lines.append(line)
    return "" if steps and lines[-1].eq(goal) else "the last step is not the goal"


def follows(premises: Sequence[Any], conclusion: Any) -> bool:
    """Decide whether a Z3 expression follows from others; False if Z3 cannot decide this within `RESOURCES`."""
    z3 = import_optional("z3", "z3-solver")
    solver = z3.Solver()
    solver.set("rlimit", RESOURCES)
    solver.add(*premises, z3.Not(conclusion))
    return solver.check() == z3.unsat


def to_z3(formula: Formula, sorts: Mapping[str, str]) -> Any:
    """Translate a formula into a Z3 expression.

    Args:
        formula: a formula.
        sorts: constant -> its sort: Bool, Int or Real.

    Raises:
        ValueError: a name is not declared, an operator is unknown or has the wrong arguments, or a product is not linear.
    """
    if isinstance(formula, str):
        return _translate_atom(formula, sorts)
    z3, head, parts = import_optional("z3", "z3-solver"), formula[:1], [to_z3(part, sorts) for part in formula[1:]]
    if parts and isinstance(head[0], str):
        for is_of_sort, operators in ((z3.is_bool, LOGIC), (z3.is_arith, ARITHMETIC)):
            if head[0] in operators and all(map(is_of_sort, parts)):
                least, most, build = operators[head[0]]
                if least <= len(parts) <= most:
                    return build(z3, *parts)
    raise ValueError(f"{_as_text(formula):.80} is not a formula of propositional logic or linear arithmetic")


def _translate_atom(name: str, sorts: Mapping[str, str]) -> Any:
    """Translate a constant or a number."""
    z3 = import_optional("z3", "z3-solver")
    if name in ("true", "false"):
        return z3.BoolVal(name == "true")
    if name in sorts:
        return z3.Const(name, {"Bool": z3.BoolSort, "Int": z3.IntSort, "Real": z3.RealSort}[sorts[name]]())
    if not _NUMBER.fullmatch(name):
        raise ValueError(f"{name:.40} is not declared")
    return z3.RealVal(name) if "." in name else z3.IntVal(name)


def _multiply(z3: Any, left: Any, right: Any) -> Any:
    """Multiply two expressions, one of which must be a number, so that the product is linear."""
    if not any(z3.is_int_value(part) or z3.is_rational_value(part) for part in (left, right)):
        raise ValueError(f"{left} * {right} is not linear")
    return left * right


MOST_ARGUMENTS = 100
"""Largest number of arguments of an operator."""
Operators = Mapping[str, tuple[int, int, Callable[..., Any]]]
"""Name of an operator -> (fewest arguments, most arguments, function from the Z3 module and the arguments to an expression)."""
LOGIC: Operators = {
    "not": (1, 1, lambda z3, part: z3.Not(part)),
    "and": (1, MOST_ARGUMENTS, lambda z3, *parts: z3.And(*parts)),
    "or": (1, MOST_ARGUMENTS, lambda z3, *parts: z3.Or(*parts)),
    "=>": (2, 2, lambda z3, left, right: z3.Implies(left, right)),
    "xor": (2, 2, lambda z3, left, right: z3.Xor(left, right)),
    "=": (2, 2, lambda _, left, right: left == right),
    "distinct": (2, 2, lambda z3, left, right: z3.Xor(left, right)),
}
"""Operators on truth values."""
ARITHMETIC: Operators = {
    "=": (2, 2, lambda _, left, right: left == right),
    "distinct": (2, 2, lambda _, left, right: left != right),
    "<": (2, 2, lambda _, left, right: left < right),
    "<=": (2, 2, lambda _, left, right: left <= right),
    ">": (2, 2, lambda _, left, right: left > right),
    ">=": (2, 2, lambda _, left, right: left >= right),
    "+": (2, MOST_ARGUMENTS, lambda _, *parts: reduce(operator.add, parts)),
    "-": (1, MOST_ARGUMENTS, lambda _, first, *rest: reduce(operator.sub, rest, first) if rest else -first),
    "*": (2, 2, _multiply),
}
"""Operators on numbers."""


def _check_truth_value(expression: Any) -> Any:
    """Return the expression if it has a truth value.

    Raises:
        ValueError: the expression is a number.
    """
    if not import_optional("z3", "z3-solver").is_bool(expression):
        raise ValueError(f"{expression} is a number, not a formula with a truth value")
    return expression


def _as_text(formula: Formula) -> str:
    return formula if isinstance(formula, str) else f"({' '.join(map(_as_text, formula))})"
