"""Arithmetic problems: Python's own parser checks every step, and the two splits must not overlap."""

import ast
import itertools
import operator
from collections import Counter
from dataclasses import replace

import pytest

from rljax.data import arithmetic as module
from rljax.data.arithmetic import ALPHABET, arithmetic, unfinished
from rljax.data.heldout import is_heldout
from rljax.errors import InputError

SETTINGS = [
    {},
    {"operators": "+-", "digits": 2},
    {"operators": "+-*", "operands": (2, 5), "digits": 3},
    {"operators": "+-", "operands": (3, 6), "nesting": 1},
    {"operators": "-*", "operands": (4, 7), "nesting": 2, "digits": 2},
]
SYMBOLS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*"}
APPLY = {"+": operator.add, "-": operator.sub, "*": operator.mul}


def evaluate(node, steps):
    """Evaluate a parse tree, and append each operation to `steps`."""
    if isinstance(node, ast.Constant):
        return node.value
    left, right = evaluate(node.left, steps), evaluate(node.right, steps)
    symbol = SYMBOLS[type(node.op)]
    result = APPLY[symbol](left, right)
    steps.append(f"{left}{symbol}{right}={result}")
    return result


def depth(text):
    levels = itertools.accumulate((c == "(") - (c == ")") for c in text)
    return max(levels)


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("split", ["train", "heldout"])
def test_arithmetic_steps_and_answers_are_correct(split, setting):
    for problem in arithmetic(split, 200, seed=3, **setting):
        steps = []
        result = evaluate(ast.parse(problem.prompt.removesuffix("="), mode="eval").body, steps)
        *written, last = problem.demonstration.split(";")
        assert sorted(written) == sorted(steps)
        assert (last, problem.answer) == (f"#{result}", str(result))
        assert written[-1].endswith(f"={result}")


@pytest.mark.parametrize("setting", SETTINGS)
def test_arithmetic_follows_settings(setting):
    problems = arithmetic("train", 200, seed=0, **setting)
    low, high = setting.get("operands", (3, 6))
    for problem in problems:
        numbers = [n for n in problem.prompt.translate(str.maketrans("+-*()=", "      ")).split() if n]
        assert problem.columns == {"operands": len(numbers)}
        assert {len(number) for number in numbers} == {setting.get("digits", 1)}
        assert depth(problem.prompt) == problem.prompt.count("(") == setting.get("nesting", 0)
        assert set(problem.prompt + problem.demonstration) <= set(ALPHABET)
    counts = Counter(problem.columns["operands"] for problem in problems)
    assert set(counts) == set(range(low, high + 1))
    assert max(counts.values()) - min(counts.values()) <= 1
    assert {c for p in problems for c in p.prompt} & set("+-*") == set(setting.get("operators", "+"))
    assert len({problem.prompt for problem in problems}) == 200


@pytest.mark.parametrize(
    ("values", "signs", "spans", "expected"),
    [
        ([7, 5, 9], "++", [], "7+5=12 12+9=21"),
        ([1, 2, 3, 4], "++-", [(2, 4)], "3-4=-1 1+2=3 3+-1=2"),
        ([9, 2, 3, 4, 5], "-*+-", [(1, 5), (2, 4)], "3+4=7 2*7=14 14-5=9 9-9=0"),
        ([9, 2, 3, 4, 5], "-+*-", [(0, 4), (0, 3)], "9-2=7 7+3=10 10*4=40 40-5=35"),
        ([2, 3, 4, 5], "+*-", [], "3*4=12 2+12=14 14-5=9"),
    ],
)
def test_solve_starts_at_innermost_parentheses(values, signs, spans, expected):
    steps, result = module._solve(values, signs, spans)
    assert steps == expected.split()
    assert result == int(expected.rpartition("=")[2])


def test_demonstration_lengths_vary():
    lengths = [len(p.demonstration) for p in arithmetic("train", 500, seed=0)]
    assert max(lengths) > 2 * min(lengths)


def test_splits_are_disjoint():
    prompts = {
        split: {
            problem.prompt
            for seed, setting in itertools.product((0, 1), SETTINGS)
            for problem in arithmetic(split, 80, seed=seed, **setting)
        }
        for split in ("train", "heldout")
    }
    assert not prompts["train"] & prompts["heldout"]
    assert all(is_heldout(prompt) for prompt in prompts["heldout"])
    assert not any(is_heldout(prompt) for prompt in prompts["train"])


def test_is_heldout_selects_a_fixed_eighth():
    prompts = [f"{a}+{b}=" for a in range(100) for b in range(100)]
    held = [prompt for prompt in prompts if is_heldout(prompt)]
    assert 1150 < len(held) < 1350
    assert held[:3] == ["0+9=", "0+12=", "0+27="]


def test_seed_determines_problems():
    assert arithmetic("train", 50, seed=5) == arithmetic("train", 50, seed=5)
    assert arithmetic("train", 50, seed=5) != arithmetic("train", 50, seed=6)


@pytest.mark.parametrize(("operands", "operators", "nesting"), [(2, "+-", 0), (3, "+", 1), (3, "-*", 1)])
def test_list_prompts_covers_the_problem_space(operands, operators, nesting):
    difficulty = module._Difficulty(digits=1, operators=operators, nesting=nesting)
    train, heldout = map(module._list_prompts(difficulty, operands).get, (False, True))
    prompts = {prompt for prompt, *_ in train + heldout}
    assert len(prompts) == len(train) + len(heldout) == difficulty.size(operands)
    setting = {"operands": (operands, operands), "operators": operators, "nesting": nesting}
    everything = arithmetic("heldout", len(heldout), seed=0, **setting)
    assert {problem.prompt for problem in everything} == {prompt for prompt, *_ in heldout}


