"""Can a selector that is trained on the claims' tasks choose an algorithm for a new task better than "always DAPO"?

The tasks come from `rljax claims`. A task is the world, initial policy, rollout settings, verifier, sampler and optimizer of an
arm, but not its algorithm; arms that share all of these are one task. Each of six algorithms has a score on each task: the mean
pass rate during training, for the first 16 seeds of the claim. Scores in the claims' results are reused. A claim seldom has more
than one of the six algorithms, so the others are measured here as additional arms, by the claim's own `measure`. Their learning
rate is the claim's, or the best of its rates on other seeds.

The selector is a ridge regression on facts that are known before training. `lab.claim_tasks.facts_of` computes them from the
setting and the initial policy. For each task, the regression is fitted without this task and all related tasks. In the first
analysis, tasks are related if they share a claim, or both the world and all facts; in the second, if they share the world.

The regret of a choice is the score of the algorithm that a trial on the task itself chooses, minus the score of the choice. All
choices, including the trial's, are made from 15 seeds and scored on the remaining one, for each seed in turn. A choice based on
other tasks can be better than the trial's, so a regret may be negative.

Command:

    python experiments/selector.py

selector.json and selector.md were written on 2026-11-28, in 15 minutes on 2 busy cores of an AMD EPYC (Python 3.11.7, JAX 0.10.2).
The command can be stopped and repeated: scores that selector.json already has for the current claims and algorithms are not
measured again.

Limits: tasks of one world have much in common, so intervals over tasks are too narrow, and there are only seven worlds. In most
claims, a rollout has one update and the sampler has the current parameters; then GRPO, CISPO, SAPO and GSPO do nearly the same.
If a claim has only one learning rate, an algorithm may lose because of that rate alone. Dynamic sampling samples no additional
prompts: DAPO drops groups without a signal, and all algorithms have the same number of responses. The facts and the penalty of
the regression were chosen before the first score was measured.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from lab.claim_tasks import (
    PASS_RATE,
    SEEDS,
    ClaimTasks,
    facts_of,
    find_tasks,
    scores_in_results,
    with_algorithm,
    world_hash,
)
from lab.claims import ClaimFile, claim_files, find_claim_file, over_seeds, read_claim_file
from lab.keys import arm_key
from lab.results import Results, algorithms_in, read_results
from lab.rows import add_missing_rows, made_on, write_rows
from rljax.algorithms import cispo, dapo, grpo, gspo, rloo, sapo
from rljax.files import settings_hash

ALGORITHMS = {
    "dapo": dapo(),
    "grpo": grpo(beta=0.0),
    "rloo": rloo(),
    "cispo": cispo(),
    "sapo": sapo(),
    "gspo": gspo(clip_low=0.02, clip_high=0.03),
}
LOGARITHMS = ("contexts", "prompts", "group", "steps", "updates", "delay", "length")
"""Facts that the regression uses as log(1 + fact), because a delay may be 0."""
PENALTY, OTHER_PENALTIES = 10.0, (1.0, 100.0)
"""Penalty of the regression, fixed before the first score was measured, and other penalties that the page shows."""
OUT = Path(__file__).with_suffix(".json")


class Regrets(NamedTuple):
    """Regret per task of each way of choosing an algorithm, compared with a trial on the task itself.

    A choice is scored on a seed that was not used to make it. It can be better than the trial's, so a regret may be negative.

    Axes: N tasks, S seeds.
    """

    selector: Float[np.ndarray, "N"]
    """Regret of the ridge regression on the facts of the task, fitted to other tasks."""
    best_on_others: Float[np.ndarray, "N"]
    """Regret of the algorithm with the highest mean score on the other tasks."""
    fixed: Float[np.ndarray, "N"]
    """Regret of always choosing the same algorithm."""
    chosen: Int[np.ndarray, "N S"]
    """Index of the algorithm that the selector chooses for each task, if it does not see scoring seed s."""
    usual: Int[np.ndarray, "N S"]
    """Index of the algorithm with the highest mean score on the other tasks, without scoring seed s."""


def cross_fitted_best(scores: Float[np.ndarray, "N A S"]) -> Float[np.ndarray, "N"]:
    """Compute the score of the best algorithm of each task, chosen on all seeds except the one that scores it.

    The highest of several means is biased upwards, because it is partly the highest by chance. The bias is avoided here, because
    the scoring seed is independent of the seeds that choose the algorithm.

    ::

        b_n = 1/S Σ_s y[n, argmax_a Σ_{r ≠ s} y[n, a, r], s]

    Args:
        scores: y, scores of A algorithms on N tasks with S seeds; larger is better.

    Raises:
        ValueError: there are fewer than two seeds.

    Example:
        >>> import numpy as np
        >>> float(cross_fitted_best(np.array([[[1.0, 0.0], [0.0, 1.0]]]))[0])
        0.0
    """
    seeds = scores.shape[-1]
    if seeds < 2:
        raise ValueError(f"scores must have two or more seeds, got {seeds}")
    others = scores.sum(-1, keepdims=True) - scores
    return np.take_along_axis(scores, others.argmax(1, keepdims=True), axis=1)[:, 0].mean(-1)


def ridge(facts: Float[np.ndarray, "N F"], gains: Float[np.ndarray, "N A"], *, penalty: float) -> Float[np.ndarray, "F1 A"]:
    """Fit a linear model by ridge regression; return its coefficients B, and its unpenalized constant c in the last row.

    ::

        min_{B, c} Σ_n |y_n - c - x_n B|² + penalty |B|²

    Args:
        facts: x, one row per task.
        gains: y, one row per task and one column per algorithm.
        penalty: weight of the penalty, at least 0.

    Example:
        >>> import numpy as np
        >>> ridge(np.array([[0.0], [1.0]]), np.array([[1.0], [3.0]]), penalty=0.0).round(6).tolist()
        [[2.0], [1.0]]
    """
    mean, level = facts.mean(0), gains.mean(0)
    x = facts - mean
    slope = (
        np.linalg.solve(x.T @ x + penalty * np.eye(x.shape[1]), x.T @ (gains - level))
        if x.any()
        else np.zeros((x.shape[1], gains.shape[1]))
    )
    return np.concatenate([slope, (level - mean @ slope)[None]])


def standardize(facts: Float[np.ndarray, "N F"], like: Float[np.ndarray, "M F"]) -> Float[np.ndarray, "N F"]:
    """Standardize facts by the mean and standard deviation of `like`; a fact that is constant in `like` becomes 0."""
    spread = like.std(0)
    return np.where(spread > 0, (facts - like.mean(0)) / np.where(spread > 0, spread, 1.0), 0.0)


def choose(
    facts: Float[np.ndarray, "N F"], scores: Float[np.ndarray, "N A"], task: Float[np.ndarray, "F"], *, penalty: float
) -> int:
    """Return the index of the algorithm with the highest predicted score for a task.

    The model predicts a score minus the mean score of the task's algorithms, because the difficulty of a task does not matter for
    the choice.

    Args:
        facts: facts of the tasks to which the model is fitted.
        scores: score of each algorithm on these tasks.
        task: facts of the new task.
        penalty: penalty of the regression on standardized facts.
    """
    gains = scores - scores.mean(1, keepdims=True)
    model = ridge(standardize(facts, facts), gains, penalty=penalty)
    return int((standardize(task[None], facts)[0] @ model[:-1] + model[-1]).argmax())


def leave_out(
    facts: Float[np.ndarray, "N F"],
    scores: Float[np.ndarray, "N A S"],
    related: Bool[np.ndarray, "N N"],
    *,
    fixed: int,
    penalty: float,
) -> Regrets:
    """Choose an algorithm for each task based on unrelated tasks, and compute the regrets.

    Every choice, including the trial's, is made on all seeds except one and scored on that one, for each seed in turn.

    Args:
        facts: facts of each task.
        scores: score of each algorithm on each task; larger is better.
        related: row n is True for the tasks that must not be used to choose for task n, including task n itself.
        fixed: index of the algorithm that `Regrets.fixed` always chooses.
        penalty: penalty for `choose`.

    Raises:
        ValueError: a task is not related to itself, or has fewer than two unrelated tasks.

    Example:
        >>> import numpy as np
        >>> facts, means = np.array([[0.0], [0.1], [1.0], [1.1]]), np.array([[1.0, 0], [1, 0], [0, 1], [0, 1]])
        >>> found = leave_out(facts, means[:, :, None].repeat(2, -1), np.eye(4, dtype=bool), fixed=0, penalty=0.01)
        >>> found.chosen[:, 0].tolist(), found.selector.tolist(), found.fixed.tolist()
        ([0, 0, 1, 1], [0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 1.0, 1.0])
    """
    count, _, seeds = scores.shape
    if not related.diagonal().all():
        raise ValueError("each task must be related to itself: the diagonal of `related` must be True")
    if (~related).sum(1).min() < 2:
        raise ValueError(f"each task must have two or more unrelated tasks, got one with {(~related).sum(1).min()}")
    best, tasks = cross_fitted_best(scores), np.arange(count)
    chosen, usual = np.zeros((2, count, seeds), int)
    for seed in range(seeds):
        means = np.delete(scores, seed, axis=-1).mean(-1)
        for n, rest in enumerate(~related):
            chosen[n, seed] = choose(facts[rest], means[rest], facts[n], penalty=penalty)
            usual[n, seed] = means[rest].mean(0).argmax()
    of_choice, of_usual = (scores[tasks[:, None], which, np.arange(seeds)].mean(-1) for which in (chosen, usual))
    return Regrets(best - of_choice, best - of_usual, best - scores[:, fixed].mean(-1), chosen, usual)


def hash_settings(row: Mapping[str, Any]) -> str:
    """Compute a hash of the settings that a score depends on: the arm of the claim, the algorithm, and the seeds."""
    algorithm = ALGORITHMS[row["algorithm"]]
    return settings_hash(key_of(row["claim"], row["arm"]), row["arm"], algorithms_in(algorithm), SEEDS)


@cache
def key_of(claim: str, arm: str) -> str:
    """Return the key of an arm of a claim."""
    return arm_key(find_claim_file(claim), arm)


def read_claims() -> tuple[dict[str, ClaimFile], dict[str, Results], ClaimTasks]:
    """Read the claims and their results, and find their tasks."""
    pages = {name: read_claim_file(file) for name, file in claim_files().items()}
    results = {name: read_results(page) for name, page in pages.items()}
    return pages, results, find_tasks([*pages.values()], results)


def facts_to_features(facts: Mapping[str, float]) -> list[float]:
    """Convert facts to inputs of the regression."""
    return [float(np.log1p(value)) if name in LOGARITHMS else value for name, value in facts.items()]


def are_related(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether two tasks share a claim, or share the world and all facts (as when only 1 / -1 replace rewards of 1 / 0)."""
    alike = (one["world"], one["facts"]) == (other["world"], other["facts"])
    return alike or not {*one["claims"]}.isdisjoint(other["claims"])


