"""Can a selector that knows a few facts of a task choose better than "always DAPO"?

A table of 16 tasks, 6 algorithms and 4 seeds on worlds in which a policy is a table of logits. A task is a code to guess: its
length, how often the first policy is right, the share of the verifier's errors, and the updates for each rollout. Each algorithm
has the best of four learning rates for each task, by other seeds. The score is the mean pass rate during training. The selector is
a ridge regression on these facts, fitted without the task that it chooses for.

A regret is the score of the best algorithm of the task less that of the choice. The best one is chosen by all seeds but one, and
has the score of that one, in turn: the highest of six means of the same seeds would be too high, and every regret with it. A choice
by other tasks can be better than that, so a regret may be negative.

Command:

    python experiments/choosing/selector.py

selector.json and selector.md: 2026-11-22, 2 cores of an AMD EPYC, Python 3.11.7, JAX 0.10.2.

It can be stopped and repeated: programs whose scores, with these settings, are in selector.json are skipped. All tasks are
combinations of the same values of four facts, so leaving one out asks for an interpolation, not for a new kind of task.
"""

import itertools
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from rljax.algorithms import cispo, dapo, grpo, gspo, rloo, sapo
from rljax.book.claim_results import algorithms_in
from rljax.book.claims import over_seeds
from rljax.book.experiment_rows import made_on, rows_of, settings_hash, write_rows
from rljax.book.selector import cross_fitted_best, leave_one_out
from rljax.book.tabular import Setting, _quick_compilation, train
from rljax.book.worlds import Key, World, codes, leaning

ALGORITHMS = {
    "dapo": dapo(),
    "grpo": grpo(beta=0.0),
    "rloo": rloo(),
    "cispo": cispo(),
    "sapo": sapo(),
    "gspo": gspo(clip_low=0.02, clip_high=0.03),
}
LENGTHS, PASSES, LEANS, ERRORS = (3, 7), (1, 8), (0.5, 1.5), (0.0, 0.15)
CONTEXTS, TOKENS, STEPS = 8, 4, 100
RATES = (0.01, 0.03, 0.1, 0.3)
SEEDS, TUNING_SEEDS = range(4), range(1000, 1004)
OUT = Path(__file__).resolve().parents[1] / "selector.json"
FACTS = ("length", "updates", "lean", "errors")
NOTE = """\
The selector trains on these 16 tasks, which were made for it, and not on the results of `rljax claims`. A claim compares two arms,
seldom more, in a world of its own, so it says nothing about other algorithms there. Its statistic has no scale that it shares with
those of other claims: a pass rate, an entropy, a length, a variance. A regression needs the score of every algorithm on every task,
in one unit. The regret of a choice is its loss against the best algorithm of the task; "always DAPO" is the choice without facts
that the selector is compared with.
"""
"""Which tasks these are, and why they are no claims."""


def world_of(length: int) -> World:
    """The codes of a length."""
    return codes(contexts=CONTEXTS, length=length, tokens=TOKENS)


def settings_of(name: str) -> str:
    """Hash of what the scores of an algorithm depend on beside the facts of a task: what it is made of, and the settings here."""
    return settings_hash(algorithms_in(ALGORITHMS[name]), CONTEXTS, TOKENS, STEPS, RATES, [*SEEDS], [*TUNING_SEEDS])


