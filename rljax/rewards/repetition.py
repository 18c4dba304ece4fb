"""A measure of repetition in a response."""

from collections.abc import Callable, Sequence

from rljax.errors import InputError


def repetition(size: int) -> Callable:
    """Make a reward: the fraction of a response's word n-grams that repeat an earlier one. Use it with a negative weight.

    ::

        p(y) = 1 - |distinct n-grams in y| / |n-grams in y|

    Words are separated by white space and compared in lower case. A response of fewer than n words gets 0.

    Args:
        size: n, the number of words per n-gram, at least 1; the paper's code uses 20. Short n-grams repeat in ordinary text, too.

    Returns:
        A reward function of `completions`; its values are in [0, 1).

    Raises:
        InputError: `size` is below 1.

    Example:
        >>> repetition(2)(completions=["wait wait wait", "it is so it is", "3"])
        [0.5, 0.25, 0.0]

    Source:
        Yeo et al., "Demystifying Long Chain-of-Thought Reasoning in LLMs", arXiv:2502.03373, and its authors' code, which applies
        the penalty to wrong responses only, and does not handle a response of fewer than n words.
    """
    if size < 1:
        raise InputError(f"the n-gram size of repetition is {size}; it must be at least 1 word, e.g. repetition:20.")

    def repeated(completions: Sequence[str], **columns: Sequence) -> list[float]:
        del columns
        return [_repeated_fraction(completion.lower().split(), size) for completion in completions]

    repeated.__qualname__ = "repetition"
    return repeated


def _repeated_fraction(words: Sequence[str], size: int) -> float:
    """Return the fraction of the n-grams of `size` words that repeat an earlier n-gram; 0 if there are no n-grams."""
    ngrams = [tuple(words[start : start + size]) for start in range(len(words) - size + 1)]
    return 1 - len(set(ngrams)) / len(ngrams) if ngrams else 0.0


def read_repetition(size: str) -> Callable:
    """Make a repetition reward from a size in text form.

    Raises:
        InputError: the text is not a whole number of at least 1.
    """
    if not size.isdecimal():
        raise InputError(f"the n-gram size of repetition is {size!r}; it must be a number of words, e.g. repetition:20.")
    return repetition(int(size))
