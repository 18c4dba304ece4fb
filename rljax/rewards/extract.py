r"""Find the final answer in a text.

All functions here read a model's text in the trainer's process. Therefore their running time is proportional to the length of the
text, and they read at most its last 200,000 characters.

If a text has several answers, the last one counts, even if two boxes are side by side. A response must commit to one answer;
otherwise it could box every candidate and always be right. Put several values in one box, separated by commas.
"""

import re

from rljax.boxed import last_box
from rljax.rewards.notation import canonicalize, write_minus_signs
from rljax.rewards.quantity import read_number, split_unit

LONGEST_READ = 200_000
"""Only this many characters at the end of a text are read."""

_GROUPED_NUMBER = re.compile(r"[+-]?[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?")
_PHRASE = re.compile(
    r"\banswer\**(?: (?:to|for|of) [^.:=\n]{1,80}?)?\s*(?:is|equals|(?:would|will|should|must) be|:|=)\s*:?\s*\**"
    r"|(?:\*\*|#) ?(?:final )?answer\**\s*\n\s*",  # a heading
    re.IGNORECASE,
)
_OPENING = re.compile(
    r"(?:(?:now|thus|therefore|then|simply|just|exactly|precisely|indeed|given by|equal to|=)[,:]? )*", re.IGNORECASE
)
_ASIDE = re.compile(
    r"[,;]? (?:which|because|since|as (?:we|it|the|there|required|expected|desired|wanted|stated|shown))\b", re.IGNORECASE
)
_EXCLAIMED = re.compile(r"[\d\w\s$,.%]+!+", re.ASCII)
_WORDS = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z]{2,}")
_EQUALS = re.compile(r"=|\\approx")
_LETTER = re.compile(r"[a-zA-Z\\]")
_IN_MATHEMATICS = re.compile(r"\$\$?([^$]+)\$\$?|\\[(\[]((?:[^\\]|\\[^)\]])*)\\[)\]]")
_END_OF_LINE = " .*_`!"
_SENTENCE_END = re.compile(r"\.(?:\s|$)")
_CONCLUSION = re.compile(r"(?:\b(?:therefore|thus|hence)\b|∴)[,:]? ?((?:[a-z ]{0,60} )?)", re.IGNORECASE)
_NO_CONCLUSION = frozenset("not no never than least most about nearly almost or if unless cannot".split())  # noqa: SIM905 - read as words
_MODULAR_RESIDUE = re.compile(r"(?:[-+]|(?<!\d))\d+ ?[$]? ?\(?\\?(?:[pb]?mod|text\{ ?\(?mod ?\}) ?\{?\d+\}?(?:\)|\\?\))?$")
_LONGEST_CONCLUSION = 200
_THOUGHT_END = "</think>"
_OPEN, _CLOSE = "<answer>", "</answer>"
_NUMBER_IN_TEXT = re.compile(
    r"(?<![\w.,/])[-+]?\$?(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+|/[0-9]+)?(?!\w|\.[0-9]|/[0-9])"
)


def normalize_answer(text: str) -> str:
    r"""Normalize an answer for comparison.

    Dollar signs and a closing period are removed, runs of white space become one space, and an answer that is a number loses
    its grouping commas. Any other comma is kept, because (1,200) is an interval or a point.

    Args:
        text: an answer.

    Returns:
        The answer in its normalized form.

    Example:
        >>> normalize_answer(" $1,234. "), normalize_answer(r"(1,200)")
        ('1234', '(1,200)')
    """
    bare = " ".join(write_minus_signs(text).replace(r"\$", "").replace("$", "").split())
    bare = bare.removesuffix(".").rstrip()
    return bare.replace(",", "") if _GROUPED_NUMBER.fullmatch(bare) else bare


def final_answer(text: str) -> str | None:
    r"""Read the final answer of a text that marks the answer explicitly, with `#` or with a box.

    The answer follows the last run of `#`, up to the end of that line, or is in the last `\boxed{...}` whose braces balance. If
    a text has both, the later one counts, so a heading such as `### Step 2` is not the answer if a box follows.

    Args:
        text: a response, or a reference solution.

    Returns:
        The normalized answer; None if there is no answer or it is empty.

    Example:
        >>> final_answer("7+5=12;12+9=21;#21"), final_answer("so it is\n#### 1,080")
        ('21', '1080')
        >>> final_answer(r"### Step 2: thus $\boxed{\frac{1}{2}}$"), final_answer("21")
        ('\\frac{1}{2}', None)
    """
    end = text[-LONGEST_READ:]
    candidates = [*_last_boxed(end), *_last_marked(end, "#")]
    if not candidates:
        return None
    _, answer = max(candidates)
    return normalize_answer(answer) or None


