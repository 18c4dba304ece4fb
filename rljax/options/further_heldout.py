"""`--also-heldout NAME=FILE`: each held-out evaluation also covers the problems of other files, judged in the same way.

The training problems do not change. The run reports how many prompts of each set are among the training prompts.
"""

from collections.abc import Sequence
from dataclasses import replace

from rljax.data.problem import Problem
from rljax.data.problem_datasets import read_problems
from rljax.data.prompts import EncodedPrompts, list_prompt_omissions
from rljax.errors import InputError
from rljax.models.huggingface import check_length, locate
from rljax.rewards import RUN_PROGRAMS
from rljax.rollout.environment import with_environment_prompts
from rljax.training.parts.problems import REFERENCE_REWARDS, Problems, note_omission
from rljax.training.parts.reward import has_tests, notes_on_reward
from rljax.training.setup import Setup, encode_nonempty


def install(setup: Setup) -> Setup:
    """Give the held-out worker one extra worker per set.

    Raises:
        InputError: a file cannot be used, the reward cannot judge its problems, or a prompt is too long for the model.
    """
    if setup.tokenizer is None:  # a setup that only plans a run has no problems
        return setup
    extra_sets, notes = {}, []
    for name, source in setup.config.data.also_heldout.items():
        prompts, omissions = read_set(setup, name, str(source))
        length = max(map(len, prompts.tokens))
        if setup.config.model.path is not None:
            check_length(locate(setup.config.model.path), length + setup.config.sampling.max_response_tokens)
        extra_sets[name] = replace(setup.heldout, prompts=prompts, prompt_length=length)
        notes += [f"{name}: {note}" for note in (*omissions, *notes_on_set(setup, prompts))]
    return setup._replace(heldout=replace(setup.heldout, extra_sets=extra_sets), omissions=[*setup.omissions, *notes])


def read_set(setup: Setup, name: str, source: str) -> tuple[EncodedPrompts, list[str]]:
    """Encode the prompts of a set's first `heldout_problems` problems, and return them with notes on what is left out."""
    config, data = setup.config, setup.config.data
    loaded = read_problems(
        source,
        split="test",
        prompt_column=data.prompt_column,
        answer_column=data.answer_column,
        on_error=data.on_error,
    )
    problems = loaded.problems[: data.heldout_problems]
    check_can_be_judged(setup, problems, f"also_heldout {name}={source}")
    problems = with_environment_prompts(Problems([], problems), setup.heldout.environment, setup.tokenizer).heldout
    encoded = encode_nonempty(config, problems, setup.tokenizer, name=f"prompt of also_heldout {name}={source}")
    beyond = note_omission(
        len(loaded.problems) - len(problems), f"beyond the first heldout_problems={data.heldout_problems}"
    )
    long = note_omission(encoded.dropped, f"prompt longer than max_prompt_tokens={data.max_prompt_tokens}")
    return encoded, [*beyond, *long, *note_omission(len(loaded.faults), "unreadable")]


def check_can_be_judged(setup: Setup, problems: Sequence[Problem], source: str) -> None:
    """Reject problems that the run's reward cannot judge.

    Raises:
        InputError: the problems lack answers or tests that the reward needs, or are chats, which the reward model cannot read.
    """
    if setup.heldout.environment is not None:
        return
    judged = setup.heldout.prompts.problems
    answered = any(problem.answer for problem in judged)
    comparing = [name for name in setup.config.reward.names if name.removeprefix("brier:") in REFERENCE_REWARDS]
    if comparing and answered and not any(problem.answer for problem in problems):
        raise InputError(
            f"{source}: the reward {comparing[0]!r} compares responses with reference answers, but no problem of this set has one; "
            "name the column with --answer-column, or leave the set out."
        )
    programs = [name for name in setup.config.reward.names if name in RUN_PROGRAMS]
    if programs and any(map(has_tests, judged)) and not any(map(has_tests, problems)):
        raise InputError(
            f"{source}: the reward {programs[0]} needs tests, but no problem of this set has any; rename its columns to `tests`, "
            "`test` with `entry_point`, or `stdin` with `stdout`, or leave the set out."
        )
    if any(problem.messages is not None and len(problem.messages) > 1 for problem in problems) and any(
        name.startswith("model:") for name in setup.config.reward.names
    ):
        raise InputError(
            f"{source}: some prompts are chats of several messages, which a reward model can read only from --dataset and "
            "--heldout-dataset; leave the set out."
        )


def notes_on_set(setup: Setup, prompts: EncodedPrompts) -> list[str]:
    """Return notes on what the prompts omit, on problems that are not judged, and on the overlap with the training prompts."""
    trained = {problem.prompt for problem in setup.train.prompts.problems}
    count = sum(problem.prompt in trained for problem in prompts.problems)
    overlap = [f"{count} of {len(prompts.problems)} prompts are also training prompts"] if count else []
    lost = list_prompt_omissions(prompts.problems, setup.tokenizer, chat=setup.config.model.chat)
    return [*lost, *notes_on_reward(setup.config, prompts.problems), *overlap]
