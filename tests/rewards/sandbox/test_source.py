"""Names that a dataset's tests use without defining them: a program cannot pass by defining such a name itself."""

import pytest

from rljax.rewards.sandbox import Program, judge

TRUE = "lambda *values, **named: True"
SAME = "type('Same', (), {'__init__': lambda *a, **k: None, '__eq__': lambda *a: True})"
SPACE = f"__import__('types').SimpleNamespace(allclose={TRUE}, approx={SAME}, isclose={TRUE}, array={SAME}, testing=None)"
# Names that the sandbox provides: name -> (the program's false definition, test).
FORGED = {
    "isclose": (TRUE, "assert isclose(answer(2), 1.5)"),
    "isclose of a variable": (TRUE, "r = answer(2)\nassert isclose(r, 1.5)"),
    "isclose in a loop": (TRUE, "for x, y in [(2, 1.5), (4, 1.5)]:\n    assert isclose(answer(x), y)"),
    "Counter": (SAME, "assert Counter([answer(2)]) == Counter([1.5])"),
    "Fraction": (SAME, "assert Fraction(answer(2)) == Fraction(3, 2)"),
    "floor": ("lambda x: 1", "assert floor(answer(2)) == 1"),
    "mean": ("lambda x: 1.5", "assert mean([answer(2), answer(2)]) == 1.5"),
    "deepcopy": ("lambda x: 1.5", "assert deepcopy(answer(2)) == 1.5"),
    "permutations": ("lambda x: [(1.5,)]", "assert list(permutations([answer(2)])) == [(1.5,)]"),
    "nsmallest": ("lambda *a: [1.5]", "assert nsmallest(1, [answer(2)]) == [1.5]"),
    "math": (SPACE, "assert math.isclose(answer(2), 1.5)"),
}
# Names that the sandbox lacks: name -> (the program's false definition, test).
UNJUDGED = {
    "np": (SPACE, "assert np.allclose(answer(2), 1.5)"),
    "numpy": (SPACE, "assert numpy.array(answer(2)) == 1.5"),
    "pytest": (SPACE, "assert answer(2) == pytest.approx(1.5)"),
    "approx": (SAME, "assert answer(2) == approx(1.5)"),
    "allclose": (TRUE, "assert allclose(answer(2), 1.5)"),
    "check": (TRUE, "assert check(answer(2), 1.5)"),
    "differs": ("lambda *a: False", "assert not differs(answer(2), 1.5)"),
    "compare": (TRUE, "compare(answer(2), 1.5)"),
    "expected": ("lambda x: 0", "assert answer(2) == expected(2)"),
    "brute_force": ("lambda x: 0", "for x in range(3):\n    assert brute_force(x) == answer(x)"),
    "assert_almost_equal": (TRUE, "assert_almost_equal(answer(2), 1.5)"),
    "missing_module_xyz": (SPACE, "import missing_module_xyz\nassert answer(2) == 1.5"),
    "inner_module_xyz": (SPACE, "def check():\n    import inner_module_xyz\n    assert answer(2) == 1.5\ncheck()"),
}


@pytest.mark.parametrize("name", FORGED)
def test_program_cannot_define_names_of_the_tests(name):
    forged, test = FORGED[name]
    identifier = name.partition(" ")[0]
    for value, share in (("0", 0.0), ("1.5", 1.0)):
        code = f"{identifier} = {forged}\ndef answer(x): return {value}"
        assert judge(Program(code, (test,))).pass_rates == (share,)
        body = "\n".join(f"    {line}" for line in test.replace("answer", "candidate").split("\n"))
        check = f"def check(candidate):\n{body}"
        assert judge(Program(code, check=check, entry_point="answer")).pass_rates == (share,)


@pytest.mark.parametrize("name", UNJUDGED)
def test_name_that_the_sandbox_lacks_leaves_the_program_unjudged(name):
    forged, test = UNJUDGED[name]
    verdict = judge(Program(f"{name} = {forged}\ndef answer(x): return 0", (test,)))
    assert verdict.ended == "unjudged"
    assert name in verdict.reason


@pytest.mark.parametrize(
    ("code", "tests"),
    [
        ("def gcd(a, b): return 2", ["assert gcd(4, 6) == 2"]),
        ("gcd = lambda a, b: 2\nlcm = lambda a, b: 12", ["assert gcd(4, 6) == 2", "assert lcm(4, 6) == 12"]),
        ("product = lambda v: 6\nf = lambda v: 1", ["assert product([2, 3]) == 6", "assert f(product([2, 3])) == 1"]),
        ("def mean(v): return 2", ["assert mean([1, 3]) == 2"]),
        ("class Counter:\n    def up(self): return 1", ["c = Counter()\nassert c.up() == 1"]),
        ("class Pair:\n    def __init__(self, a, b): self.a = a\ndef f(v): return 3", ["assert f([Pair(1, 2)]) == 3"]),
        ("encode = lambda x: x + 1\ndecode = lambda x: x - 1", ["assert decode(encode(3)) == 3"]),
        ("even = lambda x: True\nf = lambda x: 4", ["assert even(4)", "assert even(f(3))"]),
        ("same = lambda a, b: True\nf = lambda x: x", ["r = f(3)\nassert r == 3\nassert same(r, 3)"]),
        ("add = lambda s, x: s.append(x)\nnew = list", ["s = new()\nadd(s, 3)\nassert s == [3]"]),
        ("expected = lambda x: 3", ["assert expected(3) == 3"]),
        ("def f(x): return 2", ["try:\n    import missing_xyz\nexcept ImportError:\n    pass\nassert f(1) == 2"]),
    ],
)
def test_functions_under_test_may_appear_inside_their_tests(code, tests):
    assert set(judge(Program(code, tuple(tests))).pass_rates) == {1.0}
