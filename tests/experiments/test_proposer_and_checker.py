"""The proposer-and-checker experiment: its sums, the roles in each arm, and the token counts of tiny runs."""

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


def test_make_sums_modulo_8(experiment):
    answers = {problem.prompt: problem.answer for problem in experiment.make_sums()}
    assert len(answers) == 64
    assert (answers["aa"], answers["bc"], answers["hh"], answers["eg"]) == ("a", "d", "g", "c")


def test_is_sum_reads_last_letter(experiment):
    assert experiment.is_sum(["bc"] * 3, ["d", "da", ""], ["d"] * 3) == [1.0, 0.0, 0.0]


def test_final_answer_decides_correctness(experiment):
    (both,) = experiment.environments_of("both roles", Path("absent"))
    (problem,) = [each for each in experiment.make_sums() if each.prompt == "bc"]
    proposal = both.step(both.reset(problem), "d")
    final = both.step(proposal.state, "a")
    assert (proposal.reward, proposal.done, final.reward, final.correct) == (1.0, False, 0.0, False)


def test_frozen_proposer_takes_first_turn(experiment):
    once, checker = experiment.environments_of("two policies", Path("proposer"))
    assert (once, checker.other_policy) == (None, "proposer")
    state = checker.reset(experiment.make_sums()[0])
    assert checker.is_others_turn(state)
    assert not checker.is_others_turn(checker.step(state, "a").state)


@pytest.mark.parametrize(("arm", "turns"), [("one answer", [1, 1]), ("both roles", [2, 2]), ("two policies", [1, 2])])
def test_every_sampled_token_is_counted(experiment, monkeypatch, arm, turns):
    """A turn samples one token, so a two-turn episode costs two tokens, even if the frozen proposer samples one of them."""
    tiny = {"steps": 1, "eval_every": 1, "prompts": 4, "group_size": 4, "layers": 1}
    monkeypatch.setattr(experiment, "CONFIG", experiment.CONFIG.replace(**tiny))
    runs = [{**settings, "steps": 1, "eval_every": 1} for settings in experiment.ARMS[arm]]
    monkeypatch.setattr(experiment, "ARMS", {arm: runs})
    row = experiment.run_arm(arm, 0)
    episodes = 4 * 4
    minimum = [episodes * sum(turns[: index + 1]) for index in range(len(runs))]
    assert row["tokens"][0] == 0
    assert len(row["tokens"]) == len(row["accuracy"]) == len(runs) + 1
    assert all(least <= count for least, count in zip(minimum, row["tokens"][1:], strict=True))
    assert all(0 <= accuracy <= 1 for accuracy in row["accuracy"])
