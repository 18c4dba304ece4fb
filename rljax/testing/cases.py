"""Small rollouts that each test one slot (part) of an algorithm, ordered so that the first failing case names the faulty slot."""

from typing import NamedTuple

import numpy as np

from rljax.testing.example import Example

TOKENS = 3
"""T, the maximum number of tokens per response in a small case."""
GARBAGE = -9.0
"""Log-probability outside the mask. It is finite, so that implementations that multiply by the mask count as correct."""


class Case(NamedTuple):
    """An example, and the slot of an algorithm that it tests."""

    slot: str
    """The slot that the case tests."""
    example: Example
    """The rollout."""


class GAECase(NamedTuple):
    """Arguments for a GAE function, and the part of the recursion that they test."""

    slot: str
    """The part of the recursion that the case tests."""
    rewards: np.ndarray
    """Reward at each token, `[R, T]`."""
    values: np.ndarray
    """The critic's value at each token, `[R, T]`."""
    mask: np.ndarray
    """Mask of the response tokens, `[R, T]`."""
    gamma: float
    """Discount factor γ."""
    lambda_: float
    """GAE's decay λ."""
    bootstrap: np.ndarray
    """Value after the last token of each row, `[R]`."""


def example_of(
    rewards: list[list[float]],
    lengths: list[list[int]],
    *,
    max_log_ratio: float = 0.0,
    far: bool = False,
    ref: float = 0.0,
    seed: int = 0,
) -> Example:
    """Build a small rollout with random log-probabilities.

    Args:
        rewards: reward of each response, `[P, G]`.
        lengths: number of tokens of each response, `[P, G]`.
        max_log_ratio: largest absolute log-ratio, unless `far` is True.
        far: whether log-ratios are far outside the bounds of every clip, some above and some below.
        ref: largest distance between the log-probabilities of the policy and of the reference.
        seed: random seed.
    """
    rng = np.random.default_rng(seed)
    mask = np.arange(TOKENS) < np.array(lengths)[..., None]
    old = np.round(-0.2 - rng.random(mask.shape), 2)
    moved = np.round(rng.uniform(-max_log_ratio, max_log_ratio, mask.shape), 3)
    if far:
        moved = np.where(rng.random(mask.shape) < 0.5, -1.0, 1.0) * np.round(rng.uniform(0.3, 2.0, mask.shape), 2)
    logp = old + moved
    away = np.round(rng.uniform(0.2, 1.0, mask.shape), 2) * np.where(rng.random(mask.shape) < 0.5, -1, 1)

    def inside(x: np.ndarray, garbage: float) -> np.ndarray:
        return np.where(mask, x, garbage)

    return Example(
        mask=mask,
        logp=inside(logp, GARBAGE),
        old_logp=inside(old, GARBAGE + 1),
        ref_logp=inside(logp + ref * away, GARBAGE + 2),
        rewards=np.array(rewards, float),
    )