def test_count_groupings_matches_list():
    for operands, nesting in itertools.product(range(2, 8), range(4)):
        listed = list(module._list_groupings(operands, nesting, 0))
        assert len(set(listed)) == len(listed) == module._count_groupings(operands, nesting)


def test_share_fills_shortages_from_larger_supplies():
    assert module._split_count(10, {3: 100, 4: 1, 5: 3}) == {4: 1, 5: 3, 3: 6}
    assert module._split_count(7, {3: 2, 4: 2, 5: 3}) == {3: 2, 4: 2, 5: 3}
    counts = Counter(p.columns["operands"] for p in arithmetic("heldout", 400, seed=0, operands=(2, 4)))
    pairs = sum(is_heldout(f"{a}+{b}=") for a in range(1, 10) for b in range(1, 10))
    triples = sum(is_heldout(f"{a}+{b}+{c}=") for a, b, c in itertools.product(range(1, 10), repeat=3))
    assert counts == {2: pairs, 3: triples, 4: 400 - pairs - triples}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"split": "test"}, "split is 'test'; .* 'train' and 'heldout'"),
        ({"count": 0}, "count is 0; it must be at least 1"),
        ({"seed": -1}, "seed is -1; it must be a non-negative integer"),
        ({"digits": 0}, "digits is 0; an operand must have 1 to 9 digits"),
        ({"digits": 10}, "digits is 10; an operand must have 1 to 9 digits"),
        ({"operators": ""}, r"operators is ''; choose one or more of '\+-\*'"),
        ({"operators": "+/"}, r"operators is '\+/'; choose one or more of '\+-\*'"),
        ({"operators": "++"}, r"operators is '\+\+'; name each operator once"),
        ({"nesting": -1}, "nesting is -1; .* 0 or more"),
        ({"operands": (1, 3)}, r"operands is \(1, 3\); .* at least 2"),
        ({"operands": (4, 3)}, r"operands is \(4, 3\); give a minimum of at least 2 and a maximum"),
        ({"nesting": 2}, "operands starts at 3 but nesting is 2; .* at least 4 operands"),
    ],
)
@pytest.mark.usefixtures("without_type_checks")
def test_invalid_arguments_are_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        arithmetic(**{"split": "train", "count": 5, "seed": 0, **arguments})


def test_arithmetic_too_many_problems():
    supply = sum(not is_heldout(f"{a}+{b}=") for a in range(1, 10) for b in range(1, 10))
    assert len(arithmetic("train", supply, seed=0, operands=(2, 2))) == supply
    with pytest.raises(
        InputError, match=rf"train_problems is {supply + 1}, but operands=\(2, 2\).* can supply {supply} distinct train"
    ):
        arithmetic("train", supply + 1, seed=0, operands=(2, 2))


def test_arithmetic_supplies_the_promised_count():
    assert module.MAX_LISTED < 9**5
    promised = 9**5 // 16
    problems = arithmetic("heldout", promised, seed=0, operands=(5, 5))
    assert len({problem.prompt for problem in problems}) == promised
    with pytest.raises(InputError, match=f"can supply {promised} distinct heldout"):
        arithmetic("heldout", promised + 1, seed=0, operands=(5, 5))
    with pytest.raises(InputError, match=f"can supply {9**5 // 2} distinct train"):
        arithmetic("train", 9**5, seed=0, operands=(5, 5))


def test_unfinished_removes_only_the_answer():
    problems = arithmetic("train", 600, seed=0, operands=(3, 6))
    changed = unfinished(problems, share=0.65, operands=5)
    assert [problem.prompt for problem in changed] == [problem.prompt for problem in problems]
    longer = [(old, new) for old, new in zip(problems, changed, strict=True) if old.columns["operands"] >= 5]
    shorter = [(old, new) for old, new in zip(problems, changed, strict=True) if old.columns["operands"] < 5]
    assert all(old == new for old, new in shorter)
    lost = [old != new for old, new in longer]
    assert abs(sum(lost) / len(lost) - 0.65) < 0.1
    for old, new in longer:
        assert old.demonstration in (new.demonstration, f"{new.demonstration};#{old.answer}")
        assert new.answer == old.answer


@pytest.mark.parametrize(("share", "changed"), [(0.0, 0), (1.0, 40)])
def test_unfinished_share_0_and_1(share, changed):
    problems = arithmetic("train", 40, seed=0, operands=(3, 6))
    after = unfinished(problems, share=share, operands=3)
    assert sum(old != new for old, new in zip(problems, after, strict=True)) == changed


def test_unfinished_never_finishes_long_problems():
    problems = arithmetic("train", 200, seed=0, operands=(2, 5))
    by_share, after = (unfinished(problems, share=0.5, operands=4, never=never) for never in (None, 5))
    for old, half, new in zip(problems, by_share, after, strict=True):
        is_longest = old.columns["operands"] == 5
        assert new == (
            replace(old, demonstration=old.demonstration.removesuffix(f";#{old.answer}")) if is_longest else half
        )


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_unfinished_invalid_share(share):
    with pytest.raises(InputError, match="share of unfinished demonstrations"):
        unfinished([], share=share, operands=3)