def _last_boxed(text: str) -> list[tuple[int, str]]:
    found = last_box(text)
    return [] if found is None else [found]


def tagged_text(text: str) -> str | None:
    """Return the content of the last `<answer>...</answer>`, unchanged.

    Args:
        text: a response. Only its last 200,000 characters are read.

    Returns:
        The text between the tags; None if there are no such tags.

    Example:
        >>> tagged_text("so <answer>7</answer>, no: <answer> 8 </answer>"), tagged_text("8")
        (' 8 ', None)
    """
    found = _last_tagged(text[-LONGEST_READ:])
    return found[0][1] if found else None


def skip_reasoning(text: str) -> str:
    """Return what follows the reasoning of a response, `<think>...</think>`; the full text if nothing follows.

    Example:
        >>> skip_reasoning("<think>4? No.</think>It is 5."), skip_reasoning("It is 5.</think>"), skip_reasoning("5")
        ('It is 5.', 'It is 5.</think>', '5')
    """
    rest = text.rpartition(_THOUGHT_END)[2]
    return rest if rest.strip() else text


def stated_text(text: str) -> str | None:
    r"""Read the answer that a free-form solution states: in a box, in answer tags, after `####`, or in words.

    The answer is the content of the last balanced `\boxed{...}`. Without a box, the answer is whichever comes later: the rest of
    the line after the last `####`, or the rest of the sentence after the last "answer is" or "answer:". If the text has tags
    `<answer>...</answer>`, the line and the sentence are searched for only inside the last tags. If these tags contain neither,
    their content is the answer.
    Without any of these, the answer is a number, with or without a unit, that ends the text after "therefore", "thus" or "hence".
    If the text after `</think>` states an answer, the reasoning before `</think>` is not searched.

    Args:
        text: a response, or a reference solution. Only its last 200,000 characters are read.

    Returns:
        The answer, unchanged (a currency sign stays); None if there is no answer or it is blank.

    Example:
        >>> stated_text(r"The answer is \boxed{\$\frac{1}{2}}."), stated_text("Adding up, the answer is: 18 eggs. Done.")
        ('\\$\\frac{1}{2}', '18 eggs')
        >>> stated_text("#### 72"), stated_text("Therefore, she has 72."), stated_text("It is 72.")
        ('72', '72', None)
    """
    end = text[-LONGEST_READ:]
    rest = skip_reasoning(end)
    if rest is not end and (stated := stated_text(rest)) is not None:
        return stated
    tagged = _last_tagged(end)
    inside = tagged[0][1] if tagged else end
    candidates = (
        _last_boxed(end) or [*_last_marked(inside, "####"), *_last_phrase(inside)] or tagged or _last_conclusion(end)
    )
    if not candidates:
        return None
    _, answer = max(candidates)
    return answer.strip() or None


def stated_answer(text: str) -> str | None:
    r"""Read the answer that a free-form solution states, as `stated_text` does, and normalize it.

    Args:
        text: a response, or a reference solution.

    Returns:
        The normalized answer; None if there is no answer or it is empty.

    Example:
        >>> stated_answer(r"The answer is \boxed{\frac{1}{2}}."), stated_answer("Adding up, the answer is 1,080. Done.")
        ('\\frac{1}{2}', '1080')
        >>> stated_answer("#### 72"), stated_answer("It is 72.")
        ('72', None)
    """
    stated = stated_text(text)
    return None if stated is None else normalize_answer(stated) or None


def last_number(text: str) -> str | None:
    """Read the last number of a text, whatever it means: a guess at the answer of a text that states none.

    Args:
        text: a response. Only the last 200,000 characters are read.

    Returns:
        The number without a dollar sign or grouping commas; None if there is no number.

    Example:
        >>> last_number("from 12 to 1,080 in all, or -$7.50."), last_number("x2 is not one")
        ('-7.50', None)
    """
    found = _NUMBER_IN_TEXT.findall(write_minus_signs(text[-LONGEST_READ:]))
    return found[-1].replace("$", "").replace(",", "") if found else None


def stated_answer_or_last_number(text: str) -> str | None:
    """Read the stated answer, or guess if no answer is stated, and normalize it.

    Args:
        text: a response.

    Returns:
        The result of `stated_text_or_last_number`, normalized.

    Example:
        >>> stated_answer_or_last_number("The answer is 5, not 6."), stated_answer_or_last_number("It is 72.")
        ('5, not 6', '72')
    """
    answer = stated_text_or_last_number(text)
    return None if answer is None else normalize_answer(answer) or None


