"""Arithmetic problems: every step is checked with Python's own parser, and the split is checked for leaks."""

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
    """Evaluate a parse tree, collecting each operation that it needs."""
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
def test_every_step_and_answer_is_right(split, setting):
    for problem in arithmetic(split, 200, seed=3, **setting):
        steps = []
        result = evaluate(ast.parse(problem.prompt.removesuffix("="), mode="eval").body, steps)
        *written, last = problem.demonstration.split(";")
        assert sorted(written) == sorted(steps)
        assert (last, problem.answer) == (f"#{result}", str(result))
        assert written[-1].endswith(f"={result}")


@pytest.mark.parametrize("setting", SETTINGS)
def test_problems_match_the_settings(setting):
    problems = arithmetic("train", 200, seed=0, **setting)
    low, high = setting.get("operands", (3, 6))
    for problem in problems:
        numbers = [n for n in problem.prompt.translate(str.maketrans("+-*()=", "      ")).split() if n]
        assert problem.columns == {"operands": len(numbers)}
        assert {len(number) for number in numbers} == {setting.get("digits", 1)}
        assert depth(problem.prompt) == problem.prompt.count("(") == setting.get("nesting", 0)
        assert set(problem.prompt + problem.demonstration) <= set(ALPHABET)
    shares = Counter(problem.columns["operands"] for problem in problems)
    assert set(shares) == set(range(low, high + 1))
    assert max(shares.values()) - min(shares.values()) <= 1
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
def test_steps_go_from_the_innermost_parentheses_outwards(values, signs, spans, expected):
    steps, result = module._solve(values, signs, spans)
    assert steps == expected.split()
    assert result == int(expected.rpartition("=")[2])


def test_lengths_differ_widely():
    lengths = [len(p.demonstration) for p in arithmetic("train", 500, seed=0)]
    assert max(lengths) > 2 * min(lengths)


def test_splits_share_no_prompt_whatever_the_seed_and_difficulty():
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


def test_an_eighth_is_held_out_and_the_choice_never_changes():
    prompts = [f"{a}+{b}=" for a in range(100) for b in range(100)]
    held = [prompt for prompt in prompts if is_heldout(prompt)]
    assert 1150 < len(held) < 1350
    assert held[:3] == ["0+9=", "0+12=", "0+27="]


def test_the_seed_determines_the_problems():
    assert arithmetic("train", 50, seed=5) == arithmetic("train", 50, seed=5)
    assert arithmetic("train", 50, seed=5) != arithmetic("train", 50, seed=6)


@pytest.mark.parametrize(("operands", "operators", "nesting"), [(2, "+-", 0), (3, "+", 1), (3, "-*", 1)])
def test_an_enumerated_problem_space_is_counted_correctly_and_can_be_exhausted(operands, operators, nesting):
    difficulty = module._Difficulty(digits=1, operators=operators, nesting=nesting)
    train, heldout = map(module._list_prompts(difficulty, operands).get, (False, True))
    prompts = {prompt for prompt, *_ in train + heldout}
    assert len(prompts) == len(train) + len(heldout) == difficulty.size(operands)
    setting = {"operands": (operands, operands), "operators": operators, "nesting": nesting}
    everything = arithmetic("heldout", len(heldout), seed=0, **setting)
    assert {problem.prompt for problem in everything} == {prompt for prompt, *_ in heldout}


def test_the_count_of_groupings_matches_the_list():
    for operands, nesting in itertools.product(range(2, 8), range(4)):
        listed = list(module._groupings(operands, nesting, 0))
        assert len(set(listed)) == len(listed) == module._count_groupings(operands, nesting)


def test_a_small_supply_is_compensated_for_by_the_larger_ones():
    assert module._share(10, {3: 100, 4: 1, 5: 3}) == {4: 1, 5: 3, 3: 6}
    assert module._share(7, {3: 2, 4: 2, 5: 3}) == {3: 2, 4: 2, 5: 3}
    shares = Counter(p.columns["operands"] for p in arithmetic("heldout", 400, seed=0, operands=(2, 4)))
    pairs = sum(is_heldout(f"{a}+{b}=") for a in range(1, 10) for b in range(1, 10))
    triples = sum(is_heldout(f"{a}+{b}+{c}=") for a, b, c in itertools.product(range(1, 10), repeat=3))
    assert shares == {2: pairs, 3: triples, 4: 400 - pairs - triples}


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
@pytest.mark.usefixtures("untyped")
def test_invalid_arguments_are_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        arithmetic(**{"split": "train", "count": 5, "seed": 0, **arguments})


def test_a_request_for_too_many_problems_names_both_numbers():
    supply = sum(not is_heldout(f"{a}+{b}=") for a in range(1, 10) for b in range(1, 10))
    assert len(arithmetic("train", supply, seed=0, operands=(2, 2))) == supply
    with pytest.raises(
        InputError, match=rf"train_problems is {supply + 1}, but operands=\(2, 2\).* can supply {supply} different train"
    ):
        arithmetic("train", supply + 1, seed=0, operands=(2, 2))


def test_a_sampled_problem_space_supplies_as_many_problems_as_it_promises():
    assert module.LARGEST_COUNTED < 9**5
    promised = 9**5 // 16
    problems = arithmetic("heldout", promised, seed=0, operands=(5, 5))
    assert len({problem.prompt for problem in problems}) == promised
    with pytest.raises(InputError, match=f"can supply {promised} different heldout"):
        arithmetic("heldout", promised + 1, seed=0, operands=(5, 5))
    with pytest.raises(InputError, match=f"can supply {9**5 // 2} different train"):
        arithmetic("train", 9**5, seed=0, operands=(5, 5))


def test_unfinished_demonstrations_keep_their_steps_and_lose_their_answer():
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
def test_a_share_of_0_leaves_no_demonstration_unfinished_and_1_leaves_all(share, changed):
    problems = arithmetic("train", 40, seed=0, operands=(3, 6))
    after = unfinished(problems, share=share, operands=3)
    assert sum(old != new for old, new in zip(problems, after, strict=True)) == changed


def test_every_demonstration_of_at_least_a_given_length_is_unfinished():
    problems = arithmetic("train", 200, seed=0, operands=(2, 5))
    by_share, after = (unfinished(problems, share=0.5, operands=4, never=never) for never in (None, 5))
    for old, half, new in zip(problems, by_share, after, strict=True):
        is_longest = old.columns["operands"] == 5
        assert new == (
            replace(old, demonstration=old.demonstration.removesuffix(f";#{old.answer}")) if is_longest else half
        )


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_impossible_shares_are_refused(share):
    with pytest.raises(InputError, match="share of unfinished demonstrations"):
        unfinished([], share=share, operands=3)
