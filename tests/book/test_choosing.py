"""`rljax recommend`: every rule can be chosen, its command is valid, and its reasons agree with the experiments."""

import itertools
import json
import shlex
from dataclasses import asdict, fields, replace
from pathlib import Path

import pytest
from small_cli import printed, refused

from rljax.algorithms import BY_NAME
from rljax.book.choosing import (
    ALGORITHMS,
    PARTS,
    ClaimEvidence,
    Facts,
    recommend,
    table,
    weigh_verdict,
)
from rljax.book.claims import claim_names, read_claim
from rljax.book.trainer_experiments import trainer_experiments
from rljax.cli import parse
from rljax.cli.recommend import _evidence_of_trainer, recommendation_text
from rljax.errors import InputError
from rljax.training.objective.algorithm import make_algorithm

PAGE = Path(__file__).resolve().parents[2] / "notebooks" / "choosing_an_algorithm.md"
RULES = (*ALGORITHMS, *PARTS)


def facts_for(rule):
    """Return facts that meet a rule's conditions; the other facts have their defaults."""
    values = {where.fact: "my_teacher" if where.test == "is not" else where.value for where in rule.where}
    return Facts(**values)


def recommend_for(**facts):
    return recommend(Facts(**facts), ALGORITHMS, PARTS)


@pytest.mark.parametrize("rule", ALGORITHMS, ids=lambda rule: rule.case)
def test_rule_is_chosen_under_its_own_conditions(rule):
    assert recommend(facts_for(rule), ALGORITHMS, PARTS).chosen is rule


def test_facts_are_used_and_claims_exist():
    read = {where.fact for rule in RULES for where in rule.where}
    assert read | {"model", "dataset"} == {field.name for field in fields(Facts)}
    assert {claim for rule in RULES for claim in rule.claims} <= {*claim_names(), *trainer_experiments()}
    experiments = trainer_experiments()
    cited = [(rule, name) for rule in RULES for name in rule.claims if name in experiments]
    assert all(_evidence_of_trainer(experiments[name], rule.choice, rule.claims[name]).verdict for rule, name in cited)
    assert {rule.choice for rule in ALGORITHMS if "--loss" not in rule.flags} <= set(BY_NAME)
    assert {name for rule in PARTS for name in rule.algorithms} <= {rule.choice for rule in ALGORITHMS}
    assert not ALGORITHMS[-1].where
    assert all(ALGORITHMS[:-1][index].where for index in range(len(ALGORITHMS) - 1))


def test_no_rule_contradicts_its_own_experiments():
    """A claim for a rule may be undecided but not contradicted, and its interval must not be entirely below 0."""
    verdicts = {name: read_claim(name).verdict for name in claim_names()}
    bearings = [(rule.case, name, bears) for rule in RULES for name, bears in rule.claims.items() if name in verdicts]
    assert len(bearings) > 20
    assert [entry for entry in bearings if entry[2] == "for" and verdicts[entry[1]] == "contradicted"] == []
    assert [entry for entry in bearings if entry[2] == "for" and read_claim(entry[1]).statistic.high < 0] == []


SITUATIONS = [
    replace(facts_for(rule), outliers=outliers, staleness=staleness, updates=updates)
    for rule, (outliers, staleness, updates) in zip(
        ALGORITHMS, itertools.cycle([(True, 3, 4), (True, 20, 32), (False, 0, 1), (True, 0, 8)]), strict=False
    )
]


@pytest.mark.parametrize("facts", SITUATIONS, ids=lambda facts: shlex.join(map(str, asdict(facts).values())))
def test_recommended_command_is_valid(facts):
    found = recommend(facts, ALGORITHMS, PARTS)
    record = parse(found.command[1:])
    if found.command[1] == "train":
        algorithm = make_algorithm(record.config)
        assert record.config.algorithm.name == found.chosen.choice
        sampling, budget = record.config.sampling, facts.budget
        assert 0.9 * budget < record.config.optimization.steps * sampling.prompts * sampling.group_size <= budget
        assert algorithm.critic is None or facts.critic


