"""The page of versions: CHANGELOG.md, with its links as on the site."""

import re
from pathlib import Path

CHANGELOG = Path(__file__).resolve().parents[2] / "CHANGELOG.md"


def changes_page() -> str:
    """What each version changed; a version without changes is left out."""
    text = CHANGELOG.read_text(encoding="utf-8").replace("# Changelog", "(page-changes)=\n# Versions and changes", 1)
    return re.sub(r"^## Unreleased\s+(?=## )", "", text, flags=re.MULTILINE)