def regret_lines(all_found: Mapping[str, Regrets], worlds: Sequence[str]) -> list[str]:
    """Format a table row for each way of choosing: mean regret over the tasks and over the worlds, and the largest regret."""

    def cells(regret: np.ndarray) -> str:
        of_world = [regret[np.array(worlds) == world].mean() for world in dict.fromkeys(worlds)]
        return f"{over_seeds(100 * regret).text()} | {over_seeds(100 * np.array(of_world)).text()} | {100 * regret.max():.3g} |"

    main = next(iter(all_found.values()))
    named = {f"ridge, penalty {penalty}": found.selector for penalty, found in all_found.items()}
    named |= {"best on the other tasks": main.best_on_others, "always dapo": main.fixed}
    lines = [f"| {name} | {cells(regret)}" for name, regret in named.items()]
    lines.append(f"| always dapo minus ridge, penalty {PENALTY:g} | {cells(main.fixed - main.selector)}")
    lines.append(f"| best on the others minus ridge, penalty {PENALTY:g} | {cells(main.best_on_others - main.selector)}")
    return lines


def most_frequent(choices: np.ndarray) -> int:
    """Return the index of the algorithm that is chosen most often."""
    return int(np.bincount(choices).argmax())


def report(rows: Sequence[Mapping[str, Any]]) -> str:
    """Format regrets and scores in Markdown."""
    names = list(ALGORITHMS)
    tasks = list({(row["claim"], row["arm"]): row for row in rows}.values())
    by_key = {(row["claim"], row["arm"], row["algorithm"]): row["scores"] for row in rows}
    scores = np.array([[by_key[(task["claim"], task["arm"], name)] for name in names] for task in tasks])
    facts = np.array([facts_to_features(task["facts"]) for task in tasks])
    worlds = [task["world"] for task in tasks]
    related = {
        "claim": np.array([[are_related(one, other) for other in tasks] for one in tasks]),
        "world": np.array([[one == other for other in worlds] for one in worlds]),
    }
    means = scores.mean(-1)
    close = int((np.ptp(means, axis=1) < 0.01).sum())
    lines, chosen = (
        [f"In {close} of the {len(tasks)} tasks, the scores of all {len(names)} algorithms are within one point.", ""],
        [],
    )
    for kind, mask in related.items():
        all_found = {
            f"{penalty:g}": leave_out(facts, scores, mask, fixed=names.index("dapo"), penalty=penalty)
            for penalty in (PENALTY, *OTHER_PENALTIES)
        }
        main = all_found[f"{PENALTY:g}"]
        chosen.append([names[most_frequent(row)] for row in main.chosen])
        usual = most_frequent(main.usual.ravel())
        lines += [
            f"Without the tasks of the same {kind}; regret in points of pass rate, with 95 % intervals. The best on the others",
            f"is `{names[usual]}` for {(main.usual == usual).mean():.0%} of all tasks and seeds.",
            "",
            f"| choice | mean over {len(tasks)} tasks | mean over {len({*worlds})} worlds | largest |",
            "| --- | --- | --- | --- |",
            *regret_lines(all_found, worlds),
            "",
        ]
    lines += [
        f"| claim: arm | claims | {' | '.join(names)} | ridge | without the world |",
        f"|{' --- |' * (len(names) + 4)}",
    ]
    for task, row, *of_selector in zip(tasks, means, *chosen, strict=True):
        cells = [f"**{score:.1%}**" if score == row.max() else f"{score:.1%}" for score in row]
        label = f"{task['claim']}: {task['arm']}".replace("|", "/")
        lines.append(f"| {label} | {len(task['claims'])} | {' | '.join([*cells, *of_selector])} |")
    return "\n".join(lines) + "\n"


