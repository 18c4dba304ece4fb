"""A reward from a file of rules: what each kind of rule forbids, and which files are refused."""

import json

import numpy as np
import pytest

from rljax.data.problem import reward_columns
from rljax.data.problem_datasets import read_problems
from rljax.errors import InputError
from rljax.rewards import resolve
from rljax.rewards.constitution import constitution
from rljax.rewards.reward_scores import combine, judge

RULES = """
states: {must: "#[0-9]+$", weight: 0.5}
polite: {must_not: "(?i)fool", weight: 2}
brief: {max_characters: 8}
few: {max_words: 3, weight: 0}
"""
COMPLETIONS = ["1+1=2;#2", "#2.", "a fool: #2", "a b c d #2"]


def test_each_rule_is_a_component_and_costs_its_weight(tmp_path):
    file = tmp_path / "rules.yaml"
    file.write_text(RULES)
    reward = combine([resolve("exact"), resolve(f"constitution:{file}")], None)
    scores = judge(reward, ["1+1="] * 4, COMPLETIONS, {"answer": ["2"] * 4})
    broken = {name.removeprefix("constitution/"): part.tolist() for name, part in scores.parts.items() if "/" in name}
    assert broken == {"states": [0, 1, 0, 0], "polite": [0, 0, 1, 0], "brief": [0, 0, 1, 1], "few": [0, 0, 0, 1]}
    np.testing.assert_allclose(scores.total, [1, 1 - 0.5, 1 - 2 - 1, 1 - 1])
    assert scores.correct.tolist() == [1.0] * 4


def test_rules_in_json_are_equivalent(tmp_path):
    file = tmp_path / "rules.json"
    file.write_text(json.dumps({"polite": {"must_not": "fool", "weight": 2}}))
    assert resolve(f"constitution:{file}")(["?"] * 2, ["fool", "#2"]) == [-2.0, 0.0]


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({}, "needs at least one rule"),
        ([1], "needs at least one rule"),
        ({"a": "fool"}, r"the rule 'a' is 'fool'; a rule has exactly one of must, must_not, max_characters, max_words"),
        ({"a": {"weight": 1}}, "the rule 'a' is .*; a rule has exactly one of"),
        ({"a": {"must": "x", "must_not": "y"}}, "a rule has exactly one of"),
        ({"a": {"must": "x", "wieght": 2}}, "a rule has exactly one of"),
        ({"a": {"must": "("}}, r"the rule 'a' has must: '\(' \(.*unterminated.*\); correct it"),
        ({"a": {"must": "a{99999999999999999999}"}}, r"the rule 'a' has must: .*correct it"),
        ({"a": {"must": "(" * 6000 + ")" * 6000}}, r"the rule 'a' has must: .*correct it"),
        ({1: {"must": "x"}}, "the name of the rule 1 is not text; put it in quotes"),
        ({"a": {"must": 3}}, "the pattern must be text"),
        ({"a": {"max_words": -1}}, "the limit must be a whole number, 0 or more"),
        ({"a": {"max_words": True}}, "the limit must be a whole number"),
        ({"a": {"must": "x", "weight": -1}}, "the weight of the rule 'a' is -1; it must be a number, 0 or more"),
        ({"a": {"must": "x", "weight": float("nan")}}, "the weight of the rule 'a' is nan"),
        ({"a": {"must": "x", "weight": "2"}}, "the weight of the rule 'a' is '2'"),
        ({"a": {"judged": "Is it polite?"}}, "give `question`, `at` .a server's address. and optionally `model`"),
        ({"a": {"judged": {"question": "?", "at": 8000}}}, "question, at and model must be text"),
        (
            {"a": {"judged": {"question": "?", "at": "localhost:8000"}}},
            "the judge's address is 'localhost:8000'; give one such as",
        ),
        ({"a": {"must": "x", "users": "Ada"}}, r"the rule 'a' has users: 'Ada'; give a list of names"),
        ({"a": {"must": "x", "users": []}}, r"the rule 'a' has users: \[\]; give a list of names"),
        ({"a": {"must": "x", "users": [1]}}, r"the rule 'a' has users: \[1\]; give a list of names"),
    ],
)
def test_invalid_rules_are_refused(rules, message):
    with pytest.raises(InputError, match=message):
        constitution(rules)


