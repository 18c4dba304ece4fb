"""Rewards of reasoning steps, for process supervision.

A step reward is called as a reward is, `f(prompts=..., completions=..., **columns)`, and answers with a list of steps for each
completion: `(end, reward)`, `end` being the number of characters of the completion up to the end of the step.
"""

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import numpy as np
from jaxtyping import Bool, Float32

from rljax.errors import InputError
from rljax.rewards.exact import exact
from rljax.text import one_line

Step = tuple[int, float]

_EQUATION = re.compile(r"(-?\d{1,18})([+*-])(-?\d{1,18})=(-?\d{1,18})(?!\d);?")
_OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul}


def equations(
    prompts: Sequence[str], completions: Sequence[str], answer: Sequence[str], **columns: Sequence
) -> list[list[Step]]:
    """Judge every written `a+b=c` of a completion by itself, and the stated answer as its last step.

    A completion that stops without stating an answer has a last step too, of reward 0: stopping early must not pay.

    Args:
        prompts: not read.
        completions: what is judged.
        answer: the reference answer of each.
        columns: not read.

    Returns:
        For each completion its steps in order: 1 for a right equation and 0 for a wrong one, then 1 or 0 for the stated answer,
        at the end of the text.

    Example:
        >>> equations(["7+5+9="], ["7+5=12;12+9=20;#20"], ["21"])
        [[(7, 1.0), (15, 0.0), (18, 0.0)]]
    """
    del columns
    finals = exact(prompts, completions, answer)
    judged = []
    for completion, final in zip(completions, finals, strict=True):
        steps = []
        for found in _EQUATION.finditer(completion):
            left, sign, right, result = found.groups()
            steps.append((found.end(), float(_OPERATORS[sign](int(left), int(right)) == int(result))))
        judged.append([*steps, (len(completion), final)])
    return judged


STEP_REWARDS = MappingProxyType({"equations": equations})
"""The step rewards that come with the library."""


def on_tokens(
    steps: Sequence[Step], decode: Callable[[Sequence[int]], str], tokens: Sequence[int]
) -> tuple[Float32[np.ndarray, "T"], Bool[np.ndarray, "T"]]:
    """Put the steps of one completion on the tokens at which they end.

    A step ends at the first token with which the decoded text is as long as the step's end. The last step, if it ends with the
    text, ends at the last token, so that stopping (EOS, which is no text) is credited too. Where two end at one token, the later
    one counts.

    Args:
        steps: `(end, reward)` in rising order of `end`.
        decode: token ids to text.
        tokens: the completion, at least one.

    Returns:
        Reward of the step that ends at each token (0 elsewhere), and where one ends.

    Raises:
        InputError: an end that is not in the completion (0 for one without text), or a reward that is no finite number.

    Example:
        >>> rewards, ends = on_tokens([(2, 1.0), (3, 0.5)], lambda ids: "".join(map(chr, ids)), [97, 98, 99])
        >>> rewards.tolist(), ends.tolist()
        ([0.0, 1.0, 0.5], [False, True, True])
    """
    rewards, ends = np.zeros(len(tokens), np.float32), np.zeros(len(tokens), bool)
    length = len(decode(tokens))
    first = min(1, length)
    for place, (end, reward) in enumerate(steps, start=1):
        if not (first <= end <= length and np.isfinite(reward)):
            raise InputError(
                f"a step reward returned the step ({end!r}, {reward!r}) for a completion of {length} characters; the end must be "
                f"from {first} to that length, and the reward a finite number."
            )
        stops = end == length and place == len(steps)
        low, high = (len(tokens) if stops else 1), len(tokens)
        while low < high:  # the shortest beginning whose text reaches the end
            middle = (low + high) // 2
            low, high = (low, middle) if len(decode(tokens[:middle])) >= end else (middle + 1, high)
        rewards[low - 1], ends[low - 1] = reward, True
    return rewards, ends


def score_steps(
    step_reward: Callable, prompts: Sequence[str], completions: Sequence[str], columns: Mapping[str, Sequence]
) -> list[list[Step]]:
    """Ask a step reward about completions.

    Raises:
        InputError: it raises, or does not return a list of `(end, reward)` pairs for each completion.

    Example:
        >>> score_steps(equations, ["1+1="], ["1+1=2;#2"], {"answer": ["2"]})
        [[(6, 1.0), (8, 1.0)]]
    """
    name = getattr(step_reward, "__qualname__", type(step_reward).__qualname__)
    try:
        judged = step_reward(prompts=list(prompts), completions=list(completions), **columns)
        steps = [[(int(end), float(reward)) for end, reward in row] for row in judged]
    except Exception as error:  # a reward is a person's program, and may raise or return anything
        raise InputError(
            f"the step reward {name} failed ({one_line(error)}); it must take prompts, completions and **columns, and return "
            f"a list of (end, reward) pairs for each completion."
        ) from error
    if len(steps) != len(completions):
        raise InputError(f"the step reward {name} returned {len(steps)} lists for {len(completions)} completions.")
    return steps
