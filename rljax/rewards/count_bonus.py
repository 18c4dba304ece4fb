"""An intrinsic bonus for answers that are rare among the responses to a prompt."""

import math
from collections import Counter
from collections.abc import Callable, Sequence

from rljax.rewards.bonus_scale import read_scale
from rljax.rewards.confidence import remove_confidence
from rljax.rewards.votes import vote


def count_bonus(scale: float | int | str, *, answer_of: Callable[[str], str | None] = vote) -> Callable:
    """Make a reward: a bonus that shrinks as more responses to the same prompt give the same answer.

    ::

        b(y) = c / √n(x, a(y))        n(x, a) = |{responses y' to x in this rollout with a(y') = a}|

    The bonus depends only on the responses of one rollout: no counts are kept between rollouts, the order of the responses does
    not matter, and a resumed run gets the same bonuses. Each of the n responses with the same answer gets c / √n, so together
    they get c √n. A response without an answer gets 0, so that giving no answer never pays.

    Args:
        scale: c, positive, as a number or as text. Keep it below the reward for a right answer.
        answer_of: reads the answer of a response, and returns None if there is no answer; by default
            `rljax.rewards.votes.vote`.

    Returns:
        A reward that takes `prompts` and `completions`. All hosts call it with all responses, because it compares responses.

    Raises:
        InputError: `scale` is not positive and finite.

    Example:
        >>> count_bonus(0.1)(prompts=["1+1="] * 5, completions=["#2", "1+1=2;#2", "#2", "#2", "#3"])
        [0.05, 0.05, 0.05, 0.05, 0.1]

    Source:
        β / √n as in MBIE-EB, Strehl and Littman 2008, J. Comput. Syst. Sci. 74(8). arXiv:2509.06941 applies it to the final answers
        of language models, and counts them either over all of training or within a batch.
    """
    factor = read_scale("count_bonus", scale)

    def bonus(prompts: Sequence[str], completions: Sequence[str], **columns: Sequence) -> list[float]:
        del columns
        answers = [answer_of(remove_confidence(completion)) for completion in completions]
        pairs = list(zip(map(str, prompts), answers, strict=True))
        counts = Counter(pairs)
        return [0.0 if pair[1] is None else factor / math.sqrt(counts[pair]) for pair in pairs]

    bonus.__qualname__ = "count_bonus"
    bonus.on_all_hosts = True  # pyright: ignore[reportFunctionMemberAccess]  functions have attributes
    return bonus
