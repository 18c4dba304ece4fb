"""Preference pairs from a policy's own responses: a verifier says which are right, and each wrong one gets a right one."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from rljax.data.problem import Problem, reward_columns
from rljax.errors import InputError
from rljax.files import atomic_write
from rljax.records import documented
from rljax.rewards.protocol import judge
from rljax.rollout import RolloutWorker
from rljax.rollout.groups import right_and_known
from rljax.settings.checks import check_new_file
from rljax.training.inference.answers import check_numbers, check_temperature
from rljax.training.inference.trained_policy import OpenPolicy, Which, find_run, load
from rljax.training.parts.problems import training_problems
from rljax.training.parts.seams import refuse_missing


@documented
class Labelled(NamedTuple):
    """Counts of what was drawn and written."""

    pairs: int
    """Number of pairs."""
    right: float
    """Share of the responses that are right, of those of which it is known."""
    demonstrated: int
    """Prompts without a right response, whose demonstration takes its place."""
    without: int
    """Prompts without a pair: all their responses are right, or none is and there is no right demonstration."""


def label_responses(
    target: str | Path,
    out: str | Path,
    *,
    which: Which = "last",
    dataset: str | None = None,
    reward: str | None = None,
    prompts: int = 256,
    samples: int = 8,
    temperature: float = 1.0,
    seed: int = 0,
) -> Labelled:
    """Draw responses of a policy, have them judged, and write preference pairs for `rljax reward-model` and `rljax preference`.

    Each response that is wrong, and unlike the others to its prompt, is rejected in one pair. Right responses to the prompt are
    chosen in turn; if there is none, the demonstration of the problem is, provided that it is right.

    Args:
        target: folder of a run or of its checkpoint, model folder or hub id.
        out: JSONL file to write; it must not exist yet, but its folder must.
        which: "best" or "last" checkpoint of a run.
        dataset: problems to respond to; by default those that the run was trained on.
        reward: says what is right, in place of the run's own reward.
        prompts: number of random problems; fewer if there are fewer.
        samples: responses to each.
        temperature: of the sampling, above 0.
        seed: of the choice of problems and of the sampling.

    Raises:
        InputError: a part cannot be opened or judges nothing, a number is out of range, the file exists or its folder does not, or
            there is no pair.
    """
    out = Path(out)
    check_new_file(out)
    if prompts < 1:
        raise InputError(f"--prompts is {prompts}; it must be at least 1.")
    check_numbers(limit=None, samples=samples, batch=1, seed=seed)
    check_temperature(temperature)
    run, _ = find_run(target, which)
    problems = training_problems(run, target) if dataset is None else None
    opened = load(target, which=which, dataset=dataset, problems=problems, reward=reward)
    refuse_missing(opened.missing)
    worker = opened.sampler(temperature=temperature, top_k=None, top_p=None)
    rows, labelled = _label(opened, worker, prompts=prompts, samples=samples, seed=seed)
    if not rows:
        known = "all are right" if labelled.right == 1 else f"{labelled.right:.0%} are right"
        raise InputError(
            f"no prompt has both a right and a wrong response ({known}); draw more --samples, or give other problems or another "
            "--reward."
        )
    atomic_write(out, "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows).encode())
    return labelled


def _label(
    opened: OpenPolicy, worker: RolloutWorker, *, prompts: int, samples: int, seed: int
) -> tuple[list[dict[str, Any]], Labelled]:
    """Rows of the pairs, and their numbers."""
    problems = worker.prompts.problems
    chosen = np.random.default_rng(seed).permutation(len(problems))[:prompts].tolist()
    groups = worker.generate(opened.params, chosen, samples, jax.random.key(seed))
    right, known = right_and_known(groups.rollout)
    rows: list[dict[str, Any]] = []
    demonstrated = without = 0
    for place, problem in enumerate(problems[index] for index in chosen):
        texts = [worker.text(*row) for row in zip(groups.tokens[place], groups.attention[place], strict=True)]
        good = [text for text, picks in zip(texts, right[place] & known[place], strict=True) if picks]
        bad = [text for text, picks in zip(texts, ~right[place] & known[place], strict=True) if picks]
        worked = problem.demonstration
        if bad and not good and worked and is_right(worker, problem, worked):
            good, demonstrated = [worked], demonstrated + 1
        pairs = pairs_of(good, bad)
        without += not pairs
        rows += [row_of(problem, *pair) for pair in pairs]
    share = float(right.sum() / known.sum()) if known.any() else 0.0
    return rows, Labelled(len(rows), share, demonstrated, without)


def is_right(worker: RolloutWorker, problem: Problem, response: str) -> bool:
    """True if the worker's reward finds a response right."""
    scores = judge(worker.judge.reward, [problem.prompt], [response], reward_columns([problem]))
    return bool(scores.valid[0] and (scores.total if scores.correct is None else scores.correct)[0] > 0)


def pairs_of(right: Sequence[str], wrong: Sequence[str]) -> list[tuple[str, str]]:
    """Put a right response beside each wrong one; equal responses count once, and empty ones not at all.

    Example:
        >>> pairs_of(["a", "b", "a"], ["x", "y", "", "x", "z"])
        [('a', 'x'), ('b', 'y'), ('a', 'z')]
        >>> pairs_of([], ["x"])
        []
    """
    chosen, rejected = (list(dict.fromkeys(filter(None, texts))) for texts in (right, wrong))
    return [(chosen[place % len(chosen)], text) for place, text in enumerate(rejected)] if chosen else []


def row_of(problem: Problem, chosen: str, rejected: str) -> dict[str, Any]:
    """A pair in TRL's format: texts, or messages where the prompt is a chat.

    Example:
        >>> row_of(Problem("1+1=", "2"), "2", "3")
        {'prompt': '1+1=', 'chosen': '2', 'rejected': '3'}
    """
    if problem.messages is None:
        return {"prompt": problem.prompt, "chosen": chosen, "rejected": rejected}
    replies = [[{"role": "assistant", "content": text}] for text in (chosen, rejected)]
    return {"prompt": [dict(message) for message in problem.messages], "chosen": replies[0], "rejected": replies[1]}
