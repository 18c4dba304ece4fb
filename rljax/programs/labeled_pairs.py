"""Preference pairs from a policy's own responses: a reward judges the responses, and each wrong one is paired with a right one."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from rljax.data.chat import chat_columns
from rljax.data.problem import Problem
from rljax.errors import InputError
from rljax.files import atomic_write
from rljax.programs.answer_settings import PairSettings, with_changes
from rljax.programs.evaluation import open_sampler
from rljax.programs.trained_policy import OpenPolicy, find_run
from rljax.rollout import RolloutWorker
from rljax.rollout.groups import correctness_masks
from rljax.settings.checks import check_new_file
from rljax.text import json_lines
from rljax.training.parts.problems import training_problems

DEFAULTS = PairSettings()


class LabelCounts(NamedTuple):
    """Counts of the sampled responses and the written pairs."""

    pairs: int
    """Number of pairs."""
    right: float
    """Fraction of right responses, among those whose correctness is known."""
    from_demonstrations: int
    """Number of prompts whose demonstration is the chosen response in every pair, because no sampled response is right."""
    without_pair: int
    """Number of prompts without a pair: all responses are right, or none is right and there is no right demonstration."""
    unjudged: int = 0
    """Number of responses without a verdict; they are not used in any pair."""
    dropped: int = 0
    """Number of problems that were dropped because their prompts are too long."""


def label_responses(target: str | Path, out: str | Path, settings: PairSettings = DEFAULTS, **changes: Any) -> LabelCounts:
    """Sample responses from a policy, judge them, and write preference pairs for `rljax reward-model` and `rljax preference`.

    Each distinct wrong response becomes the rejected half of one pair. The right responses to the prompt take turns as the chosen
    half; if there is none, the demonstration of the problem is the chosen half, provided that it is right.

    Args:
        target: folder of a run or of its checkpoint, model folder or hub id.
        out: JSONL file to write; it must not exist yet, but its folder must.
        settings: settings of the problems and the sampling.
        **changes: fields of `settings` by name.

    Raises:
        InputError: the policy, the problems or the reward cannot be opened, a number is out of range, the file exists, its folder
            does not exist, or there is no pair.
    """
    settings, out = with_changes(settings, changes), Path(out)
    check_new_file(out)
    run, _ = find_run(target, settings.checkpoint)
    problems = training_problems(run, target) if settings.dataset is None else None
    opened, worker = open_sampler(target, settings, temperature=settings.temperature, problems=problems)
    rows, counts = _label_problems(opened, worker, settings)
    if not rows:
        right_fraction = counts.right
        known = "all are right" if right_fraction == 1 else f"{right_fraction:.0%} are right"
        known = "no response has a verdict" if np.isnan(right_fraction) else known
        raise InputError(
            f"no prompt has both a right and a wrong response ({known}); raise --samples, or give other problems or another "
            "--reward."
        )
    atomic_write(out, json_lines(rows))
    return counts


def _label_problems(
    opened: OpenPolicy, worker: RolloutWorker, settings: PairSettings
) -> tuple[list[dict[str, Any]], LabelCounts]:
    """Make the rows of the pairs, and the counts."""
    problems, seed = worker.prompts.problems, settings.seed
    chosen = np.random.default_rng(seed).permutation(len(problems))[: settings.prompts].tolist()
    groups = worker.generate(opened.params, chosen, settings.samples, jax.random.key(seed))
    right, known = correctness_masks(groups.rollout)
    rows: list[dict[str, Any]] = []
    from_demonstrations = without_pair = 0
    for group, problem in enumerate(problems[index] for index in chosen):
        texts = [worker.text(*row) for row in zip(groups.tokens[group], groups.attention[group], strict=True)]
        good = [text for text, selected in zip(texts, right[group] & known[group], strict=True) if selected]
        bad = [text for text, selected in zip(texts, ~right[group] & known[group], strict=True) if selected]
        demonstration = problem.demonstration
        if bad and not good and demonstration and is_right(worker, problem, demonstration):
            good, from_demonstrations = [demonstration], from_demonstrations + 1
        pairs = pairs_of(good, bad)
        without_pair += not pairs
        rows += [row_of(problem, *pair) for pair in pairs]
    fraction = float((right & known).sum() / known.sum()) if known.any() else np.nan
    unjudged = int((~known).sum())
    return rows, LabelCounts(len(rows), fraction, from_demonstrations, without_pair, unjudged, worker.prompts.dropped)


def is_right(worker: RolloutWorker, problem: Problem, response: str) -> bool:
    """Return True if the worker's reward judges a response as right."""
    scores = worker.judge.score_texts([problem], [response])
    return bool(scores.valid[0] and (scores.total if scores.correct is None else scores.correct)[0] > 0)


def pairs_of(right: Sequence[str], wrong: Sequence[str]) -> list[tuple[str, str]]:
    """Pair each wrong response with a right one; duplicates count once, and empty responses are ignored.

    Example:
        >>> pairs_of(["a", "b", "a"], ["x", "y", "", "x", "z"])
        [('a', 'x'), ('b', 'y'), ('a', 'z')]
        >>> pairs_of([], ["x"])
        []
    """
    chosen, rejected = (list(dict.fromkeys(filter(None, texts))) for texts in (right, wrong))
    return [(chosen[index % len(chosen)], text) for index, text in enumerate(rejected)] if chosen else []


def row_of(problem: Problem, chosen: str, rejected: str) -> dict[str, Any]:
    """Make a pair in TRL's format: texts, or messages if the prompt is a chat.

    Example:
        >>> row_of(Problem("1+1=", "2"), "2", "3")
        {'prompt': '1+1=', 'chosen': '2', 'rejected': '3'}
    """
    if problem.messages is None:
        return {"prompt": problem.prompt, "chosen": chosen, "rejected": rejected}
    replies = [[{"role": "assistant", "content": text}] for text in (chosen, rejected)]
    pair = {"prompt": [dict(message) for message in problem.messages], "chosen": replies[0], "rejected": replies[1]}
    return pair | chat_columns(problem.columns)