def scores_of(name: str, length: int, passes: int) -> np.ndarray:
    """Mean pass rate during training, `[leans, errors, seeds]`, at the learning rate that is best on other seeds."""
    world = world_of(length)

    def area(lean: Array, error: Array, rate: Array, key: Key) -> Float[Array, ""]:
        def judge(key: Key, rewards: Array) -> Array:
            return jnp.where(jax.random.bernoulli(key, error, rewards.shape), 1 - rewards, rewards)

        setting = Setting(
            world,
            leaning(world, lean=lean),  # pyright: ignore[reportArgumentType]  traced
            ALGORITHMS[name],
            steps=STEPS,
            passes=passes,
            learning_rate=rate,  # pyright: ignore[reportArgumentType]  traced
            judge=judge,
        )
        return train(setting, key)[0].success.mean()

    grid = list(itertools.product(LEANS, ERRORS, RATES))
    lean, error, rate = (jnp.asarray(column, jnp.float32) for column in zip(*grid, strict=True))
    keys = jax.vmap(jax.random.key)(jnp.asarray([*TUNING_SEEDS, *SEEDS], jnp.uint32))
    over_seeds_too = jax.vmap(jax.vmap(area, in_axes=(None, None, None, 0)), in_axes=(0, 0, 0, None))
    with jax.numpy_dtype_promotion("standard"):  # Optax raises its decays to the power of an integer count
        found = np.asarray(jax.jit(over_seeds_too, compiler_options=_quick_compilation())(lean, error, rate, keys))
    found = found.reshape(len(LEANS), len(ERRORS), len(RATES), -1)
    tuning, decided = found[..., : len(TUNING_SEEDS)], found[..., len(TUNING_SEEDS) :]
    best = tuning.mean(-1).argmax(-1)
    return np.take_along_axis(decided, best[..., None, None], axis=2)[:, :, 0]


def report(rows: list[dict[str, Any]]) -> str:
    """Regrets, cross-fitted over seeds, in Markdown: mean over the tasks, with the 95 % interval, and what the selector chose."""
    tasks = list(itertools.product(LENGTHS, PASSES, LEANS, ERRORS))
    names = list(ALGORITHMS)
    by_key = {(row["algorithm"], *(row[fact] for fact in FACTS)): row["scores"] for row in rows}
    by_seed = np.array([[by_key[(name, *task)] for name in names] for task in tasks])
    scores = by_seed.mean(-1)
    excess = scores.max(1) - cross_fitted_best(by_seed)
    facts = np.array([[np.log(length), np.log(passes), lean, error] for length, passes, lean, error in tasks])
    found = leave_one_out(facts, scores, fixed=names.index("dapo"))
    lines = [
        "| choice | regret, points of pass rate, cross-fitted over seeds (95 % over the tasks) | largest |",
        "| --- | --- | --- |",
    ]
    for label, uncorrected in (
        ("selector", found.selector),
        ("best on the other tasks", found.best_on_others),
        ("always dapo", found.fixed),
    ):
        regret = uncorrected - excess
        lines.append(f"| {label} | {over_seeds(100 * regret).text()} | {100 * regret.max():.3g} |")
    gain = over_seeds(100 * (found.fixed - found.selector))
    lines += ["", f"Always dapo less the selector, paired by task: {gain.text()} points.", ""]
    lines += [f"| {' | '.join((*FACTS, *names))} | selector |", f"|{' --- |' * (len(FACTS) + len(names) + 1)}"]
    for task, row, chosen in zip(tasks, scores, found.chosen, strict=True):
        cells = [f"**{score:.1%}**" if score == row.max() else f"{score:.1%}" for score in row]
        lines.append(f"| {' | '.join([*map(str, task), *cells, names[chosen]])} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Do the programs that the file does not have, and write the table."""
    rows = rows_of(OUT, lambda row: settings_of(row["algorithm"]))
    done = {(row["algorithm"], row["length"], row["updates"]) for row in rows}
    for name, length, passes in itertools.product(ALGORITHMS, LENGTHS, PASSES):
        if (name, length, passes) in done:
            continue
        start = time.monotonic()
        scores = scores_of(name, length, passes)
        for (i, lean), (j, error) in itertools.product(enumerate(LEANS), enumerate(ERRORS)):
            facts = dict(zip(FACTS, (length, passes, lean, error), strict=True))
            found = [round(float(score), 4) for score in scores[i, j]]
            rows.append({"algorithm": name, **facts, "settings": settings_of(name), "scores": found})
        write_rows(OUT, rows)
        print(f"{name}, length {length}, {passes} updates: {time.monotonic() - start:.0f} s", flush=True)
    OUT.with_suffix(".md").write_text(
        f"`python experiments/choosing/selector.py` ({made_on()})\n\n{NOTE}\n{report(rows)}", encoding="utf-8"
    )
    print(report(rows))


if __name__ == "__main__":
    main()
