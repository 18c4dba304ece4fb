r"""Rewards for mathematics: the complete stated answer must equal the reference.

Most answers are compared here, as text or as exact numbers with units. The rest go to computer algebra, which may never finish and
therefore runs in worker processes, with a time limit of two seconds per pair. An answer that exceeds the limit is wrong, and is
counted separately (`Unfinished`), so that no model can stop a run. Answers that would clearly take too long, such as
`10^{10^{10}}`, are wrong without being tried.

`rljax.rewards.equivalence` (lists, tuples, intervals, equations) and `rljax.rewards.quantity` (numbers, units, percents) describe
the accepted forms of an answer; `rljax.rewards.extract` describes where in a response the answer is searched for.
"""

import re
from collections.abc import Callable, Sequence

from rljax.errors import InputError
from rljax.rewards.algebra_limits import LONGEST_ALGEBRA, is_judgeable
from rljax.rewards.correctness import Failed, Unfinished, Unstated, reads, verifier
from rljax.rewards.exact import same_answer
from rljax.rewards.extract import LONGEST_READ, normalize_answer, stated_answer, stated_text, stated_text_or_last_number
from rljax.rewards.notation import canonicalize, write_minus_signs
from rljax.rewards.pool import shared_pool
from rljax.rewards.quantity import same_quantity

SECONDS = 2.0
"""Time limit of one comparison."""
_MEMORY_BYTES = 2 * 2**30
_STATED_FORM = (
    r"the last `\boxed{...}`, else `<answer>...</answer>`, else the text after `####` or after the words `the answer is`"
)
LONGEST_PHRASE = 15
"""A reference with more words than this and no stated answer is considered prose."""
_IN_TEXT = re.compile(r"\\text\{([^{}]*)\}")
_GSM8K = re.compile(r"\$?([+-]?\$?(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]*)?|[+-]?\.[0-9]+)")
_AIME = re.compile(r"[0-9]{1,3}")


def simplify_answer(answer: str) -> str:
    r"""Remove what does not change a LaTeX answer: spacing, sizes of brackets and fractions, and a text command around the answer.

    Args:
        answer: an answer.

    Returns:
        The result of `rljax.rewards.notation.canonicalize` without the text command; for an answer of more than 1,000 characters,
        only the result of `rljax.rewards.extract.normalize_answer`.

    Example:
        >>> simplify_answer(r"\left( \dfrac{1}{2},\, 3 \right)"), simplify_answer(r"\text{Evelyn}"), simplify_answer(r"48,\!048")
        ('(\\frac{1}{2},3)', 'Evelyn', '48048')
    """
    if len(answer) > LONGEST_ALGEBRA:
        return normalize_answer(answer)
    written = canonicalize(answer)
    in_text = _IN_TEXT.fullmatch(written)
    return canonicalize(in_text[1]) if in_text else written


def decide_without_algebra(answer: str, reference: str) -> bool | None:
    r"""Compare two answers if that needs no algebra: equal texts, numbers with or without units, and answers too long for algebra.

    Args:
        answer: the answer to judge.
        reference: the correct answer.

    Returns:
        True or False; None if only algebra can decide.

    Example:
        >>> pairs = (r"\dfrac{1}{2}", "0.5"), ("12", "2"), ("18 eggs", "18"), ("x+1", "1+x")
        >>> [decide_without_algebra(*pair) for pair in pairs]
        [True, False, True, None]
    """
    if normalize_answer(answer) == normalize_answer(reference):
        return True
    if max(len(answer), len(reference)) > LONGEST_ALGEBRA:
        return False
    actual, expected = simplify_answer(answer), simplify_answer(reference)
    if actual == expected:
        return bool(actual)
    if not (is_judgeable(answer) and is_judgeable(reference)):
        return False
    return same_quantity(expected, actual)