def test_a_long_response_is_read_completely():
    reward = constitution({"polite": {"must_not": "fool"}, "begins": {"must": "^fool"}})
    assert reward(["?"] * 2, [f"fool{' ' * 300_000}", f"{' ' * 300_000}fool"]) == [-1.0, -2.0]


def test_slow_pattern_fails_only_on_the_slow_response(monkeypatch):
    monkeypatch.setattr("rljax.rewards.constitution.SECONDS", 0.2)
    scores = judge(constitution({"words": {"must": r"^(\w+\s?)*$"}}), ["?"] * 2, ["a" * 40 + "!", "two words"], {})
    assert scores.failures["words"].timed_out == 1
    assert scores.valid.tolist() == [False, True]
    assert scores.total.tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ("a: {must: x}\nb: {must: y}\na: {must: z}", "line 3: the key 'a' occurs twice"),
        ("a: {must: x, must: y}", "line 1: the key 'must' occurs twice"),
        ('{"a": {"must": "x"},\n "a": {"must": "y"}}', "line 2: the key 'a' occurs twice"),
        ("1: {must: x}", "line 1: the key '1' is not text; put it in quotes"),
        ("no: {must: x}", "line 1: the key 'no' is not text; put it in quotes"),
    ],
)
def test_duplicate_and_non_text_keys_are_refused(tmp_path, rules, message):
    (tmp_path / "rules.yaml").write_text(rules)
    with pytest.raises(InputError, match=message):
        resolve(f"constitution:{tmp_path}/rules.yaml")


def test_unreadable_files_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"none\.yaml' cannot be read"):
        resolve(f"constitution:{tmp_path}/none.yaml")
    (tmp_path / "bad.yaml").write_text("a: [")
    with pytest.raises(InputError, match=r"bad\.yaml' cannot be read"):
        resolve(f"constitution:{tmp_path}/bad.yaml")
    (tmp_path / "empty.yaml").write_text("")
    with pytest.raises(InputError, match=r"empty\.yaml: a constitution needs at least one rule"):
        resolve(f"constitution:{tmp_path}/empty.yaml")


def test_a_rule_for_some_users_applies_only_to_their_responses():
    rules = {"brief": {"max_words": 2, "weight": 0.5, "users": ["Ada", "7"]}, "kind": {"must_not": "fool"}}
    texts, users = ["it is four", "four", "it is four", "a fool, fool"], ["Ada", "Ada", "Bob", 7]
    scores = judge(constitution(rules), ["?"] * 4, texts, {"user": users})
    assert scores.parts["brief"].tolist() == [1, 0, 0, 1]
    assert scores.parts["kind"].tolist() == [0, 0, 0, 1]
    np.testing.assert_allclose(scores.total, [-0.5, 0, 0, -1.5])


def test_a_rule_for_some_users_needs_the_column_user():
    with pytest.raises(InputError, match="needs user, but the data has the columns"):
        judge(constitution({"brief": {"max_words": 2, "users": ["Ada"]}}), ["?"], ["four"], {})


def test_users_of_a_dataset_reach_the_reward(tmp_path):
    """The column `user` of a data file selects the responses to which a rule applies."""
    file, rules = tmp_path / "rows.jsonl", tmp_path / "rules.yaml"
    rows = [{"prompt": "1+1=", "answer": "2", "user": user} for user in ("Ada", "Bob")]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    rules.write_text("brief: {max_characters: 2, users: [Ada]}\n")
    problems = read_problems(str(file)).problems
    scores = judge(resolve(f"constitution:{rules}"), ["1+1="] * 2, ["#2, yes"] * 2, reward_columns(problems))
    assert scores.total.tolist() == [-1, 0]