def loss_cases() -> list[Case]:
    """Return cases for a policy loss, of at most 2 prompts x 2 responses x 3 tokens."""
    one, two = [[1.0, 0.0]], [[1.0, 0.0], [0.25, 1.0]]
    equal, ragged = [[1, 1], [1, 1]], [[3, 1], [2, 3]]
    cases = [Case("advantage", example_of(one, [[1, 1]]))]
    for rewards in ([[0.5, -0.75]], [[1e-4, 0.0]], [[3.0, 1.0]], [[0.0, 2.0]]):
        cases.append(Case("advantage", example_of(rewards, [[1, 1]])))
    cases += [Case("advantage", example_of(rewards, equal)) for rewards in (two, [[5.0, 4.0], [0.0, 1e-3]])]
    cases += [Case("weights", example_of(one, [lengths])) for lengths in ([3, 3], [2, 1], [1, 3])]
    cases += [Case("weights", example_of(rewards, ragged)) for rewards in (two, [[0.0, 1.0], [2.0, -1.0]])]
    cases += [Case("ratio", example_of(one, [[1, 1]], max_log_ratio=0.15, seed=seed)) for seed in range(3)]
    cases += [Case("ratio", example_of(two, ragged, max_log_ratio=0.15, seed=seed)) for seed in range(3)]
    # log-ratios on both sides of 0.8 - 1, 1.2 - 1 and 1.28 - 1, and of the logarithms of 0.8, 1.2 and 1.28
    for step in (0.23, -0.23, 0.26, -0.21, 0.19, -0.19, 0.5, -0.5):
        small = example_of(one, [[1, 1]])
        new = np.where(small.mask, small.old_logp + step, GARBAGE)
        cases.append(Case("clip", Example(small.mask, new, small.old_logp, new, small.rewards)))
    cases += [Case("clip", example_of(one, [[1, 1]], far=True, seed=seed)) for seed in range(4)]
    cases += [Case("clip", example_of(two, ragged, far=True, seed=seed)) for seed in range(4)]
    cases += [Case("KL", example_of(one, [[1, 1]], ref=1.0, seed=seed)) for seed in range(3)]
    cases += [Case("KL", example_of(two, ragged, max_log_ratio=0.1, ref=1.0, seed=seed)) for seed in range(3)]
    for away in (-4.0, 14.0):  # k3 is above 10 on both sides of the reference
        small = example_of(one, [[1, 1]])
        new = np.where(small.mask, -6.0, GARBAGE)
        cases.append(Case("KL", Example(small.mask, new, new, np.where(small.mask, new - away, GARBAGE), small.rewards)))
    cases.append(Case("groups", example_of([[1.0, 1.0], [1.0, 0.0]], equal)))
    cases += [
        Case("groups", example_of([[0.0, 0.0], [1.0, 0.0]], ragged, max_log_ratio=0.1, ref=1.0, seed=seed))
        for seed in range(2)
    ]
    cases.append(Case("groups", example_of([[0.0, 0.0]], [[2, 1]], max_log_ratio=0.1, ref=1.0)))
    cases += [Case("overlong", example_of([[1.0, 0.0]], [lengths])) for lengths in ([1, 2], [2, 3], [3, 1], [3, 3])]
    for lengths in ([1, 2], [1, 3], [2, 3]):  # the size of the overlong penalty decides which response is better
        for margin in (0.1, 0.3, 0.45, 0.55, 0.7, 0.95, 1.05):
            cases.append(Case("overlong", example_of([[0.0, margin]], [lengths])))
    return cases


def triple_cases() -> list[Case]:
    """Return cases with 3 responses to one prompt: means, medians and ranks differ, and groups with mixed rewards have ties."""
    cases = [("advantage", [1.0, 0.0, 0.25]), ("advantage", [1.0, 0.0, 0.0]), ("advantage", [0.0, 0.5, 1.0])]
    cases += [("groups", [1.0, 1.0, 0.0]), ("groups", [0.0, 1.0, 0.0])]
    return [Case(slot, example_of([rewards], [[1, 1, 1]])) for slot, rewards in cases]


def gap_cases() -> list[Case]:
    """Return cases with positions outside the mask before, between and after the tokens, such as an agent's observations."""
    cases = []
    for rows, margin, max_log_ratio in (
        ([[0, 1, 1], [1, 0, 1]], 1.0, 0.0),
        ([[0, 0, 1], [1, 0, 0]], 1.0, 0.15),
        ([[1, 0, 1], [0, 1, 0]], 1.0, 0.15),
        # If the overlong penalty depended on the last column instead of the length, the first response would become the worse one.
        ([[1, 0, 1], [1, 1, 0]], 0.3, 0.0),
    ):
        small, mask = example_of([[margin, 0.0]], [[3, 3]], max_log_ratio=max_log_ratio, ref=1.0), np.array([rows], bool)
        new, old, ref = (
            np.where(mask, x, GARBAGE + index) for index, x in enumerate((small.logp, small.old_logp, small.ref_logp))
        )
        cases.append(Case("gaps between tokens", Example(mask, new, old, ref, small.rewards)))
    return cases