def tasks_text(found: ClaimTasks, rows: Sequence[Mapping[str, Any]]) -> str:
    """Describe how many scores the claims' results already contained, and how many were measured in addition."""
    without = [len(names) for names in (found.without_setting, found.without_pass_rate, found.own_rewards)]
    claims = len({name for task in found.tasks for name in task.claims})
    in_results = Counter((row["claim"], row["arm"]) for row in rows if row["from"])
    tasks, pairs, several = len(found.tasks), in_results.total(), sum(count > 1 for count in in_results.values())
    complete = sum(count == len(ALGORITHMS) for count in in_results.values())
    return f"""\
Of {sum(without) + claims} claims, {without[0]} train no table of logits by a `Setting`, {without[1]} have no mean pass rate during
training among their metrics, and {without[2]} has rewards that only its own algorithms can read. The other {claims} have {tasks}
tasks. Of the {len(rows)} pairs of task and algorithm, their results contain {pairs}: none for {tasks - len(in_results)} tasks,
one for {len(in_results) - several}, more for {several}, and all six for {complete}: few arms use one of the six unchanged.
The other {len(rows) - pairs} pairs were measured as further arms of the claims. Without them the claims' results cannot train a
selector: a comparison of two arms says nothing about other algorithms. Tasks of one world have much in common, so intervals
over tasks are too narrow.
"""


