"""Tasks of the claims (experiments that decide a paper's claim, see `lab.claims`), and facts about a task before training.

A task is an arm's setting without its algorithm, so arms that differ only in the algorithm and the learning rate share a task.
Functions in two settings are compared by their results, because each arm may have built its own function.
"""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from lab.claims import ClaimFile
from lab.judges import Judge
from lab.keys import steps_of, world_hash
from lab.results import Results, algorithms_in
from lab.tabular_training import Setting
from lab.worlds import exact
from rljax.algorithms import Algorithm
from rljax.errors import InputError

PASS_RATE = "area"
"""Metric that scores an algorithm on a task: the mean pass rate during training."""
SEEDS = 16
"""Number of seeds per task: the first seeds of its claim."""
OWN_REWARDS = ("reliability_quality",)
"""Claims whose judge packs several ratings into one reward, which only the claim's own algorithms can decode."""
VERDICTS = 200_000
"""Number of verdicts sampled to estimate the error rate of a judge."""


class Task(NamedTuple):
    """A task that arms of one or more claims train on."""

    page: ClaimFile
    """The file of the first claim with this task."""
    arm: str
    """The first arm of that claim with this task."""
    setting: Setting
    """The setting of that arm; the algorithm in it is not part of the task."""
    arms: tuple[tuple[str, str], ...]
    """Every claim and arm with this task."""

    @property
    def claims(self) -> list[str]:
        """Names of the claims, each once."""
        return sorted({claim for claim, _ in self.arms})

    @property
    def seeds(self) -> list[int]:
        """Seeds that score an algorithm."""
        return [*self.page.claim.seed_range][:SEEDS]


class ClaimTasks(NamedTuple):
    """Tasks of the claims, and the claims without a task, by reason."""

    tasks: list[Task]
    """The tasks, in the order of the claims' names."""
    without_setting: list[str]
    """Claims whose arms are not settings of a tabular training."""
    without_pass_rate: list[str]
    """Claims whose metrics do not include `PASS_RATE`, the mean pass rate during training."""
    own_rewards: list[str]
    """Claims whose rewards only their own algorithms can decode."""


def setting_of(arm: Any) -> Setting | None:
    """Return the setting of an arm, with the fields that belong to its algorithm reset: `tries`, `past` and the critic's start.

    An arm may be a setting, or a tuple or list, whose first setting is used. For any other arm, return None.
    """
    found = next((part for part in arm if isinstance(part, Setting)), None) if type(arm) in (tuple, list) else arm
    return found._replace(tries=1, past=0, value_steps=0, first_value=0.0) if isinstance(found, Setting) else None


def with_algorithm(arm: Any, algorithm: Algorithm) -> Any:
    """Replace the algorithm of an arm, in the form that its claim's `measure` accepts: a setting, or a tuple with other parts.

    Raises:
        ValueError: the arm has no setting.
    """
    setting = setting_of(arm)
    if setting is None:
        raise ValueError(f"an arm must have a Setting, got {type(arm).__name__}")
    setting = setting._replace(algorithm=algorithm)
    if isinstance(arm, Setting) or all(isinstance(part, Setting) for part in arm):
        return setting
    return tuple(setting if isinstance(part, Setting) else part for part in arm)


def fingerprint(setting: Setting) -> tuple[Any, ...]:
    """Compute a hashable key that identifies a task: everything in a setting except algorithm, critic, learning rates and `points`.

    Each function in the setting is represented by its result for one random key.
    """
    key, world = jax.random.key(0), setting.world
    table = setting.initial(key)
    logp = jax.nn.log_softmax(jnp.asarray(table))
    rewards = jnp.tile(jnp.array([1.0, 0.0]), (32, 4))
    with jax.numpy_dtype_promotion("standard"):  # as in training
        returned = (
            table,
            rewards if setting.judge is None else setting.judge(key, rewards),
            logp if setting.sampler is None else setting.sampler(key, logp),
            *steps_of(setting.optimizer),
        )
    numbers = [setting.prompts, setting.group, setting.steps, setting.minibatches, setting.passes, setting.delay]
    return world_hash(world), *numbers, *(np.asarray(part, np.float64).round(3).tobytes() for part in returned)


def find_tasks(pages: Sequence[ClaimFile], results: Mapping[str, Results]) -> ClaimTasks:
    """Find the tasks of the claims, and the claims without a task.

    Args:
        pages: the claims.
        results: results of each claim by name.

    Raises:
        InputError: a claim has no results for its current settings.
    """
    arms: dict[tuple[Any, ...], list[tuple[ClaimFile, str, Setting]]] = {}
    found = ClaimTasks([], [], [], [])
    for page in pages:
        settings = {name: setting for name, arm in page.claim.arms.items() if (setting := setting_of(arm)) is not None}
        if not settings:
            found.without_setting.append(page.name)
        elif page.name in OWN_REWARDS:
            found.own_rewards.append(page.name)
        elif PASS_RATE not in _metric_names(results[page.name], page.name):
            found.without_pass_rate.append(page.name)
        else:
            for arm, setting in settings.items():
                if setting.group > 1:  # most algorithms compare the responses of a group
                    arms.setdefault(fingerprint(setting), []).append((page, arm, setting))
    for same in arms.values():
        page, arm, setting = same[0]
        found.tasks.append(Task(page, arm, setting, tuple((one.name, name) for one, name, _ in same)))
    return found