def math_reward(
    *, read: Callable[[str], str | None] = stated_text, seconds: float | int = SECONDS, workers: int | None = None
) -> Callable:
    r"""Make a reward: 1 for a completion whose answer equals the reference mathematically, else 0.

    Answers and references of more than 1,000 characters are compared as text only. If a completion has several answers, the last
    one counts.

    Args:
        read: a function that finds the answer in a completion. `stated_text` looks in a box, in answer tags, after `####` and
            after "the answer is"; `stated_text_or_last_number` falls back to the final formula, equation or number.
        seconds: wall-clock time limit of one comparison.
        workers: number of worker processes; None means one per core, at most 8.

    Returns:
        A reward that takes `prompts`, `completions`, `answer` (a worked solution, or the answer alone, as text or a number)
        and `progress`. For each completion it returns 1.0 or 0.0, None if the reference is None or blank, and `Unfinished` if a
        comparison took too long.

    Raises:
        InputError: `seconds` or `workers` is not positive. When the reward is called: a reference is neither text nor a number.

    Example:
        >>> judge = math_reward(read=stated_text_or_last_number)
        >>> judge(["?"] * 3, [r"It is \boxed{12}.", "12 of 13", "It is 12"], answer=["12", "12", None])
        [1.0, 0.0, None]
    """
    pool = shared_pool("rljax.rewards.equivalence:equivalent", seconds=seconds, workers=workers, memory=_MEMORY_BYTES)

    def judge(
        prompts: Sequence[str],
        completions: Sequence[str],
        answer: Sequence,
        progress: Callable | None = None,
        **columns: Sequence,
    ) -> list[float | None]:
        del prompts, columns
        references = [_read_reference(entry, position) for position, entry in enumerate(answer)]
        pairs = [
            None if reference is None else (read(completion), reference)
            for completion, reference in zip(completions, references, strict=True)
        ]
        stated = [(pair[0], pair[1]) for pair in pairs if pair is not None and pair[0] is not None]
        verdicts: dict[tuple[str | None, str], object] = {pair: decide_without_algebra(*pair) for pair in stated}
        undecided = [pair for pair, verdict in verdicts.items() if verdict is None]
        comparisons = [{"reference": expected, "answer": actual} for actual, expected in undecided]
        verdicts |= dict(zip(undecided, pool.map(comparisons, progress), strict=True))
        return [None if pair is None else _as_reward(verdicts.get(pair)) for pair in pairs]

    judge.__qualname__ = f"math_reward({read.__name__})"
    return verifier(judge)


def _as_reward(verdict: object) -> float:
    if verdict is None:
        return Unstated()
    return Unfinished(verdict.reason) if isinstance(verdict, Failed) else float(bool(verdict))


def _read_reference(entry: object, position: int) -> str | None:
    """Return the answer that a reference states, else the full reference; None if there is no reference or it is blank."""
    if entry is None:
        return None
    if isinstance(entry, bool) or not isinstance(entry, str | int | float):
        raise InputError(
            f"the reference answer {position} is {entry!r}, a {type(entry).__name__}; it must be text or a number."
        )
    stated = stated_text(text := str(entry))
    answer = text.strip() if stated is None else stated
    return answer if normalize_answer(answer) else None


def notes_on_references(references: Sequence[object]) -> list[str]:
    """Warn of references that are long texts without a stated answer, because only a response with the same text would be right.

    Args:
        references: the references of all problems.

    Example:
        >>> notes_on_references(["12", "word " * 20 + "#### 12", None])
        []
        >>> notes_on_references(["12", "word " * 20])[0][:64]
        '1 of 2 references have more than 15 words and state no answer, s'
    """
    texts = [reference for reference in references if isinstance(reference, str)]
    prose = [text for text in texts if len(text.split()) > LONGEST_PHRASE and stated_text(text) is None]
    if not prose:
        return []
    return [
        f"{len(prose)} of {len(references)} references have more than {LONGEST_PHRASE} words and state no answer, so a response is "
        f"right only if it states all these words: {' '.join(prose[0].split())[:39]!r}...; write the answer alone, or as "
        "`#### ANSWER` at the end"
    ]


@reads(_STATED_FORM)
@verifier
def math(
    prompts: Sequence[str],
    completions: Sequence[str],
    answer: Sequence,
    progress: Callable | None = None,
    **columns: Sequence,
) -> list[float | None]:
    r"""Give 1 for a completion whose stated answer equals the reference mathematically, else 0.

    The answer is stated in a box, in answer tags, after `####` or after "the answer is". `math_reward` builds variants.

    Args:
        prompts: unused; every reward receives them.
        completions: the responses.
        answer: the references: a worked solution or only its answer, as text or a number; None or blank if there is no reference.
        progress: called with the number of comparisons done and the number of comparisons that need algebra; or None.
        columns: unused.

    Returns:
        For each completion 1.0 or 0.0; None if there is no reference; `Unfinished`, which counts as 0, if the comparison did not
        finish.

    Raises:
        InputError: a reference is neither text nor a number.

    Example:
        >>> math(["7+5="] * 2, [r"\boxed{12}", "12"], ["12"] * 2)
        [1.0, 0.0]
    """
    return math_reward()(prompts, completions, answer, progress, **columns)