def stated_text_or_last_number(text: str) -> str | None:
    r"""Read the stated answer, unchanged; if no answer is stated, guess.

    The guess is the value of the formula or equation that ends the last line; without one, it is the last number. If the answer is
    stated as a sentence with exactly one number, that number is returned.

    Args:
        text: a response.

    Returns:
        The result of `stated_text`, else the guess; None if there is no stated answer, formula or number.

    Example:
        >>> stated_text_or_last_number("The answer is $5."), stated_text_or_last_number("It is 72.")
        ('$5', '72')
        >>> stated_text_or_last_number("x = \\frac{3}{4}"), stated_text_or_last_number("The answer is the sum, 25")
        ('\\frac{3}{4}', '25')
    """
    end = skip_reasoning(text[-LONGEST_READ:])
    stated = stated_text(end)
    if stated is not None and (
        _last_boxed(end) or _last_tagged(end) or not _WORDS.search(canonicalize(stated[:_LONGEST_CONCLUSION]))
    ):
        return stated
    if stated is not None and (numbers := _NUMBER_IN_TEXT.findall(stated)):
        return stated if len(numbers) > 1 or _is_quantity(stated) else last_number(stated)
    return _last_value(end)


def _is_quantity(text: str) -> bool:
    """True for a number with or without a unit."""
    return read_number(split_unit(canonicalize(text[:_LONGEST_CONCLUSION])).core) is not None


def _last_value(text: str) -> str | None:
    """Return the right-hand side of the formula that ends a text, or the text's last number."""
    line = text.rstrip(f"{_END_OF_LINE}\n").rpartition("\n")[2][-_LONGEST_CONCLUSION:]
    spans = [found for found in _IN_MATHEMATICS.finditer(line) if not _NUMBER_IN_TEXT.search(line, found.end())]
    formula = (spans[-1][1] or spans[-1][2]) if spans else line
    value = _EQUALS.split(formula)[-1].strip(_END_OF_LINE)
    if residue := _MODULAR_RESIDUE.search(value):
        return residue[0]
    # A sum of numbers may just repeat the question.
    sum_of_numbers = value == formula.strip(_END_OF_LINE) and not _LETTER.search(value)
    if value and (_is_quantity(value) or not (sum_of_numbers or _WORDS.search(value))):
        return value
    return last_number(text)


def _last_tagged(text: str) -> list[tuple[int, str]]:
    begin = text.rfind(_OPEN, 0, max(text.rfind(_CLOSE), 0))
    if begin < 0:
        return []
    inside = text[begin + len(_OPEN) :]
    return [(begin, inside[: inside.index(_CLOSE)])]


def _last_marked(text: str, mark: str) -> list[tuple[int, str]]:
    """Return the position of the last mark and the rest of its line as the only element; an empty list if there is no mark."""
    before, found, after = text.rpartition(mark)
    return [(len(before), after.partition("\n")[0])] if found else []


def _last_phrase(text: str) -> list[tuple[int, str]]:
    found = list(_PHRASE.finditer(text))
    if not found:
        return []
    last = found[-1]
    line = text[last.end() :].partition("\n")[0]
    return [(last.start(), _trim_clause(_SENTENCE_END.split(line, maxsplit=1)[0].strip("* ")))]


def _trim_clause(sentence: str) -> str:
    """Return the answer in a clause, without introductory words, a remark after the answer, or an exclamation mark."""
    opening = _OPENING.match(sentence)
    bare = _ASIDE.split(sentence[opening.end() if opening else 0 :], maxsplit=1)[0].strip()
    return bare.rstrip("! ") if _EXCLAIMED.fullmatch(bare) else bare


def _last_conclusion(text: str) -> list[tuple[int, str]]:
    """Read a number after "therefore", if it ends the text."""
    line = text.rstrip().rpartition("\n")[2][-_LONGEST_CONCLUSION:]
    found = list(_CONCLUSION.finditer(line))
    if not found or _NO_CONCLUSION.intersection(found[-1][1].lower().split()):
        return []
    rest = line[found[-1].end() :].strip("* ").removesuffix(".")
    has_digit = any(map(str.isdigit, rest))  # the "one" in "the second one" is not an answer
    return [(0, rest)] if has_digit and read_number(split_unit(canonicalize(rest)).core) is not None else []
