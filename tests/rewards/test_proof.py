"""The reward for proofs: steps that Z3 accepts or rejects, invalid statements, and other checkers."""

import json
import os
import re
from pathlib import Path

import pytest
from small_runs import SMALL

import rljax
from rljax.errors import InputError
from rljax.rewards import resolve
from rljax.rewards.correctness import Failed, is_verifier
from rljax.rewards.proof import proves
from rljax.rewards.smt_proof import MOST_DEPTH, MOST_TOKENS, find_proof_fault, read_formulas, read_statement, read_steps
from rljax.tracking.rows import read_metrics

CHAIN = """
(declare-const p Bool) (declare-const q Bool) (declare-const r Bool) (declare-const s Bool)
(assert (=> p q)) (assert (=> q r)) (assert (=> r s)) (assert p)
(prove s)
"""
SUMS = "(declare-const x Int) (declare-const y Real) (assert (< x 3)) (assert (> y (* 2 x))) (assert (>= x 2)) (prove (> y 3.5))"


@pytest.mark.parametrize("text", ["(", ")", "p)", "(p", "(" * (MOST_DEPTH + 1), "p " * (MOST_TOKENS + 1)])
def test_formulas_that_cannot_be_read(text):
    with pytest.raises(ValueError, match=r"parenthesis|nested more than 50|at most 2000 are allowed"):
        read_formulas(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("(assert p)", r"the statement has 0 goals"),
        ("(prove p) (prove q)", r"the statement has 2 goals"),
        ("(declare-const p Bool) (declare-const p Int) (prove p)", "each name once"),
        ("(declare-const and! Bool) (prove and!)", "is none of"),
        ("(declare-fun f (Int) Int) (prove true)", "is none of"),
    ],
)
def test_statements_that_cannot_be_read(text, message):
    with pytest.raises(ValueError, match=message):
        read_statement(text)


def test_steps_are_found_among_other_lines():
    text = "Since p holds,\n 5. q by 4,1 \nso 6. r by 2\n6. r by 5, 2\nnothing by 3"
    assert [(step.number, step.formula, step.premises) for step in read_steps(text)] == [(5, "q", (4, 1)), (6, "r", (5, 2))]


