"""A measure of repetition in a response."""

from collections.abc import Callable, Sequence

from rljax.errors import InputError


def repetition(size: int) -> Callable:
    """Make a reward: the share of a response's runs of n words that repeat an earlier run. Use it with a negative weight.

    ::

        p(y) = 1 - |distinct runs of n words in y| / |runs of n words in y|

    Words are separated by white space and compared in lower case. A response of fewer than n words gets 0.

    Args:
        size: n, number of words in a run, at least 1; 20 in the source's code. Short runs repeat in ordinary text, too.

    Returns:
        A reward that takes `completions`, in [0, 1).

    Raises:
        InputError: `size` is below 1.

    Example:
        >>> repetition(2)(completions=["wait wait wait", "it is so it is", "3"])
        [0.5, 0.25, 0.0]

    Source:
        Yeo et al., "Demystifying Long Chain-of-Thought Reasoning in LLMs", arXiv:2502.03373, and its authors' code, which applies
        the penalty to wrong responses only, and has no answer for a response of fewer than n words.
    """
    if size < 1:
        raise InputError(f"the size of a repeated run is {size}; it must be at least 1 word, e.g. repetition:20.")

    def repeated(completions: Sequence[str], **columns: Sequence) -> list[float]:
        del columns
        return [_share_of_repeats(completion.lower().split(), size) for completion in completions]

    repeated.__qualname__ = "repetition"
    return repeated


def _share_of_repeats(words: Sequence[str], size: int) -> float:
    """Return the share of the runs of `size` words that occurred before; 0 without a run."""
    runs = [tuple(words[start : start + size]) for start in range(len(words) - size + 1)]
    return 1 - len(set(runs)) / len(runs) if runs else 0.0


def read_repetition(size: str) -> Callable:
    """Make the reward from a size given as text.

    Raises:
        InputError: the text is not a whole number of at least 1.
    """
    if not size.isdecimal():
        raise InputError(f"the size of a repeated run is {size!r}; it must be a number of words, e.g. repetition:20.")
    return repetition(int(size))
