"""`--perturb-prompts`: which prompts change, which do not, and a run that trains on changed prompts."""

import chex
import pytest
from run_states import first_state, read_checkpoint
from small_runs import STEPPED, even_length, stopping_after

import rljax
from rljax.data.problem import Problem
from rljax.errors import InputError
from rljax.options.perturbed_prompts import perturb_share
from rljax.training.interrupt import Interrupted

ORDER = STEPPED.replace(operands=(2, 3), max_prompt_tokens=8, train_problems=60, perturb_prompts={"order": 0.5}, steps=3)


def test_each_perturbation_changes_its_fraction_of_prompts():
    problems = [Problem(f"What is {n}+1?", str(n + 1), columns={"n": n}) for n in range(2000)]
    found = perturb_share(problems, {"order": 0.2, "typos": 0.3}, seed=3)
    assert found == perturb_share(problems, {"order": 0.2, "typos": 0.3}, seed=3)
    assert found != perturb_share(problems, {"order": 0.2, "typos": 0.3}, seed=4)
    ordered = sum(new.prompt.startswith("What is 1+") for new in found[2:])
    misspelled = sum(not new.prompt.startswith("What is ") for new in found)
    assert ordered == pytest.approx(400, abs=60)
    assert misspelled == pytest.approx(600, abs=75)
    assert sum(new != old for new, old in zip(found, problems, strict=True)) in range(
        ordered + misspelled - 3, ordered + misspelled + 3
    )
    assert [(new.answer, new.columns) for new in found] == [(old.answer, old.columns) for old in problems]


def test_only_prompts_used_for_rl_sampling_are_changed():
    plain, changed = (first_state(config, reward=even_length)[0] for config in (ORDER.replace(perturb_prompts={}), ORDER))
    before, after = plain.train.prompts, changed.train.prompts
    differ = [new.prompt != old.prompt for new, old in zip(after.problems, before.problems, strict=True)]
    assert 15 <= sum(differ) <= 45
    assert [tokens != old for tokens, old in zip(after.tokens, before.tokens, strict=True)] == differ
    for problem, tokens, old in zip(after.problems, after.tokens, before.problems, strict=True):
        assert tokens == changed.tokenizer.encode(problem.prompt)
        assert sorted(problem.prompt) == sorted(old.prompt)
    assert changed.heldout.prompts == plain.heldout.prompts
    assert f"{sum(differ)} of 60 training prompts are changed in RL" in " ".join(changed.omissions)


def test_a_perturbed_prompt_that_is_too_long_is_not_used():
    config = ORDER.replace(tokenizer="bytes", perturb_prompts={"spaces": 1.0}, max_prompt_tokens=16)
    setup, _ = first_state(config, reward=even_length)
    lengths = [len(tokens) for tokens in setup.train.prompts.tokens]
    assert max(lengths) <= setup.prompt_length
    assert any(" " in problem.prompt for problem in setup.train.prompts.problems)


def test_a_run_learns_from_changed_prompts_and_resumes_exactly(tmp_path):
    seen, stop = set(), stopping_after(2)

    def reward(prompts, completions):
        seen.update(prompts)
        return even_length(completions)

    def interrupted(prompts, completions):
        stop(completions)
        return reward(prompts, completions)

    config = ORDER.replace(run=str(tmp_path / "done"))
    plain = {
        problem.prompt
        for problem in first_state(ORDER.replace(perturb_prompts={}), reward=reward)[0].train.prompts.problems
    }
    rljax.train(config, reward=reward)
    assert seen & plain
    assert seen - plain
    with pytest.raises(Interrupted):
        rljax.train(config.replace(run=str(tmp_path / "again")), reward=interrupted)
    rljax.train(resume=tmp_path / "again", reward=interrupted)
    states = (read_checkpoint(config, tmp_path / name, reward=reward).state for name in ("done", "again"))
    chex.assert_trees_all_equal(*states)


def test_prompts_that_cannot_be_perturbed_are_refused():
    for changes, message in (
        (
            {"typos": 0.5},
            "because it needs words of at least four letters; perturbations that would change some of these prompts: spaces, order",
        ),
        ({"spaces": 0.5}, "--perturb-prompts makes prompts that this model cannot read"),
        ({"noise": 0.5}, "no perturbation 'noise'"),
    ):
        with pytest.raises(InputError, match=message):
            first_state(ORDER.replace(perturb_prompts=changes), reward=even_length)
    for shares in ({"order": 0.0}, {"order": 0.7, "typos": 0.4}):
        with pytest.raises(InputError, match="give positive shares with a sum of at most 1"):
            first_state(ORDER.replace(perturb_prompts=shares), reward=even_length)