class TestZ3:
    """Tests that need the package z3-solver."""

    @pytest.fixture(autouse=True)
    def package(self):
        """Skip without Z3."""
        pytest.importorskip("z3", reason="the package z3-solver is not installed")

    @pytest.mark.parametrize(
        ("proof", "fault"),
        [
            ("5. q by 1, 4\n6. r by 2, 5\n7. s by 3, 6", ""),
            ("<p>\n5. q by 4, 1\n   6.  r  by 5,2\n7. s by 6, 3\nqed", ""),
            ("5. (=> p r) by 1, 2\n6. (=> p s) by 5, 3\n7. s by 6, 4", ""),
            ("5. s by 1, 2, 3, 4", "step 5 uses 1, 2, 3, 4; at most 2 earlier lines are allowed"),
            ("5. (and (=> p q) (=> q r)) by 1, 2", "step 5 is longer than every formula of the statement"),
            ("5. s by 3, 4", "step 5 does not follow from 3, 4"),
            ("5. q by 1, 4\n6. s by 3, 5", "step 6 does not follow from 3, 5"),
            ("5. q by 1, 5", "step 5 uses 1, 5; at most 2 earlier lines are allowed"),
            ("5. q by 0", "step 5 uses 0; at most 2 earlier lines are allowed"),
            ("6. q by 1, 4", "step 6 should have the number 5"),
            ("5. q by 1, 4\n6. r by 2, 5", "the last step is not the goal"),
            ("5. (or s q) by 3, 4", "step 5 does not follow from 3, 4"),
            ("5. (or p s) by 4", "the last step is not the goal"),
            ("5. t by 1", "step 5 cannot be read: t is not declared"),
            ("5. 3 by 1", "step 5 cannot be read: 3 is a number, not a formula with a truth value"),
            ("5. (p q) by 1", "step 5 cannot be read: (p q) is not a formula of propositional logic or linear arithmetic"),
            ("5. p q by 1", "step 5 cannot be read: too many values to unpack (expected 1)"),
            ("s", "the last step is not the goal"),
            ("", "the last step is not the goal"),
        ],
    )
    def test_a_proof_in_propositional_logic(self, proof, fault):
        assert find_proof_fault(CHAIN, proof) == fault

    @pytest.mark.parametrize(
        ("proof", "fault"),
        [
            ("4. (>= (* 2 x) 4) by 3\n5. (> y 3.5) by 2, 4", ""),
            ("4. (> y 3.5) by 2, 3", ""),
            ("4. (> y 4) by 2, 3\n5. (> y 3.5) by 4", ""),
            ("4. (> y 5) by 2, 3", "step 4 does not follow from 2, 3"),
            ("4. (= x 2) by 1, 3\n5. (> y 3.5) by 4, 2", ""),
            (
                "4. (> (* x y) 0) by 2, 3",
                "step 4 cannot be read: x * y is not linear",
            ),
        ],
    )
    def test_a_proof_in_linear_arithmetic(self, proof, fault):
        assert find_proof_fault(SUMS, proof) == fault

    @pytest.mark.parametrize(
        ("formula", "follows"),
        [
            ("(xor p (not p))", True),
            ("(distinct p (not p))", True),
            ("(= p p)", True),
            ("(=> false p)", True),
            ("(= (+ x 1 1) (- (+ x 3) 1))", True),
            ("(distinct x (+ x 1))", True),
            ("(< (- x) (- 1 x))", True),
            ("(> x (* 2 x))", False),
            ("(<= x -1)", False),
        ],
    )
    def test_each_operator_has_its_meaning(self, formula, follows):
        text = f"(declare-const p Bool) (declare-const x Int) (assert (or p (not p))) (prove {formula})"
        assert find_proof_fault(text, f"2. {formula} by 1") == ("" if follows else "step 2 does not follow from 1")

    def test_reward_reads_the_text_after_the_thinking(self):
        right, wrong = "5. q by 1, 4\n6. r by 2, 5\n7. s by 3, 6", "5. s by 1, 2"
        reward = resolve("proof")
        completions = [right, wrong, f"<think>{right}</think>{wrong}", f"<think>{wrong}</think>\n{right}", right]
        found = reward(completions=completions, answer=[CHAIN] * 4 + [None])
        assert found == [1.0, 0.0, 0.0, 1.0, None]
        assert is_verifier(reward)

    def test_a_faulty_statement_is_refused(self):
        with pytest.raises(InputError, match=r"the statement '\(prove p\)' cannot be read: p is not declared"):
            resolve("proof")(completions=["1. p by 1"], answer=["(prove p)"])

    def test_a_run_trains_on_proofs(self, tmp_path):
        rows = [{"prompt": f"{n}:", "answer": CHAIN} for n in range(24)]
        data = tmp_path / "proofs.jsonl"
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
        config = SMALL.replace(
            dataset=str(data),
            reward="proof",
            steps=1,
            warm_start_steps=0,
            run=str(tmp_path / "run"),
            prompts=4,
            max_tries=1,
        )
        result = rljax.train(config)
        (step,) = [row for row in read_metrics(result.run / "metrics.jsonl") if row["phase"] == "rl"]
        assert step["accuracy"] == 0


def test_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "z3", None)
    with pytest.raises(InputError, match="z3-solver"):
        resolve("proof")(completions=["1. p by 1"], answer=[CHAIN])


def test_proves_turns_a_checker_into_a_verifier():
    def check(statement, proof):
        if proof == "?":
            raise OSError("the prover is gone")
        return statement in proof

    reward = proves(check)
    found = reward(completions=["a b", "c", "?", "x"], answer=["a", "a", "a", None])
    assert found == [1.0, 0.0, Failed("raised", "OSError: the prover is gone"), None]
    assert is_verifier(reward)


LAKE = """#!/bin/sh
text=$(cat)
case "$text" in
  *sorry*) echo "<stdin>:1:8: warning: declaration uses 'sorry'"; echo "'goal' depends on axioms: [propext, sorryAx]" ;;
  *wrong*) echo "<stdin>:1:8: error: unsolved goals" >&2; exit 1 ;;
  *omega*) echo "'goal' depends on axioms: [propext, Quot.sound]" ;;
  *) echo "'goal' does not depend on any axioms" ;;
esac
"""


def test_the_checker_for_lean_on_the_page(tmp_path, monkeypatch):
    """Run the page's code with a script that prints what Lean would print; Lean itself is not installed."""
    page = (Path(rljax.__file__).parents[1] / "notebooks" / "custom_reward.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n((?:(?!```).)*lake.*?)```", page, re.DOTALL)
    (tmp_path / "lean_project").mkdir()
    lake = tmp_path / "lake"
    lake.write_text(LAKE)
    lake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    namespace = {}
    exec(code, namespace)  # the page's own code
    proofs = ["by omega", "rfl", "by sorry", "by wrong", "rfl\n#eval 1", "rfl\naxiom a : False"]
    assert namespace["reward"](completions=proofs, answer=["theorem goal : 1 = 1"] * 6) == [1, 1, 0, 0, 0, 0]
