r"""Right or wrong in mathematics: the stated answer against the reference, never a part of it.

Most answers are settled here, as text or as decimal numbers. The rest goes to math-verify, in worker processes, because
computer algebra may take for ever: each pair has two seconds. A pair that exceeds them is neither right nor wrong, but
`Failed`, and counted as such. (A worker that was killed takes about a second to replace; the others go on.)
"""

import re
from collections.abc import Callable, Sequence

from rljax.errors import InputError
from rljax.rewards.exact import same_answer
from rljax.rewards.extract import normalized, stated_answer, stated_answer_or_last_number
from rljax.rewards.failure import Failed
from rljax.rewards.pool import shared_pool

SECONDS = 2.0
_MEMORY = 2 * 2**30
_LONGEST_ALGEBRA = 1_000
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)")
_NO_SPACE = re.compile(r"\\[!,]|\\(?:left|right)(?![a-zA-Z])")
_SPACE = re.compile(r"\\[;: ]|~")
_IDLE_SPACE = re.compile(r"(?<![0-9a-zA-Z]) | (?![0-9a-zA-Z])")  # not the one in `1 2`, which is not 12
_IN_TEXT = re.compile(r"\\(?:text|textbf|mathrm|mbox)\{([^{}\\]*)\}")
_GSM8K = re.compile(r"####\s*\$?([+-]?\$?(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]*)?|[+-]?\.[0-9]+)\s*%?\s*\.?\s*")
_AIME = re.compile(r"[0-9]{1,3}")


def simplified(answer: str) -> str:
    r"""Write a LaTeX answer without what changes nothing: spacing, sizes of brackets and fractions, a text command around all.

    Args:
        answer: in its normalised form (see `rljax.rewards.extract.normalized`).

    Returns:
        The answer, to be compared with another one that was simplified.

    Example:
        >>> simplified(r"\left( \dfrac{1}{2},\, 3 \right)"), simplified(r"\text{Evelyn}"), simplified(r"48,\!048")
        ('(\\frac{1}{2},3)', 'Evelyn', '48048')
    """
    spaced = " ".join(_SPACE.sub(" ", _NO_SPACE.sub("", answer)).split())
    bare = _IDLE_SPACE.sub("", spaced).replace(r"\dfrac", r"\frac").replace(r"\tfrac", r"\frac").replace("{,}", ",")
    whole = _IN_TEXT.fullmatch(bare)
    return normalized(whole[1] if whole else bare)


def settled(answer: str, reference: str) -> bool | None:
    r"""Say whether two answers are the same, where that needs no algebra.

    Args:
        answer: what is judged, in its normalised form.
        reference: the truth, likewise.

    Returns:
        True or False; None where algebra has to say.

    Example:
        >>> settled(r"\dfrac{1}{2}", r"\frac{1}{2}"), settled("12", "2"), settled("0.5", r"\frac{1}{2}")
        (True, False, None)
    """
    given, expected = simplified(answer), simplified(reference)
    if same_answer(given, expected):
        return True
    if (_NUMBER.fullmatch(given) and _NUMBER.fullmatch(expected)) or max(len(answer), len(reference)) > _LONGEST_ALGEBRA:
        return False
    return None


def math_reward(
    *, read: Callable[[str], str | None] = stated_answer, seconds: float = SECONDS, workers: int | None = None
) -> Callable:
    r"""Make a reward: 1 for a completion whose answer equals the reference mathematically, else 0.

    An answer, or a reference, of more than 1,000 characters is compared as text only.

    Args:
        read: finds the answer in a completion. `stated_answer` wants it in a box, after `####` or after "the answer is";
            `stated_answer_or_last_number` guesses where there is none of these.
        seconds: wall-clock limit of one comparison.
        workers: processes that compare; None for one a core, at most 8.

    Returns:
        A reward that takes `prompts`, `completions`, `answer` (a worked solution, or the answer alone, as text or a number)
        and `progress`. It gives None where the reference is None or blank, and `Failed` where a comparison did not end.

    Raises:
        InputError: `seconds` or `workers` not positive; at its call, a reference that is neither text nor a number.

    Example:
        >>> judge = math_reward(read=stated_answer_or_last_number)
        >>> judge(["?"] * 3, [r"It is \boxed{12}.", "12 of 13", "It is 12"], answer=["12", "12", None])
        [1.0, 0.0, None]
    """
    pool = shared_pool("rljax.rewards.equivalence:equivalent", seconds=seconds, workers=workers, memory=_MEMORY)

    def judged(
        prompts: Sequence[str], completions: Sequence[str], answer: Sequence, progress: Callable | None = None, **columns
    ) -> list[float | Failed | None]:
        del prompts, columns
        references = [_reference(entry, position) for position, entry in enumerate(answer)]
        pairs = [
            None if reference is None else (read(completion), reference)
            for completion, reference in zip(completions, references, strict=True)
        ]
        verdicts = {pair: False if pair[0] is None else settled(*pair) for pair in pairs if pair is not None}
        open_pairs = [pair for pair, verdict in verdicts.items() if verdict is None]
        asked = [{"reference": expected, "answer": given} for given, expected in open_pairs]
        verdicts |= dict(zip(open_pairs, pool.map(asked, progress), strict=True))
        return [None if pair is None else _as_reward(verdicts[pair]) for pair in pairs]

    judged.__qualname__ = f"math_reward({read.__name__})"
    return judged


def _as_reward(verdict: bool | Failed) -> float | Failed:
    return verdict if isinstance(verdict, Failed) else float(verdict)