def _metric_names(results: Results, claim: str) -> list[str]:
    if not results.seeds:
        raise InputError(f"The claim {claim} has no results for its current settings; run rljax claims --rerun {claim}.")
    return [*next(iter(results.arms().values()))]


def scores_in_results(
    task: Task, algorithm: Algorithm, pages: Mapping[str, ClaimFile], results: Mapping[str, Results]
) -> tuple[str, list[float]] | None:
    """Find the scores of an algorithm on a task in the claims' existing results, if they were measured in the same way.

    Args:
        task: the task.
        algorithm: the algorithm to find.
        pages: claims by name.
        results: results of each claim by name.

    Returns:
        "CLAIM: ARM", and the score of each seed of the task; None if no arm uses this algorithm with these settings.
    """
    for name, arm in task.arms:
        claim, runs = pages[name].claim, results[name].runs[arm]
        parts = claim.arms[arm] if type(claim.arms[arm]) in (tuple, list) else (claim.arms[arm],)
        settings = [part for part in parts if isinstance(part, Setting)]
        if len(settings) == 1 and all(
            (
                algorithms_in(settings[0].algorithm) == algorithms_in(algorithm),
                (settings[0].tries, settings[0].past) == (1, 0),
                (settings[0].learning_rate, settings[0].points) == (task.setting.learning_rate, task.setting.points),
                _describe_measure(claim.measure) == _describe_measure(task.page.claim.measure),
                all(str(seed) in runs for seed in task.seeds),
            )
        ):
            return f"{name}: {arm}", [runs[str(seed)][PASS_RATE] for seed in task.seeds]
    return None


def _describe_measure(measure: Any) -> tuple[str, str, dict[str, Any], tuple[int, ...]]:
    """Describe a `measure` function by its name, its defaults, and the identities of the arguments that a partial binds."""
    function = getattr(measure, "func", measure)
    defaults = {name: each.default for name, each in inspect.signature(measure).parameters.items()}
    return function.__module__, function.__qualname__, defaults, tuple(map(id, getattr(measure, "args", ())))


def pairwise_error_rate(judge: Judge | None) -> float:
    """Compute the fraction of pairs in which the wrong response gets a higher reward than the right one; a tie counts one half.

    If a judge errs equally often in both directions, this is its error rate, whatever the scale of its rewards.

    Example:
        >>> from lab.judges import fallible, signed
        >>> round(pairwise_error_rate(signed(fallible(0.1))), 1), pairwise_error_rate(None)
        (0.1, 0.0)
    """
    if judge is None:
        return 0.0
    truth = jnp.tile(jnp.array([1.0, 0.0]), (VERDICTS // 2, 1))
    with jax.numpy_dtype_promotion("standard"):  # as in training
        right, wrong = np.asarray(judge(jax.random.key(0), truth)).T
    wrong = np.sort(wrong)
    above = len(wrong) - np.searchsorted(wrong, right, side="right")
    equal = np.searchsorted(wrong, right, side="right") - np.searchsorted(wrong, right, side="left")
    return float((above + equal / 2).mean() / len(wrong))


def facts_of(setting: Setting, seeds: Sequence[int]) -> dict[str, float]:
    """Compute facts about a task that are known before training.

    Args:
        setting: the task; its algorithm and learning rate are ignored.
        seeds: seeds of the initial policies.

    Returns:
        `contexts`, `prompts`, `group`, `steps`; `updates` per rollout; `delay` of the sampler in rollouts, and `mismatch`, the
        total variation distance between its token distribution and the policy's; `errors`, the error rate of the judge;
        `equal_steps`, the step for a gradient divided by the step for one 100 times as large (1: the step ignores the size).
        For the initial policy, as means over seeds: `length` of a response, `right`, the pass rate, and `mixed`, the fraction of
        groups with both right and wrong responses.
    """
    keys = jnp.stack(
        [jax.random.split(jax.random.key(seed), 3)[0] for seed in seeds]
    )  # the same keys as in `lab.tabular_training.train`
    tables = jnp.stack([jnp.asarray(setting.initial(key)) for key in keys])
    first = jax.jit(jax.vmap(lambda table: exact(setting.world, table)))(tables)
    p = np.asarray(first.success, np.float64)
    logp = jax.nn.log_softmax(tables).reshape(-1, tables.shape[-1])
    with jax.numpy_dtype_promotion("standard"):  # as in training
        engine = logp if setting.sampler is None else jax.nn.log_softmax(setting.sampler(keys[0], logp))
    small, large = reversed(steps_of(setting.optimizer)[-1])
    facts = {
        "contexts": len(setting.world.start),
        "prompts": setting.prompts,
        "group": setting.group,
        "steps": setting.steps,
        "updates": setting.minibatches * setting.passes,
        "delay": setting.delay,
        "mismatch": np.abs(np.exp(logp) - np.exp(engine)).sum(-1).mean() / 2,
        "errors": pairwise_error_rate(setting.judge),
        "equal_steps": small / large,
        "length": first.length.mean(),
        "right": p.mean(),
        "mixed": (1 - p**setting.group - (1 - p) ** setting.group).mean(),
    }
    return {name: float(f"{float(value):.3g}") for name, value in facts.items()}
