"""A proposer and a checker: the sums, the roles of the arms, and tiny runs whose tokens are counted by hand."""

import importlib.util
from pathlib import Path

import pytest

FILE = Path(__file__).resolve().parents[2] / "experiments" / "proposer_and_checker.py"


@pytest.fixture(scope="module")
def experiment():
    spec = importlib.util.spec_from_file_location(FILE.stem, FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_sums_are_modulo_8(experiment):
    answers = {problem.prompt: problem.answer for problem in experiment.make_sums()}
    assert len(answers) == 64
    assert (answers["aa"], answers["bc"], answers["hh"], answers["eg"]) == ("a", "d", "g", "c")


def test_only_the_last_letter_of_a_turn_counts(experiment):
    assert experiment.is_sum(["bc"] * 3, ["d", "da", ""], ["d"] * 3) == [1.0, 0.0, 0.0]


def test_a_right_proposal_does_not_make_a_wrong_final_answer_right(experiment):
    (both,) = experiment.environments_of("both roles", Path("absent"))
    (problem,) = [each for each in experiment.make_sums() if each.prompt == "bc"]
    proposal = both.step(both.reset(problem), "d")
    final = both.step(proposal.state, "a")
    assert (proposal.reward, proposal.done, final.reward, final.correct) == (1.0, False, 0.0, False)


def test_the_frozen_proposer_takes_the_first_turn(experiment):
    once, checker = experiment.environments_of("two policies", Path("proposer"))
    assert (once, checker.other_policy) == (None, "proposer")
    state = checker.reset(experiment.make_sums()[0])
    assert checker.is_others_turn(state)
    assert not checker.is_others_turn(checker.step(state, "a").state)


@pytest.mark.parametrize(("arm", "turns"), [("one answer", [1, 1]), ("both roles", [2, 2]), ("two policies", [1, 2])])
def test_every_sampled_token_counts(experiment, monkeypatch, arm, turns):
    """A turn is one letter, so an episode of two turns samples two tokens, also if one of them is the frozen proposer's."""
    tiny = {"steps": 1, "eval_every": 1, "prompts": 4, "group_size": 4, "layers": 1}
    monkeypatch.setattr(experiment, "CONFIG", experiment.CONFIG.replace(**tiny))
    runs = [{**settings, "steps": 1, "eval_every": 1} for settings in experiment.ARMS[arm]]
    monkeypatch.setattr(experiment, "ARMS", {arm: runs})
    row = experiment.run_arm(arm, 0)
    episodes = 4 * 4
    longest = [episodes * sum(turns[: place + 1]) for place in range(len(runs))]
    assert row["tokens"][0] == 0
    assert len(row["tokens"]) == len(row["accuracy"]) == len(runs) + 1
    assert all(most <= count for most, count in zip(longest, row["tokens"][1:], strict=True))
    assert all(0 <= share <= 1 for share in row["accuracy"])
