"""Rewards built from other rewards. Each part is computed, weighted and logged under its own name."""

from collections.abc import Callable, Mapping, Sequence

from rljax.errors import InputError
from rljax.rewards import resolve
from rljax.rewards.reward_scores import Weighted


def weighted(rewards: Mapping[str, Callable | str], weights: Mapping[str, float | int]) -> Weighted:
    """Combine rewards into a weighted sum. With one reward per objective, this is multi-objective reinforcement learning.

    ::

        R = Σ_i λ_i R_i

    Args:
        rewards: R_i by names of your choice, each a function or a name that `rljax.rewards.resolve` accepts.
        weights: λ_i by the same names, positive or negative.

    Returns:
        One reward, whose parts `rljax.rewards.reward_scores.judge` reports separately. A part that abstains contributes nothing.

    Raises:
        InputError: there is no reward, the weights do not match, or a reward is not found.

    Example:
        >>> both = weighted({"right": "exact", "form": "format"}, {"right": 1.0, "form": 0.5})
        >>> both(prompts=["1+1="] * 2, completions=["#2", "#3"], answer=["2"] * 2)
        [1.5, 0.5]

    Source:
        Rule-based reward of DeepSeek-R1, arXiv:2501.12948, Section 2.2.2 (answer plus format); Eq. 63 of the design document,
        `rljax.ops.unpublished.mixture.multi_objective`.
    """
    return Weighted({name: resolve(reward) for name, reward in rewards.items()}, dict(weights))


def reasoning(
    correctness: Callable | str,
    step_quality: Callable | str,
    length_penalty: Callable | str,
    *,
    step_weight: float | int = 0.5,
    length_weight: float | int = 0.3,
) -> Weighted:
    """Reward a right answer and good steps, minus a penalty for length.

    ::

        R = Correctness + 0.5 StepQuality - 0.3 LengthPenalty

    Args:
        correctness: a reward, or its name; for example "math".
        step_quality: a reward, or its name; the source does not define how to measure step quality.
        length_penalty: a reward that grows with the response's length; for example `rljax.rewards.length.length_penalty`.
        step_weight: weight of the step quality.
        length_weight: weight of the penalty, which is subtracted.

    Returns:
        One reward with the parts `correctness`, `step_quality` and `length_penalty`.

    Raises:
        InputError: a reward is not found, or a weight is not finite.

    Example:
        >>> judge = reasoning("exact", "format", lambda completions: [len(c) / 4 for c in completions])
        >>> [round(reward, 3) for reward in judge(prompts=["1+1="] * 2, completions=["#2", "#3;4"], answer=["2"] * 2)]
        [1.35, 0.2]

    Source:
        *DAPO: A Revolutionary RL Algorithm from ByteDance*, "Practical Implementation of GRPO", step 2; no primary paper.
    """
    parts = {"correctness": correctness, "step_quality": step_quality, "length_penalty": length_penalty}
    return weighted(parts, {"correctness": 1.0, "step_quality": step_weight, "length_penalty": -length_weight})


def constitutional(
    base: Callable | str,
    principles: Mapping[str, Callable | str],
    weights: Mapping[str, float | int],
    *,
    judge: Callable | None = None,
) -> Weighted:
    """Add one weighted score per principle to a base reward; the score tells how well a response follows the principle.

    ::

        R_constitutional = R_base + Σ_i w_i s_i(y)

    Args:
        base: R_base, a reward or its name.
        principles: s_i by name: either a rule, which is an ordinary reward function, or a sentence, which is passed to `judge`.
        weights: w_i by the same names, positive or negative.
        judge: a function that asks a model, called as `judge(prompts=..., completions=..., principle=...)`. It returns a list of
            numbers and may be a coroutine function. It may be None if every principle is a rule.

    Returns:
        One reward with the part `base` and one part per principle.

    Raises:
        InputError: there is no principle, a principle is called "base", a sentence has no judge, or the weights do not match.

    Example:
        >>> def judge(prompts, completions, principle):
        ...     return [float(principle not in completion) for completion in completions]
        >>> kind = constitutional("exact", {"insults": "fool"}, {"insults": 0.5}, judge=judge)
        >>> kind(prompts=["1+1="] * 2, completions=["#2", "fool: #2"], answer=["2"] * 2)
        [1.5, 1.0]

    Source:
        Unpublished: Eq. 62 of the design document, `rljax.ops.unpublished.mixture.constitutional_sum`.
    """
    if not principles or "base" in principles:
        raise InputError(f"the principles are {sorted(principles)}; give at least one, and do not use the name 'base'.")
    parts = {name: _make_judged_reward(judge, name, p) if isinstance(p, str) else p for name, p in principles.items()}
    return weighted({"base": base, **parts}, {"base": 1.0, **weights})


def _make_judged_reward(judge: Callable | None, name: str, principle: str) -> Callable:
    if judge is None:
        raise InputError(
            f"the principle {name!r} is a sentence ({principle!r}); pass a `judge` that scores by it, or use a rule instead."
        )

    def score(prompts: Sequence[str], completions: Sequence[str]) -> object:
        return judge(prompts=prompts, completions=completions, principle=principle)

    score.__qualname__ = f"constitutional({name})"
    return score
