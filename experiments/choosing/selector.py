"""Can a selector that learns from the claims choose an algorithm for a new task better than "always DAPO"?

The tasks are those of `rljax claims`: world, first policy, rollout, verifier, sampler and optimiser of an arm, but not its
algorithm. Arms that share all of these are one task. Six algorithms have a score on each: the mean pass rate during training, for
the first 16 seeds of the claim. A claim seldom has more than one of the six, so the others are measured here as further arms, by
the claim's own `measure`: at its learning rate, or at the best of its rates on other seeds. Scores that a claim has are taken from
its results.

The selector is a ridge regression on facts that are known before training, all read from the setting and the first policy by
`rljax.book.claim_tasks.facts_of`. It is fitted without the task that it chooses for, and without every task that shares a claim, or
world and all facts, with it; then without every task of the same world.

A regret is the score of the best algorithm of a trial on the task less that of the choice. All choices, that of the trial too, are
made by 15 seeds and scored by the other one, in turn. A choice by other tasks can be better than a trial, so that a regret may be
negative.

Command:

    python experiments/choosing/selector.py

selector.json and selector.md: 2026-11-23, 15 minutes on 2 cores of an AMD EPYC, Python 3.11.7, JAX 0.10.2. It can be stopped and
repeated: scores that selector.json has, of claims and algorithms as they are now, are not measured again.

Limits: tasks of one world have much in common, so intervals over tasks are too narrow, and there are only seven worlds. In most
claims a rollout has one update and a fresh sampler, where GRPO, CISPO, SAPO and GSPO do nearly the same. Where a claim has one
learning rate, an algorithm may lose by that rate alone. Dynamic sampling draws no further prompts: DAPO drops groups without a
signal, and all algorithms have as many responses. The facts and the penalty of the regression were set before the first score was
measured.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from rljax.algorithms import cispo, dapo, grpo, gspo, rloo, sapo
from rljax.book.claim_results import Results, algorithms_in, read_results, version_of
from rljax.book.claim_tasks import (
    NUMBER,
    SEEDS,
    Sources,
    facts_of,
    scores_in_results,
    sources,
    with_algorithm,
    world_hash,
)
from rljax.book.claims import Page, claim_files, over_seeds, read_page
from rljax.book.experiment_rows import add_missing_rows, made_on, settings_hash, write_rows
from rljax.book.selector import Regrets, leave_out

ALGORITHMS = {
    "dapo": dapo(),
    "grpo": grpo(beta=0.0),
    "rloo": rloo(),
    "cispo": cispo(),
    "sapo": sapo(),
    "gspo": gspo(clip_low=0.02, clip_high=0.03),
}
LOGARITHMS = ("contexts", "prompts", "group", "steps", "updates", "delay", "length")
"""Facts that count by their order of magnitude, plus 1 as a delay may be 0."""
PENALTY, OTHER_PENALTIES = 10.0, (1.0, 100.0)
OUT = Path(__file__).resolve().parents[1] / "selector.json"


def settings_of(row: Mapping[str, Any]) -> str:
    """Hash of what a score depends on: the claim, the algorithm, and the seeds."""
    return settings_hash(
        version_of(claim_files()[row["claim"]]), row["arm"], algorithms_in(ALGORITHMS[row["algorithm"]]), SEEDS
    )


def read_claims() -> tuple[dict[str, Page], dict[str, Results], Sources]:
    """Read the claims and their results, and find their tasks."""
    pages = {name: read_page(file) for name, file in claim_files().items()}
    results = {name: read_results(page) for name, page in pages.items()}
    return pages, results, sources([*pages.values()], results)


def features(facts: Mapping[str, float]) -> list[float]:
    """Facts as the regression takes them."""
    return [float(np.log1p(value)) if name in LOGARITHMS else value for name, value in facts.items()]


def are_related(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two tasks share a claim, or world and all facts, as where rewards of 1 and -1 stand for 1 and 0."""
    alike = (one["world"], one["facts"]) == (other["world"], other["facts"])
    return alike or not {*one["claims"]}.isdisjoint(other["claims"])


