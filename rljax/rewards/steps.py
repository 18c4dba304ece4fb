"""Rewards for reasoning steps, for process supervision.

A step reward is called like a reward, `f(prompts=..., completions=..., **columns)`, and returns one list of steps per completion.
Each step is a pair `(end, reward)`, where `end` is the number of the completion's characters up to the end of the step.
"""

import operator
import re
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import numpy as np
from jaxtyping import Bool, Float32

from rljax.errors import InputError
from rljax.rewards.reward_call import qualified_name
from rljax.text import one_line

Step = tuple[int, float]

_EQUATION = re.compile(r"(-?\d{1,18})([+*-])(-?\d{1,18})=(-?\d{1,18})(?!\d);?")
_OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul}


def equations(
    prompts: Sequence[str], completions: Sequence[str], answer: Sequence[str], **columns: Sequence
) -> list[list[Step]]:
    """Judge each equation such as `a+b=c` in a completion as a step, and the final answer as the last step.

    A completion without a final answer also has a last step, with reward 0, so that stopping early does not pay.

    Args:
        prompts: unused; every step reward receives them.
        completions: the responses.
        answer: the reference answers.
        columns: unused.

    Returns:
        The steps of each completion in order, with reward 1 for a correct equation and 0 for a wrong one. The last step ends with
        the text and has the reward of the final answer, 1 or 0.

    Example:
        >>> equations(["7+5+9="], ["7+5=12;12+9=20;#20"], ["21"])
        [[(7, 1.0), (15, 0.0), (18, 0.0)]]
    """
    from rljax.rewards.exact import exact  # noqa: PLC0415  other step rewards do not need it

    del columns
    finals = exact(prompts, completions, answer)
    judged = []
    for completion, final in zip(completions, finals, strict=True):
        steps = []
        for found in _EQUATION.finditer(completion):
            left, sign, right, result = found.groups()
            steps.append((found.end(), float(_OPERATORS[sign](int(left), int(right)) == int(result))))
        judged.append([*steps, (len(completion), 0.0 if final is None else float(final))])
    return judged


STEP_REWARDS = MappingProxyType({"equations": equations})
"""Name -> step reward that comes with the library."""

STEP_ENDS = MappingProxyType({"equations": (";",)})
"""Name of a step reward -> texts that end its steps. For any other reward, each line is a step."""
LINE_ENDS = ("\n",)
"""Default texts that end a step."""


def assign_to_tokens(
    steps: Sequence[Step], decode: Callable[[Sequence[int]], str], tokens: Sequence[int]
) -> tuple[Float32[np.ndarray, "T"], Bool[np.ndarray, "T"]]:
    """Assign the steps of one completion to the tokens at which they end.

    A step is assigned to the first token at which the decoded text reaches the step's end. If the last step ends with the text, it
    is assigned to the last token, so that stopping (EOS, which decodes to no text) also gets credit. If two steps end at the same
    token, only the later step counts.

    Args:
        steps: `(end, reward)` in ascending order of `end`.
        decode: turns token ids into text.
        tokens: the token ids of the completion, at least one.

    Returns:
        For each token, the reward of the step that ends at it (0 if none does), and whether a step ends at it.

    Raises:
        InputError: an end is outside the completion, or a reward is not a finite number.

    Example:
        >>> rewards, ends = assign_to_tokens([(2, 1.0), (3, 0.5)], lambda ids: "".join(map(chr, ids)), [97, 98, 99])
        >>> rewards.tolist(), ends.tolist()
        ([0.0, 1.0, 0.5], [False, True, True])
    """
    rewards, ends = np.zeros(len(tokens), np.float32), np.zeros(len(tokens), bool)
    length = len(decode(tokens))
    first = min(1, length)
    for position, (end, reward) in enumerate(steps, start=1):
        if not (first <= end <= length and np.isfinite(reward)):
            raise InputError(
                f"a step reward returned the step ({end!r}, {reward!r}) for a completion of {length} characters; the end must be "
                f"from {first} to that length, and the reward a finite number."
            )
        ends_text, last = end == length and position == len(steps), len(tokens) - 1
        # a binary search for the shortest prefix whose text reaches the end of the step
        token = last if ends_text else bisect_left(range(last), end, key=lambda index: len(decode(tokens[: index + 1])))
        rewards[token], ends[token] = reward, True
    return rewards, ends


def score_steps(
    step_reward: Callable, prompts: Sequence[str], completions: Sequence[str], columns: Mapping[str, Sequence]
) -> list[list[Step]]:
    """Call a step reward on completions, and check what it returns.

    Args:
        step_reward: the step reward function.
        prompts: N prompts.
        completions: one per prompt.
        columns: extra data by name, N entries each.

    Returns:
        The steps of each completion.

    Raises:
        InputError: the function raises, or does not return one list of `(end, reward)` pairs per completion.

    Example:
        >>> score_steps(equations, ["1+1="], ["1+1=2;#2"], {"answer": ["2"]})
        [[(6, 1.0), (8, 1.0)]]
    """
    name = qualified_name(step_reward)
    try:
        judged = step_reward(prompts=list(prompts), completions=list(completions), **columns)
        steps = [[(int(end), float(reward)) for end, reward in row] for row in judged]
    except Exception as error:  # a step reward is user code, and may raise or return anything
        raise InputError(
            f"the step reward {name} failed ({one_line(error)}); it must take prompts, completions and **columns, and return "
            f"a list of (end, reward) pairs for each completion."
        ) from error
    if len(steps) != len(completions):
        raise InputError(
            f"the step reward {name} returned {len(steps)} lists for {len(completions)} completions; it must return one for each."
        )
    return steps
