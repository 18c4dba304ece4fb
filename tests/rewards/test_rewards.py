"""The rewards included in the library, and how users select one by its name."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rljax.rewards
from rljax.errors import InputError
from rljax.rewards import BY_NAME, resolve
from rljax.rewards.exact import exact, same_answer
from rljax.rewards.format import has_final_answer


@pytest.mark.parametrize(
    ("completion", "reference", "reward"),
    [
        ("7+5=12;#12", "12", 1.0),
        ("#12", "2", 0.0),
        ("#2", "12", 0.0),
        ("12", "12", 0.0),
        ("", "12", 0.0),
        ("#", "12", 0.0),
        ("#12;7+5", "12", 0.0),
        ("#1 #2", "1", 0.0),
        ("#1080", "Betty has 1080.\n#### 1,080", 1.0),
        ("so 5\n#### 5", "he has 3\n#### 3", 0.0),
        (r"\boxed{1,080}", "1080", 1.0),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}", 1.0),
        (r"\boxed{0.5}", r"$\boxed{\frac{1}{2}}$", 0.0),
        ("#18", "$18.00", 1.0),
        ("#+5.", "5", 1.0),
        ("#x", " $x$. ", 1.0),
        ("#X", "x", 0.0),
        ("#1e3", "1000", 0.0),
    ],
)
def test_exact(completion, reference, reward):
    assert exact(prompts=["?"], completions=[completion], answer=[reference], level=[3]) == [reward]


@given(st.integers(-200, 200), st.integers(-200, 200))
def test_same_answer_compares_the_values_of_numbers(left, right):
    assert same_answer(str(left), str(right)) == (left == right)
    assert same_answer(f"{left}.0", str(right)) == (left == right)
    assert exact(["?"], [f"#{left}"], [str(right)]) == [float(left == right)]


def test_exact_judges_each_completion_by_its_own_reference():
    assert exact(["a", "b", "c"], ["#1", "#2", "#3"], ["1", "3", "3"]) == [1.0, 0.0, 1.0]
    with pytest.raises(ValueError, match="zip"):
        exact(["a", "b"], ["#1", "#2"], ["1"])


def test_format():
    assert has_final_answer(completions=["#1", "1", "#"], answer=["2"] * 3) == [1.0, 0.0, 0.0]


def test_resolve_by_name():
    by_answer = ["exact", "math", "math_or_last_number", "gsm8k", "aime", "yes_no", "multiple_choice"]
    assert set(BY_NAME) == {
        *by_answer,
        "format",
        "think_answer",
        "code",
        "code_fraction",
        "reasoning_gym",
        "none",
        "proof",
        "reflection",
    }
    for name in [*by_answer, "format", "think_answer", "reflection"]:
        reward = BY_NAME[name]
        assert resolve(name) is reward
        reference = {"yes_no": "yes", "multiple_choice": "B"}.get(name, "1")
        assert reward(prompts=["?"], completions=["no idea"], answer=[reference]) == [0.0]
    assert resolve("exact") is exact
    assert resolve("format") is has_final_answer
    assert resolve(len) is len
    with pytest.raises(TypeError):
        BY_NAME["mine"] = len


def test_resolve_from_a_module():
    assert resolve("rljax.rewards.exact:exact") is exact


def test_resolve_from_a_file(tmp_path):
    source = """
from __future__ import annotations
import dataclasses

@dataclasses.dataclass
class Config:
    bonus: float = 2.0

def mine(completions):
    return [Config().bonus for _ in completions]
"""
    for folder, bonus in (("a", "2.0"), ("b", "3.0")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.py").write_text(source.replace("2.0", bonus))
    first, second = (resolve(f"{tmp_path}/{folder}/mine.py:mine") for folder in "ab")
    assert (first(["x"]), second(["x", "y"])) == ([2.0], [3.0, 3.0])
    assert first.__module__ != second.__module__


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        (
            "exakt",
            r"no reward 'exakt'; did you mean 'exact'\? Choose one of 'exact', .*, or name your own as `module:function` or",
        ),
        ("", "there is no reward ''"),
        (":f", "there is no reward ':f'"),
        ("math:", "there is no reward 'math:'"),
        (3, "the reward 3 is neither a function nor the name of one; choose one of 'exact'"),
        ("no_such_module:f", r"module 'no_such_module' cannot be imported \(ModuleNotFoundError: .*`path\.py:function`"),
        (
            "rljax.rewards.format:nope",
            r"rljax\.rewards\.format has no .nope.; it has .*, has_final_answer, .*\.",
        ),
        ("math:pi", "math has no function 'pi'"),
        ("./nope.py:f", "the file 'nope.py' does not exist"),
    ],
)
@pytest.mark.usefixtures("without_type_checks")
def test_resolve_refusals(reward, message):
    with pytest.raises(InputError, match=message):
        resolve(reward)


def test_a_reward_file_that_fails_leaves_no_module_behind(tmp_path):
    (tmp_path / "broken.py").write_text("1 / 0")
    with pytest.raises(
        InputError, match=r"running '.*broken\.py' failed \(ZeroDivisionError: division by zero\)"
    ) as caught:
        resolve(f"{tmp_path}/broken.py:f")
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert not any(name.startswith("broken_") for name in sys.modules)
    (tmp_path / "empty.py").write_text("")
    with pytest.raises(InputError, match=r"empty\.py has no 'f'; it has none"):
        resolve(f"{tmp_path}/empty.py:f")


def test_importing_rewards_loads_no_large_library():
    """Workers import the package, so it must not import JAX or SymPy."""
    program = "import sys, rljax.rewards; print(sorted({'jax', 'sympy', 'math_verify', 'numpy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_functions_do_not_hide_modules_of_the_same_name():
    assert rljax.rewards.exact.exact is exact
    assert rljax.rewards.format.has_final_answer is has_final_answer


@pytest.mark.parametrize("name", ["code", "code_fraction", "exact"])
def test_resolving_a_code_reward_tests_the_sandbox(name, monkeypatch):
    def refuse():
        raise InputError("programs cannot run safely on this machine")

    monkeypatch.setattr(rljax.rewards.sandbox, "level", refuse)
    if name == "exact":
        assert resolve(name) is exact
    else:
        with pytest.raises(InputError, match="cannot run safely"):
            resolve(name)
