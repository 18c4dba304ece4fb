"""The problems of a run: generated, or read from a dataset."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rljax.data.arithmetic import arithmetic, unfinished
from rljax.data.dataset import read_problems
from rljax.data.fault import Fault
from rljax.data.iteration import iteration, lapses
from rljax.data.length_batches import LengthStream
from rljax.data.problem import Problem
from rljax.data.prompts import PromptStream
from rljax.errors import InputError
from rljax.training.config import TrainConfig

COMPARING = frozenset({"exact", "math", "math_or_last_number", "gsm8k", "aime", "yes_no", "multiple_choice"})
"""Rewards that mean nothing without a reference answer."""


class Problems(NamedTuple):
    """What is trained and evaluated on; the two share no prompt."""

    train: Sequence[Problem]
    heldout: Sequence[Problem]
    faults: Sequence[Fault] = ()
    """What was wrong with the rows of a dataset."""


def generate_problems(config: TrainConfig) -> Problems:
    """Generate problems of the configured task."""
    if config.task == "iteration":
        options = {"seed": config.seed, "steps": config.iterations}
        train = lapses(iteration("train", config.train_problems, **options), share=config.lapse_share)
        return Problems(train, iteration("heldout", config.heldout_problems, **options))
    difficulty = {
        "operands": config.operands,
        "digits": config.digits,
        "operators": config.operators,
        "nesting": config.nesting,
    }
    train = arithmetic("train", config.train_problems, seed=config.seed, **difficulty)
    train = unfinished(train, share=config.unfinished_share, operands=config.unfinished_operands)
    return Problems(train, arithmetic("heldout", config.heldout_problems, seed=config.seed, **difficulty))


def make_problems(config: TrainConfig) -> Problems:
    """Generate or load the problems to train and to evaluate on."""
    if config.dataset is None:
        return generate_problems(config)
    options = {
        "prompt_column": config.prompt_column,
        "answer_column": config.answer_column,
        "demonstration_column": config.demonstration_column,
        "on_error": config.on_error,
    }
    loaded = read_problems(config.dataset, **options)
    if config.reward in COMPARING and not any(problem.answer for problem in loaded.problems):
        raise InputError(
            f"The reward {config.reward!r} compares with answers, and no problem of {config.dataset!r} has one; choose one that "
            "needs none, such as code, or name the column with --answer-column."
        )
    if config.heldout_dataset is None:
        return Problems(*split_heldout(loaded.problems, config.heldout_problems, seed=config.seed), loaded.faults)
    apart = read_problems(config.heldout_dataset, split="test", **options)
    heldout = apart.problems[: config.heldout_problems]
    asked = {problem.prompt for problem in heldout}
    problems = [problem for problem in loaded.problems if problem.prompt not in asked]
    if not problems:
        raise InputError(
            f"Every prompt of {config.dataset!r} is in {config.heldout_dataset!r} too; nothing is left to train on."
        )
    return Problems(problems, heldout, [*loaded.faults, *apart.faults])


def split_heldout(problems: list[Problem], count: int, *, seed: int) -> tuple[list[Problem], list[Problem]]:
    """Set `count` prompts apart, at most a tenth of them, by a seeded draw; copies of a prompt stay on one side."""
    prompts = sorted({problem.prompt for problem in problems})
    if len(prompts) < 2:
        raise InputError("The dataset has a single prompt, so none can be held out; give --heldout-dataset.")
    count = max(1, min(count, len(prompts) // 10))
    chosen = np.random.default_rng(seed).choice(len(prompts), count, replace=False)
    apart = {prompts[index] for index in chosen}
    train = [problem for problem in problems if problem.prompt not in apart]
    heldout = [problem for problem in problems if problem.prompt in apart]
    return train, heldout[:count]


def make_stream(config: TrainConfig, problems: Sequence[Problem]) -> PromptStream:
    """Put the training problems in an order: each once an epoch, or drawn by length where that is asked for."""
    places = range(len(problems))
    if config.length_weights is None:
        return PromptStream(places, seed=config.seed)
    worked = all(problem.demonstration for problem in problems)
    lengths = [len(problem.demonstration if worked else problem.prompt) for problem in problems]
    return LengthStream(places, lengths, weights=config.length_weights, seed=config.seed)