def main() -> None:
    """Measure the scores that are missing, and write the tables."""
    pages, results, found = read_claims()
    by_key = {(task.page.name, task.arm): task for task in found.tasks}

    @cache
    def task_facts(claim: str, arm: str) -> dict[str, Any]:
        task = by_key[(claim, arm)]
        return {
            "claims": task.claims,
            "world": world_hash(task.setting.world),
            "facts": facts_of(task.setting, task.seeds),
        }

    def score(claim: str, arm: str, algorithm: str) -> dict[str, Any]:
        task = by_key[(claim, arm)]
        origin, scores = scores_in_results(task, ALGORITHMS[algorithm], pages, results) or ("", [])
        if not scores:
            changed = with_algorithm(task.page.claim.arms[arm], ALGORITHMS[algorithm])
            scores = np.asarray(task.page.claim.measure(changed, task.seeds)[PASS_RATE]).tolist()
        return {**task_facts(claim, arm), "from": origin, "scores": [float(f"{value:.4g}") for value in scores]}

    wanted = [{"claim": claim, "arm": arm, "algorithm": name} for claim, arm in by_key for name in ALGORITHMS]
    rows = add_missing_rows(OUT, wanted, score, settings=hash_settings)
    rows = [row | task_facts(row["claim"], row["arm"]) for row in rows if (row["claim"], row["arm"]) in by_key]
    write_rows(OUT, rows)
    tables = f"{tasks_text(found, rows)}\n{report(rows)}"
    OUT.with_suffix(".md").write_text(f"`python experiments/selector.py` ({made_on()})\n\n{tables}", encoding="utf-8")
    print(tables)


if __name__ == "__main__":
    main()
