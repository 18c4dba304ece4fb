"""Check newcomers' questions: each answer is within two clicks of the site's start page, or among the first search results.

    python tests/notebooks/newcomers.py build/site

Searches run in headless Chromium, which must be installed. The script prints one line per question and exits with 1 if any fails.
"""

import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple
from urllib.parse import quote

RESULTS_READ = 5
"""The number of search results that a person reads."""


class Question(NamedTuple):
    """A question, a search for it, and the pages that answer it."""

    words: str
    """What a person asks."""
    search: str
    """What they type into the search field."""
    pages: tuple[str, ...]
    """Pages that answer it."""
    answer: str
    """Text that one of these pages must contain."""


QUESTIONS = (
    Question("train my model with my reward", "custom reward", ("custom_reward.html", "faq.html"), "mine.py:"),
    Question("the formula of VAPO", "VAPO formula", ("generated/algorithms/vapo.html", "faq.html"), "<math"),
    Question("which algorithm", "which algorithm", ("choosing_an_algorithm.html", "faq.html"), "rljax recommend"),
    Question("does my model load", "does my model load", ("your_model_and_data.html", "faq.html"), "qwen3"),
    Question("does it fit my GPU", "fit GPU", ("accelerators.html", "faq.html"), "rljax plan"),
)

SYNONYMS = (
    Question("custom reward", "custom reward", ("custom_reward.html",), "custom reward"),
    Question("SFT", "SFT", ("your_model_and_data.html", "faq.html"), "SFT"),
    Question("RLHF", "RLHF", ("recipe_preferences.html", "faq.html"), "RLHF"),
    Question("fine-tune", "fine-tune", ("your_model_and_data.html", "faq.html"), "fine-tune"),
    Question("LoRA", "LoRA", ("adapters.html",), "LoRA"),
    Question("DPO", "DPO", ("recipe_preferences.html", "faq.html"), "DPO"),
    Question("multi-turn", "multi-turn", ("own_parts.html",), "multi-turn"),
    Question("Qwen3", "Qwen3", ("generated/models/qwen3.html",), "qwen3"),
    Question("MBPP", "MBPP", ("recipe_mbpp.html",), "rljax train"),
)
"""Questions whose page a search must find; a link from the start page is not enough."""


def links_of(page: Path, site: Path) -> set[str]:
    """Pages of the site that a page links to, from its content or its sidebar."""
    links = re.findall(r'href="([^"#:]+\.html)', page.read_text(encoding="utf-8"))
    targets = {(page.parent / link).resolve() for link in links}
    return {str(target.relative_to(site)) for target in targets if target.is_relative_to(site) and target.is_file()}


def count_clicks(site: Path) -> Mapping[str, int]:
    """Pages within two clicks of the start page -> the number of clicks."""
    distance = {"index.html": 0}
    for depth in (1, 2):
        for name in [page for page, clicks in distance.items() if clicks == depth - 1]:
            for target in links_of(site / name, site):
                distance.setdefault(target, depth)
    return distance


def search_site(site: Path, words: str) -> list[str]:
    """Search the site; return the pages found, best first."""
    with TemporaryDirectory() as profile:
        command = [shutil.which("chromium") or "chromium", "--headless", "--no-sandbox", "--disable-gpu"]
        command += [f"--user-data-dir={profile}", "--virtual-time-budget=20000", "--dump-dom"]
        address = f"{(site / 'search.html').as_uri()}?q={quote(words)}"
        done = subprocess.run([*command, address], capture_output=True, text=True, check=True, timeout=120)
    section = done.stdout.partition('id="search-results"')[2]
    return list(dict.fromkeys(re.findall(r'<li[^>]*><a href="([^"#?]+\.html)', section)))


def main(site: Path) -> int:
    """Check all questions; return 1 if any fails, else 0."""
    distance, failed = count_clicks(site), 0
    for question in (*QUESTIONS, *SYNONYMS):
        texts = [(site / page).read_text(encoding="utf-8") for page in question.pages]
        has_answer = any(question.answer in text or question.answer in re.sub(r"<[^>]*>", "", text) for text in texts)
        near = {page: distance[page] for page in question.pages if page in distance}
        found = [page for page in search_site(site, question.search)[:RESULTS_READ] if page in question.pages]
        is_answered = has_answer and bool(found or (near and question in QUESTIONS))
        failed += not is_answered
        print(
            f"{'ok' if is_answered else 'FAILED'}  {question.words}: clicks {near}, search {question.search!r} finds {found}"
        )
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve()))