@reads(f"{_STATED_FORM}; else the formula or equation that ends a response, else its last number")
@verifier
def math_or_last_number(
    prompts: Sequence[str],
    completions: Sequence[str],
    answer: Sequence,
    progress: Callable | None = None,
    **columns: Sequence,
) -> list[float | None]:
    """Judge as `math` does, but take the final formula, equation or number of a completion that states no answer.

    This is a guess: a completion that happens to end with the right number earns the reward.

    Args:
        prompts: unused; every reward receives them.
        completions: the responses.
        answer: as for `math`.
        progress: as for `math`.
        columns: unused.

    Returns:
        As for `math`.

    Raises:
        InputError: a reference is neither text nor a number.

    Example:
        >>> math_or_last_number(["7+5="] * 2, ["it is 12", "12 or 13"], ["12"] * 2)
        [1.0, 0.0]
    """
    return math_reward(read=stated_text_or_last_number)(prompts, completions, answer, progress, **columns)


@reads("the number after the last `####`, alone on its line")
@verifier
def gsm8k(prompts: Sequence[str], completions: Sequence[str], answer: Sequence, **columns: Sequence) -> list[float | None]:
    """Give 1 for a completion with the right number after its last `####`, as in GSM8K's solutions, else 0.

    The rest of that line must be the number and nothing else, except for a dollar sign, a percent sign, grouping commas and a
    closing period.

    Args:
        prompts: unused; every reward receives them.
        completions: the responses.
        answer: worked solutions in the same format, or only the number; None or blank if there is no reference.
        columns: unused.

    Returns:
        1.0 or 0.0 for each completion; None if there is no reference.

    Raises:
        InputError: a reference is not a number.

    Example:
        >>> gsm8k(["?"] * 3, ["#### 1,080", "#### 80", "1080"], ["So it is 1080.\\n#### 1,080"] * 3)
        [1.0, 0.0, 0.0]
    """
    del prompts, columns
    rewards: list[float | None] = []
    for position, (completion, entry) in enumerate(zip(completions, answer, strict=True)):
        text = "" if entry is None else str(entry)
        expected = _read_gsm8k_number(text if "####" in text else f"#### {text}")
        if text.strip() and expected is None:
            raise InputError(f"the reference answer {position} is {text[-80:]!r}; GSM8K needs a number or `#### number`.")
        actual = _read_gsm8k_number(completion)
        right = Unstated() if actual is None else float(same_answer(actual, "" if expected is None else expected))
        rewards.append(None if expected is None else right)
    return rewards


def _read_gsm8k_number(text: str) -> str | None:
    _, mark, after = text[-LONGEST_READ:].rpartition("####")
    line = write_minus_signs(after.partition("\n")[0]).strip().removesuffix(".").rstrip().removesuffix("%").rstrip()
    found = _GSM8K.fullmatch(line) if mark else None
    return found[1].replace("$", "").replace(",", "") if found else None


@reads("an integer from 0 to 999, in the same form as for math")
@verifier
def aime(prompts: Sequence[str], completions: Sequence[str], answer: Sequence, **columns: Sequence) -> list[float | None]:
    r"""Give 1 for a completion that states the right integer from 0 to 999, with or without leading zeros, else 0.

    Args:
        prompts: unused; every reward receives them.
        completions: the responses; `rljax.rewards.extract.stated_answer` finds their answers.
        answer: integers from 0 to 999, as text or numbers, or solutions that state one; None or blank if there is no reference.
        columns: unused.

    Returns:
        1.0 or 0.0 for each completion; None if there is no reference.

    Raises:
        InputError: a reference is not such an integer.

    Example:
        >>> aime(["?"] * 4, [r"\boxed{042}", "The answer is 42.", r"\boxed{42.0}", r"\boxed{1042}"], [42, "042", 42, 42])
        [1.0, 1.0, 0.0, 0.0]
    """
    del prompts, columns
    rewards: list[float | None] = []
    for position, (completion, entry) in enumerate(zip(completions, answer, strict=True)):
        number = int(entry) if isinstance(entry, float) and entry.is_integer() else entry
        reference = _read_reference(number, position)
        if reference is not None and not _AIME.fullmatch(reference):
            raise InputError(
                f"the reference answer {position} is {reference[:80]!r}; an AIME answer is an integer from 0 to 999."
            )
        stated = stated_answer(completion)
        actual = None if stated is None else simplify_answer(stated)
        right = actual is not None and reference is not None and _AIME.fullmatch(actual) and int(actual) == int(reference)
        rewards.append(None if reference is None else Unstated() if actual is None else float(bool(right)))
    return rewards