def test_facts_reach_the_command():
    found = recommend_for(length=400, budget=8000, group=4, updates=2, model="m", dataset="d.jsonl")
    text = shlex.join(found.command)
    for words in ("--model m", "--dataset d.jsonl", "--max-response-tokens 400", "--group-size 4", "--minibatches 2"):
        assert words in text
    assert "--prompts 16 --group-size 4 --steps 125" in text
    assert "--algorithm-options k=4" in shlex.join(recommend_for(pass_k=4, group=4).command)
    for updates, words in (
        (20, "--minibatches 4 --passes 5"),
        (7, "--minibatches 1 --passes 7"),
        (128, "--minibatches 64 --passes 2"),
    ):
        assert words in shlex.join(recommend_for(updates=updates).command)
    assert "--without soft_overlong" in shlex.join(recommend_for(length=400, budget=20_000).command)


def test_omitted_overlong_punishment_cites_its_experiment(capsys):
    text = " ".join(printed(capsys, "recommend").split())
    part = text[text.index("Part: no overlong punishment") :]
    assert "soft_overlong: a claim against this advice, not decided" in part
    assert "--without soft_overlong" in part[part.index("Command,") :]
    assert recommend_for(updates=20).chosen.choice == "cispo"
    assert "--without" not in recommend_for(updates=20).command


def test_stale_sampler_gets_a_correction_or_gepo():
    few, many = recommend_for(staleness=3), recommend_for(staleness=64)
    assert (few.chosen.choice, "--correction" in few.command) == ("dapo", True)
    assert (many.chosen.choice, "--correction" in many.command) == ("gepo", False)
    assert [parse(found.command[1:]).config.sampling.staleness for found in (few, many)] == [3, 64]
    assert "--staleness" not in recommend_for().command


def test_critic_needs_length_and_budget():
    assert recommend_for(critic=True, length=4000).chosen.choice == "vapo"
    assert recommend_for(critic=True, length=1000).chosen.choice == "dapo"
    assert recommend_for(critic=True, length=4000, budget=20_000).chosen.choice == "dapo"
    assert [rule.choice for rule in recommend_for(critic=True, length=4000, pass_k=8).alternatives] == ["pkpo"]


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"length": 0}, "length is 0; it must be at least 1"),
        ({"staleness": -1}, "staleness is -1"),
        ({"staleness": 64, "budget": 400}, "a budget of 400 responses allows only 50 steps"),
        ({"staleness": 1, "budget": 8}, r"a budget of 8 responses allows only 1 step, so all responses would be sampled"),
        ({"group": 1, "pass_k": 4}, "set --group 2 or more"),
        ({"group": 1, "reward": "steps"}, "set --group 2 or more"),
        ({"pass_k": 64}, "pass_k is 64, but pass@k needs k responses to a prompt and group is 8"),
        ({"budget": 7}, "budget is 7, but a step samples at least the 8 responses of one group"),
    ],
)
def test_impossible_facts_are_refused(facts, message):
    with pytest.raises(InputError, match=message):
        recommend_for(**facts)


def test_facts_without_effect_are_listed_with_the_reason():
    assert (
        dict(recommend_for().without_effect)
        == {}
        == dict(recommend_for(length=3000, critic=True, teacher=None).without_effect)
    )
    assert recommend_for(critic=True).without_effect == {"critic": "vapo needs --length 2000 or more"}
    assert recommend_for(experts=True, pass_k=4).without_effect == {"experts": "pkpo takes precedence over gspo"}
    assert recommend_for(outliers=True, length=32).without_effect == {"outliers": "ranks does not fit rloo"}
    assert set(recommend_for(reward="pairs", budget=50, group=4, length=32).without_effect) == {"budget", "group"}
    found = recommend_for(critic=True)
    assert "Facts without effect here, and why" in recommendation_text(found, {r.case: [] for r in RULES}, width=80)


def test_weigh_verdict_for_and_against():
    assert weigh_verdict("against", "contradicted") == "supports"
    assert weigh_verdict("for", "contradicted") == "contradicts"
    assert weigh_verdict("against", "not seen at this scale") == "is open"


