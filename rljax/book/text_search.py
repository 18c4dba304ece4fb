"""Search the index of equations for words, papers, symbols and ideas, ranked by a score that can be computed by hand.

Each field of an entry has a weight: full name 12, name 10, ideas (phrases that people search for) 7, summary 5, source 4,
module 4, formula 3. A word of the query scores the weight of a field that contains the word, or half of it if the field
contains only another form (`clip`, `clipped`, `clips`); the field with the highest score counts. An entry's score is the sum
over the query's words, plus 14 if one phrase of its ideas has all of them. Entries that contain more of the words come first,
then higher scores, then the order of the index. Entries that contain fewer words than the best entry are omitted; if the best
contains three or more, one fewer is allowed. Words such as "what", "the" and "of" do not count. Greek letters and their names
are the same word (`λ`, `lambda`).
"""

import re
import unicodedata
from collections.abc import Mapping, Sequence
from functools import cache
from typing import NamedTuple

from rljax.book.equations import Equation, equations
from rljax.files import read_toml

IDEAS: Mapping[str, str] = read_toml("rljax.book", "ideas.toml")
"""Name in the index -> phrases that people search for, separated by semicolons."""
WEIGHTS = {"full name": 12, "name": 10, "ideas": 7, "summary": 5, "source": 4, "module": 4, "formula": 3}
PHRASE = 14
MANY_WORDS = 3
STOP_WORDS = frozenset((
    "a", "about", "all", "an", "and", "are", "as", "at", "be", "by", "can", "do", "does", "equation", "find", "for",
    "from", "has", "have", "how", "i", "in", "is", "it", "its", "me", "of", "on", "or", "show", "than", "that", "the",
    "there", "this", "to", "use", "used", "what", "when", "where", "which", "who", "why", "with",
))  # fmt: skip
GREEK_NAMES = (
    "alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "kappa", "lambda", "mu", "nu", "xi", "pi",
    "rho", "sigma", "tau", "phi", "chi", "psi", "omega",
)  # fmt: skip
GREEK: dict[str, str] = dict(zip(GREEK_NAMES, "αβγδεζηθκλμνξπρστφχψω", strict=True))
ENDINGS = (
    "ations", "ation", "ised", "ises", "ising", "ized", "izes", "izing", "ings", "ing", "ers", "ed", "es", "er", "s", "e",
)  # fmt: skip
SHORTEST_STEM = 3


class Match(NamedTuple):
    """An entry found by a query."""

    entry: Equation
    """The entry of the index."""
    words_found: int
    """Number of the query's words that the entry contains."""
    score: float
    """The entry's score."""


def words(text: str) -> list[str]:
    """Split a text into lower-case words. ArXiv ids and decimals are not split; names of Greek letters become the letters.

    Example:
        >>> words("What bounds the ratio ρ_it? (γλ)^l, clip-higher, arXiv:2503.14476")
        ['what', 'bounds', 'the', 'ratio', 'ρ', 'it', 'γ', 'λ', 'l', 'clip', 'higher', 'arxiv', '2503.14476']
    """
    plain = unicodedata.normalize("NFKC", text).casefold()
    parts: list[str] = re.findall(r"\d+(?:\.\d+)*|[α-ω]|[^\W\d_α-ω]+\d*", plain)
    return [GREEK.get(part, part) for part in parts]


def stem(word: str) -> str:
    """Remove the ending of a word, and one letter if its last consonant is doubled: `clipped` and `clips` become `clip`.

    Example:
        >>> stem("clipping"), stem("normalised"), stem("normalization"), stem("gae")
        ('clip', 'normal', 'normal', 'gae')
    """
    for ending in ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= SHORTEST_STEM and not word.endswith("ss"):
            word = word.removesuffix(ending)
            break
    if word.endswith(("is", "iz")) and len(word) > SHORTEST_STEM + 2:
        word = word[:-2]
    doubled = len(word) > SHORTEST_STEM and word[-1] == word[-2] and word[-1] not in "aeiouls"
    return word[:-1] if doubled else word


@cache
def _fields(entry: Equation) -> dict[str, tuple[frozenset[str], frozenset[str]]]:
    """Return the words of each field of an entry, and their stems."""
    texts = {
        "name": entry.function,
        "module": entry.name.rpartition(".")[0],
        "ideas": IDEAS.get(entry.name, ""),
        "summary": entry.summary,
        "source": entry.source,
        "formula": entry.equation,
    }
    split = {field: words(text) for field, text in texts.items()}
    return {field: (frozenset(found), frozenset(map(stem, found))) for field, found in split.items()}


def _word_score(word: str, entry: Equation) -> float:
    """Return the highest score that a field of the entry gives for a word; 0 if no field has it."""
    scores = [WEIGHTS["full name"] if word == entry.function.casefold() else 0.0]
    for field, (exact, stems) in _fields(entry).items():
        if word in exact:
            scores.append(WEIGHTS[field])
        elif stem(word) in stems:
            scores.append(WEIGHTS[field] / 2)
    return max(scores)


def _phrase_score(query: Sequence[str], entry: Equation) -> float:
    """Return the bonus if one phrase of the ideas has every word of a multi-word query, in any form."""
    wanted = {stem(word) for word in query}
    phrases = (set(map(stem, words(phrase))) for phrase in IDEAS.get(entry.name, "").split(";"))
    return PHRASE if len(wanted) > 1 and any(wanted <= phrase for phrase in phrases) else 0.0


def content_words(query: str) -> list[str]:
    """Return the words of a query that are not stop words, each once; if there are only stop words, return all words.

    Example:
        >>> content_words("What bounds the ratio?")
        ['bounds', 'ratio']
    """
    all_words = list(dict.fromkeys(words(query)))
    return [word for word in all_words if word not in STOP_WORDS] or all_words


def search(query: str) -> tuple[Match, ...]:
    """Find the entries that match a query, best first.

    Args:
        query: words, a paper's arXiv id, a symbol, or a question. A full name (`gae.gae`, `dapo`) or a function's bare name finds
            only the entries with that name.

    Returns:
        The matches: entries with about as many of the query's words as the best entry; empty if no entry has any of the words.

    Example:
        >>> [match.entry.name for match in search("clip higher")][:2]
        ['surrogate.clipped', 'dapo']
    """
    everything = equations()
    name = query.strip().casefold()
    named = tuple(Match(entry, 1, WEIGHTS["full name"]) for entry in everything if name in (entry.name, entry.function))
    if named:
        return named
    query_words = content_words(query)
    matches = []
    for entry in everything:
        scores = [_word_score(word, entry) for word in query_words]
        found = sum(score > 0 for score in scores)
        if found:
            matches.append(Match(entry, found, sum(scores) + _phrase_score(query_words, entry)))
    most = max((match.words_found for match in matches), default=0)
    enough = most - 1 if most >= MANY_WORDS else most
    best = (match for match in matches if match.words_found >= enough)
    return tuple(sorted(best, key=lambda match: (-match.words_found, -match.score)))
