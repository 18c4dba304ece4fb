"""Rewards for the format of a response."""

from collections.abc import Callable, Sequence

from rljax.errors import InputError
from rljax.rewards.correctness import reads
from rljax.rewards.extract import final_answer


@reads(r"a `#` with text after it, or a `\boxed{...}`")
def has_final_answer(completions: Sequence[str], **columns: Sequence) -> list[float]:
    r"""Give 1 for a completion that states a final answer, right or wrong, else 0.

    Args:
        completions: the responses.
        columns: unused; every reward receives the prompts and the columns of the data.

    Returns:
        1.0 or 0.0 for each completion.

    Example:
        >>> has_final_answer(completions=["#7", r"\boxed{7}", "7", "#"])
        [1.0, 1.0, 0.0, 0.0]
    """
    del columns
    return [float(final_answer(completion) is not None) for completion in completions]


def in_tags(completion: str, names: Sequence[str]) -> bool:
    """Decide whether a text consists only of tagged parts in the right order.

    Args:
        completion: the text.
        names: the names of the tags, in order.

    Returns:
        True if each tag opens and closes exactly once, in order, around some text, and only white space is outside the tags.

    Example:
        >>> in_tags("<think>7+5</think> <answer>12</answer>", ["think", "answer"])
        True
        >>> in_tags("<answer>12</answer><think>7+5</think>", ["think", "answer"])
        False
    """
    rest = completion
    for name in names:
        before, opened, after = rest.partition(f"<{name}>")
        inside, closed, rest = after.partition(f"</{name}>")
        if before.strip() or not (opened and closed and inside.strip()):
            return False
        if completion.count(opened) != 1 or completion.count(closed) != 1:
            return False
    return not rest.strip()


def tags(names: Sequence[str] = ("think", "answer")) -> Callable:
    """Make a reward: 1 for a completion that consists only of tagged parts in the right order, 0 for any other.

    Args:
        names: the names of the tags, in order, each once.

    Returns:
        A reward that takes `completions`.

    Raises:
        InputError: there is no name, or a name occurs twice.

    Example:
        >>> tags(["plan", "code"])(completions=["<plan>sort</plan><code>sorted(x)</code>", "<plan>sort</plan>"])
        [1.0, 0.0]
    """
    if not names or isinstance(names, str) or len(set(names)) < len(names):
        raise InputError(f"the tags are {names!r}; give a list of one or more names, each name once.")

    def score(completions: Sequence[str], **columns: Sequence) -> list[float]:
        del columns
        return [float(in_tags(completion, names)) for completion in completions]

    score.__qualname__ = f"tags({', '.join(names)})"
    return score


@reads("`<think>...</think><answer>...</answer>` and nothing else")
def think_answer(completions: Sequence[str], **columns: Sequence) -> list[float]:
    """Give 1 to a completion of exactly the form `<think>...</think><answer>...</answer>`, 0 to any other.

    Args:
        completions: the responses.
        columns: unused.

    Returns:
        1.0 or 0.0 for each completion.

    Example:
        >>> think_answer(completions=["<think>7+5</think><answer>12</answer>", "<answer>12</answer>"])
        [1.0, 0.0]

    Source:
        Format reward of DeepSeek-R1, arXiv:2501.12948, Section 2.2.2.
    """
    return tags()(completions, **columns)


@reads("nothing, because there is no reward")
def none(completions: Sequence[str], **columns: Sequence) -> list[float]:
    """Raise an error: supervised fine-tuning (`rljax sft`) uses this placeholder if no reward is named.

    Args:
        completions: the responses.
        columns: unused.

    Raises:
        InputError: always.
    """
    del completions, columns
    raise InputError(
        "there is no reward to judge answers with: this run was fine-tuned without one. Name one with --reward."
    )