def larger_case() -> Case:
    """Return a case with four responses to each of two prompts, in which, for example, group means and medians differ."""
    rewards = [[1.0, 0.0, 0.0, 0.5], [0.0, 1.0, -2.0, 1.0]]
    return Case("advantage", example_of(rewards, [[3, 1, 2, 3], [2, 2, 3, 1]], max_log_ratio=0.15, ref=0.5))


def gae_cases(*, gaps: bool = False) -> list[GAECase]:
    """Return cases for GAE, of at most 2 rows x 3 positions. Without `gaps`, tokens begin in column 0 and have no gaps."""
    rng = np.random.default_rng(0)
    full, none = np.ones((1, 3), bool), np.zeros(1)
    two, ragged = np.ones((2, 3), bool), np.array([[True, True, False], [True, True, True]])

    def case(
        slot: str, mask: np.ndarray, gamma: float, lambda_: float, *, bootstrap: bool = False, values: bool = True
    ) -> GAECase:
        rewards, critic = (np.where(mask, np.round(rng.normal(size=mask.shape), 2), 7.0) for _ in range(2))
        after = np.round(rng.normal(size=len(mask)), 2) if bootstrap else np.zeros(len(mask))
        return GAECase(slot, rewards, critic if values else np.where(mask, 0.0, 7.0), mask, gamma, lambda_, after)

    if gaps:
        masks = ([[0, 1, 1]], [[1, 0, 1]], [[0, 0, 1], [1, 0, 1]], [[1, 1, 0], [0, 1, 1]])
        with_gaps = [np.array(rows, bool) for rows in masks]
        plain = [case("gaps between tokens", mask, 0.9, lambda_) for mask in with_gaps for lambda_ in (0.0, 0.5)]
        return plain + [case("gaps between tokens", mask, 0.9, 0.8, bootstrap=True) for mask in with_gaps]
    reward_only = GAECase("reward", np.array([[0.0, 0.0, 1.0]]), np.zeros((1, 3)), full, 1.0, 1.0, none)
    return [
        reward_only,
        *(case("TD error", mask, 1.0, 0.0) for mask in (full, two)),
        *(case("discount", mask, 0.5, 0.0) for mask in (full, two)),
        *(case("decay", mask, 1.0, lambda_) for mask in (full, two) for lambda_ in (0.5, 1.0)),
        *(case("discount and decay", two, gamma, lambda_) for gamma, lambda_ in ((0.5, 0.5), (0.9, 0.95))),
        *(case("end of a row", ragged, 0.9, lambda_) for lambda_ in (0.0, 0.5, 1.0)),
        *(case("bootstrap", mask, 0.9, lambda_, bootstrap=True) for mask in (full, ragged) for lambda_ in (0.0, 0.8)),
    ]


def full_example(seed: int = 3) -> Example:
    """Return 3 prompts x 4 responses x at most 6 tokens, with all fields but `valid` and `truncated`; one group is all correct."""
    rng = np.random.default_rng(seed)
    mask = np.arange(6) < np.array([[6, 2, 4, 1], [3, 5, 6, 2], [4, 1, 3, 6]])[..., None]

    def numbers() -> np.ndarray:
        return rng.normal(size=mask.shape)

    old = -np.abs(numbers()) - 0.2
    return Example(
        mask=mask,
        logp=old + 0.4 * numbers(),
        old_logp=old,
        ref_logp=old + 0.3 * numbers(),
        rewards=np.array([[1.0, 0.0, 0.0, 1.0], [0.0, 1.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]]),
        sampled_logp=old + 0.2 * numbers(),
        values=numbers(),
        new_values=numbers(),
        entropy=np.abs(numbers()),
        behaviour_entropy=np.abs(numbers()),
        teacher_logp=old + 0.5 * numbers(),
        teacher_divergence=rng.random(mask.shape),
        square_sum=rng.uniform(0.1, 1.0, mask.shape),
        greedy_rewards=np.array([1.0, 0.0, 0.5]),
        form=np.array([[0.0, 0.5, 0.25, 1.0], [1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.5]]),
        step_rewards=numbers(),
        step_end=mask & (rng.random(mask.shape) < 0.5),
    )
