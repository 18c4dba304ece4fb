"""Search as a tool: the policy looks for passages in a local collection of texts, ranked by BM25."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rljax.agents.tool_environment import ToolEnvironment
from rljax.data.bad_rows import BadRowError
from rljax.data.reading import check_row, open_rows
from rljax.errors import InputError
from rljax.importing import import_optional


class TextSearch(ToolEnvironment):
    """An environment whose only tool searches a collection of passages by their words (BM25, Lucene's variant).

    Args:
        passages: file whose rows have a passage in the column `text`, and may have a title in the column `title`.
        results: number of passages that a call returns.
        reward: see `ToolEnvironment`.
        max_turns: see `ToolEnvironment`.

    Raises:
        InputError: the file has no passages, a row has no text, `results` is not positive, or the package bm25s is missing.

    Source:
        Robertson et al., "Okapi at TREC-3", 1994, for the ranking; the package bm25s computes it.
    """

    def __init__(self, passages: str | Path, results: int = 3, reward: str = "exact", max_turns: int = 6):
        if not isinstance(results, int) or results < 1:
            raise InputError(
                f"environment_options: results, the number of passages per call, must be at least 1; got {results!r:.80}."
            )
        self._bm25s = import_optional("bm25s", "bm25s")
        self.passages = list(read_passages(passages))
        if not self.passages:
            raise InputError(f"environment_options: {str(passages)!r} has no passages to search.")
        self._index = self._bm25s.BM25()
        self._index.index(self._tokenize(self.passages), show_progress=False)
        self.results = min(results, len(self.passages))
        self.tools = (self.search,)
        super().__init__(reward, max_turns)

    def search(self, query: str) -> str:
        """Search a collection of texts; return the passages that fit the query best.

        Args:
            query: words to look for.
        """
        indices, scores = self._index.retrieve(self._tokenize([query]), k=self.results, show_progress=False)
        found = [self.passages[index] for index, score in zip(indices[0], scores[0], strict=True) if score > 0]
        return "\n\n".join(found) or "No passage has any of these words."

    def _tokenize(self, texts: list[str]) -> list[list[str]]:
        return self._bm25s.tokenize(texts, return_ids=False, show_progress=False)


def read_passages(file: str | Path) -> Iterator[str]:
    """Read passages, each preceded by its title, if it has one.

    Raises:
        InputError: the file cannot be read, or a row has no text.
    """
    name, rows = open_rows(file, "train")
    for location, row in rows:
        try:
            columns: Mapping[str, Any] = check_row(row)
        except BadRowError as error:
            raise InputError(f"{name}, {location}: {error}.") from error
        text, title = columns.get("text"), columns.get("title")
        if not isinstance(text, str) or not text.strip():
            raise InputError(f"{name}, {location}: a passage needs a column `text` with its text; got {text!r:.80}.")
        yield f"{title}\n{text}" if title else text