def _reference(entry: object, position: int) -> str | None:
    """Bring a reference into the form in which answers are compared; None where the data has none."""
    if entry is None:
        return None
    if isinstance(entry, bool) or not isinstance(entry, str | int | float):
        raise InputError(f"the reference answer {position} is {entry!r}, a {type(entry).__name__}; give text or a number.")
    stated = stated_answer(text := str(entry))
    return (normalized(text) or None) if stated is None else stated


def math(
    prompts: Sequence[str], completions: Sequence[str], answer: Sequence, progress: Callable | None = None, **columns
) -> list[float | Failed | None]:
    r"""Give 1 for a completion that states an answer which equals the reference mathematically, else 0.

    It is stated in a box, after `####` or after "the answer is"; see `math_reward`, also for who wants it otherwise.

    Args:
        prompts: unused; every reward receives them.
        completions: the responses.
        answer: the references: a worked solution, or the answer alone, as text or a number; None or blank for none.
        progress: called with the comparisons done and all that need algebra, or None.
        columns: unused.

    Returns:
        For each completion 1.0 or 0.0; None without a reference; `Failed` where the comparison did not end.

    Raises:
        InputError: a reference that is neither text nor a number.

    Example:
        >>> math(["7+5="] * 2, [r"\boxed{12}", "12"], ["12"] * 2)
        [1.0, 0.0]
    """
    return math_reward()(prompts, completions, answer, progress, **columns)


def math_or_last_number(
    prompts: Sequence[str], completions: Sequence[str], answer: Sequence, progress: Callable | None = None, **columns
) -> list[float | Failed | None]:
    """Judge as `math` does, but where a completion states no answer take its last number for one.

    This guesses: a completion that trails off in the right number earns the reward.

    Args:
        prompts: unused; every reward receives them.
        completions: the responses.
        answer: as in `math`.
        progress: as in `math`.
        columns: unused.

    Returns:
        As `math` does.

    Raises:
        InputError: a reference that is neither text nor a number.

    Example:
        >>> math_or_last_number(["7+5="] * 2, ["it is 12", "12 or 13"], ["12"] * 2)
        [1.0, 0.0]
    """
    return math_reward(read=stated_answer_or_last_number)(prompts, completions, answer, progress, **columns)


def gsm8k(prompts: Sequence[str], completions: Sequence[str], answer: Sequence, **columns) -> list[float | None]:
    """Give 1 for a completion with the right number after its last `####`, as GSM8K writes its solutions, else 0.

    Nothing but the number stands on that line; a dollar sign, a percent sign, grouping commas and a closing period are let
    pass.

    Args:
        prompts: unused; every reward receives them.
        completions: the responses.
        answer: worked solutions in the same format, or the number alone; None or blank for none.
        columns: unused.

    Returns:
        1.0 or 0.0 for each completion; None without a reference.

    Raises:
        InputError: a reference that is no number.

    Example:
        >>> gsm8k(["?"] * 3, ["#### 1,080", "#### 80", "1080"], ["So it is 1080.\\n#### 1,080"] * 3)
        [1.0, 0.0, 0.0]
    """
    del prompts, columns
    rewards: list[float | None] = []
    for position, (completion, entry) in enumerate(zip(completions, answer, strict=True)):
        text = "" if entry is None else str(entry)
        expected = _gsm8k_number(text if "####" in text else f"#### {text}")
        if text.strip() and expected is None:
            raise InputError(f"the reference answer {position} is {text[-80:]!r}; GSM8K wants a number, or `#### number`.")
        given = _gsm8k_number(completion)
        rewards.append(None if expected is None else float(given is not None and same_answer(given, expected)))
    return rewards


def _gsm8k_number(text: str) -> str | None:
    begin = text.rfind("####")
    if begin < 0:
        return None
    found = _GSM8K.fullmatch(text[begin:].partition("\n")[0])
    return found[1].replace("$", "").replace(",", "") if found else None


def aime(prompts: Sequence[str], completions: Sequence[str], answer: Sequence, **columns) -> list[float | None]:
    r"""Give 1 for a completion that states the right integer from 0 to 999, with or without leading zeros, else 0.

    Args:
        prompts: unused; every reward receives them.
        completions: the responses; where the answer is looked for says `rljax.rewards.extract.stated_answer`.
        answer: integers from 0 to 999, as text or numbers, or solutions that state one; None or blank for none.
        columns: unused.

    Returns:
        1.0 or 0.0 for each completion; None without a reference.

    Raises:
        InputError: a reference that is no such integer.

    Example:
        >>> aime(["?"] * 4, [r"\boxed{042}", "The answer is 42.", r"\boxed{42.0}", r"\boxed{1042}"], [42, "042", 42, 42])
        [1.0, 1.0, 0.0, 0.0]
    """
    del prompts, columns
    rewards: list[float | None] = []
    for position, (completion, entry) in enumerate(zip(completions, answer, strict=True)):
        whole = int(entry) if isinstance(entry, float) and entry.is_integer() else entry
        reference = _reference(whole, position)
        if reference is not None and not _AIME.fullmatch(reference):
            raise InputError(f"the reference answer {position} is {reference[:80]!r}; AIME wants an integer from 0 to 999.")
        given = stated_answer(completion)
        right = given is not None and reference is not None and _AIME.fullmatch(given) and int(given) == int(reference)
        rewards.append(None if reference is None else float(bool(right)))
    return rewards
