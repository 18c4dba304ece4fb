"""Whether a response has the form that lets it be judged at all."""

from collections.abc import Sequence

from rljax.rewards.extract import final_answer


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