def regret_lines(all_found: Mapping[str, Regrets], worlds: Sequence[str]) -> list[str]:
    """A row for each way of choosing: means over the tasks, and over the worlds."""

    def cells(regret: np.ndarray) -> str:
        of_world = [regret[np.array(worlds) == world].mean() for world in dict.fromkeys(worlds)]
        return f"{over_seeds(100 * regret).text()} | {over_seeds(100 * np.array(of_world)).text()} | {100 * regret.max():.3g} |"

    main = next(iter(all_found.values()))
    named = {f"ridge, penalty {penalty}": found.selector for penalty, found in all_found.items()}
    named |= {"best on the other tasks": main.best_on_others, "always dapo": main.fixed}
    lines = [f"| {name} | {cells(regret)}" for name, regret in named.items()]
    lines.append(f"| always dapo less ridge, penalty {PENALTY:g} | {cells(main.fixed - main.selector)}")
    lines.append(f"| best on the others less ridge, penalty {PENALTY:g} | {cells(main.best_on_others - main.selector)}")
    return lines


def most_frequent(choices: np.ndarray) -> int:
    """The algorithm that is chosen for most seeds."""
    return int(np.bincount(choices).argmax())


def report(rows: Sequence[Mapping[str, Any]]) -> str:
    """Regrets and scores in Markdown."""
    names = list(ALGORITHMS)
    tasks = list({(row["claim"], row["arm"]): row for row in rows}.values())
    by_key = {(row["claim"], row["arm"], row["algorithm"]): row["scores"] for row in rows}
    scores = np.array([[by_key[(task["claim"], task["arm"], name)] for name in names] for task in tasks])
    facts = np.array([features(task["facts"]) for task in tasks])
    worlds = [task["world"] for task in tasks]
    related = {
        "claim": np.array([[are_related(one, other) for other in tasks] for one in tasks]),
        "world": np.array([[one == other for other in worlds] for one in worlds]),
    }
    means = scores.mean(-1)
    close = int((np.ptp(means, axis=1) < 0.01).sum())
    lines, chosen = [f"In {close} of the {len(tasks)} tasks the scores of all {len(names)} lie within a point.", ""], []
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


def sources_text(found: Sources, rows: Sequence[Mapping[str, Any]]) -> str:
    """How much of the claims' results could be used as it is, and what was added."""
    without = [len(names) for names in (found.without_setting, found.without_number, found.own_rewards)]
    claims = len({name for task in found.tasks for name in task.claims})
    in_results = Counter((row["claim"], row["arm"]) for row in rows if row["from"])
    tasks, pairs, several = len(found.tasks), in_results.total(), sum(count > 1 for count in in_results.values())
    complete = sum(count == len(ALGORITHMS) for count in in_results.values())
    return f"""\
Of {sum(without) + claims} claims {without[0]} train no table of logits by a `Setting`, {without[1]} have no mean pass rate during
training among their numbers, and {without[2]} has rewards that only its own algorithms can read. The other {claims} have {tasks}
tasks. Of the {len(rows)} pairs of task and algorithm their results have {pairs}: none for {tasks - len(in_results)} tasks, one for
{len(in_results) - several}, more for {several}, and all six for {complete}: few arms use one of the six unchanged.
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
            scores = np.asarray(task.page.claim.measure(changed, task.seeds)[NUMBER]).tolist()
        return {**task_facts(claim, arm), "from": origin, "scores": [float(f"{value:.4g}") for value in scores]}

    wanted = [{"claim": claim, "arm": arm, "algorithm": name} for claim, arm in by_key for name in ALGORITHMS]
    rows = add_missing_rows(OUT, wanted, score, settings=settings_of)
    rows = [row | task_facts(row["claim"], row["arm"]) for row in rows if (row["claim"], row["arm"]) in by_key]
    write_rows(OUT, rows)
    tables = f"{sources_text(found, rows)}\n{report(rows)}"
    OUT.with_suffix(".md").write_text(
        f"`python experiments/choosing/selector.py` ({made_on()})\n\n{tables}", encoding="utf-8"
    )
    print(tables)


if __name__ == "__main__":
    main()