def test_defaults_are_used_and_shown(capsys):
    text = printed(capsys, "recommend")
    assert max(map(len, text.splitlines())) <= 80
    assert "length      1024 (default)" in text
    assert "Algorithm: dapo" in text
    assert "supports    dynamic_sampling: " in text
    assert "is open     soft_overlong: " in text
    assert " \\\n        --algorithm dapo" in text
    assert "rljax train --model Qwen/Qwen3-0.6B" in text


def test_stale_sampler_cites_the_trainer_experiment(capsys):
    text = " ".join(printed(capsys, "recommend", "--staleness", "32").split())
    assert "is open staleness_gepo: " in text
    assert (
        "is open sampler_delay: with the trainer: How much accuracy do GRPO, GSPO and GEPO lose"
        " if the sampler's parameters are up to 64 steps old?"
    ) in text
    assert "gepo: not seen at this scale (1), not decided (1); `rljax claims sampler_delay` has the table" in text


@pytest.mark.parametrize(
    ("bearing", "verdicts", "shown", "says"),
    [
        ("for", ["holds here", "holds here"], "holds here (2)", "supports"),
        ("against", ["holds here"], "holds here (1)", "contradicts"),
        ("for", ["holds here", "not decided"], "holds here (1), not decided (1)", "is open"),
    ],
)
def test_trainer_evidence_uses_the_algorithms_last_row(bearing, verdicts, shown, says, tmp_path):
    file = tmp_path / "delay.py"
    file.write_text('"""Does it?\n\nCommand:\n\n    python delay.py  (a minute)\n"""\n')
    cells = " | ".join(f"0.1 (0 to 0.2): {verdict}" for verdict in verdicts)
    against = "| {} | -0.1 (-0.2 to -0.05): contradicted |"
    rows = [against.format("gepo | 8"), f"| gepo | 64 | {cells} |", against.format("gspo | 64")]
    file.with_suffix(".md").write_text("\n".join(rows))
    found = _evidence_of_trainer(file, "gepo", bearing)
    assert (found.claim, found.verdict, found.says) == ("delay", shown, says)


def test_claim_against_the_advice_is_marked(capsys):
    text = " ".join(printed(capsys, "recommend", "--staleness", "1").split())
    assert "supports masked_weights: a claim against this advice, contradicted: " in text
    assert "a claim against this advice" not in text[text.index("dynamic_sampling: ") : text.index("batch_deviation: ")]


def test_json_has_the_content_of_the_text(capsys):
    row = json.loads(printed(capsys, "recommend", "--json", "--critic", "--length", "3000", "--pass-k", "4"))
    assert row["facts"]["length"] == 3000
    assert row["algorithm"]["choice"] == "vapo"
    assert {claim["claim"]: claim["says"] for claim in row["algorithm"]["claims"]}["value_pretraining"] == "supports"
    assert [rule["choice"] for rule in row["also"]] == ["pkpo"]
    assert row["command"].startswith("rljax train ")


def test_text_has_each_reason_once_per_rule():
    found = recommend_for(outliers=True)
    evidence = {rule.case: [ClaimEvidence("c", "not decided", "is open", "text")] for rule in (found.chosen, *found.parts)}
    text = recommendation_text(found, evidence, width=80)
    assert text.count("is open     c: text") == 1 + len(found.parts) == 3
    assert "outliers    True\n" in text


def test_invalid_flags_are_refused(capsys):
    refused(capsys, "did you mean '--length'", "recommend", "--lenght", "3")
    refused(capsys, "exclude each other", "recommend", "--table", "--json")
    refused(capsys, "leave the facts out", "recommend", "--table", "--length", "3")
    refused(capsys, "group is 1", "recommend", "--group", "1", "--pass-k", "4")


def test_page_has_the_current_rules():
    assert table(ALGORITHMS, PARTS) in PAGE.read_text(encoding="utf-8"), (
        "copy the output of `rljax recommend --table` there"
    )
