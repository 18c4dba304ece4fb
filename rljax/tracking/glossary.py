"""The glossary of all metrics in `metrics.jsonl`. It is read from `glossary.toml`, and `rljax explain` prints it."""

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from rljax.errors import InputError
from rljax.files import read_toml
from rljax.text import did_you_mean
from rljax.tracking.display_text import CORRECT, IN_ORDER, METRICS, POSITIVE, STEPS_RIGHT


class Entry(NamedTuple):
    """One metric of a run."""

    name: str
    """Name in `metrics.jsonl`."""
    phases: str
    """Phases whose rows contain the metric; "pairs" means `reward_model` and `preference`."""
    unit: str
    """Unit in `metrics.jsonl`."""
    meaning: str
    """Definition of the metric."""
    formula: str
    """Formula of the metric."""
    source: str
    """Function or record that computes the metric, as a dotted name."""
    expect: str
    """Usual values."""
    act: str
    """What to do if the value is unusual."""


GROUPS: Mapping[str, tuple[Entry, ...]] = MappingProxyType(
    {group: tuple(Entry(**row) for row in rows) for group, rows in read_toml("rljax.tracking", "glossary.toml").items()}
)
"""Part of a step -> the metrics that describe it."""
GLOSSARY = tuple(entry for entries in GROUPS.values() for entry in entries)
"""Every metric of `metrics.jsonl`, and `judge_share`, which appears only on the display."""
LABELS = {metric.key: metric.label for metric in METRICS}
LABELS["accuracy"] = f"{CORRECT}, {POSITIVE}, {IN_ORDER} or {STEPS_RIGHT}"
"""Metric -> its label on the screen."""


def find_entry(name: str) -> Entry:
    """Find the entry of a metric by its name in `metrics.jsonl` or on the screen.

    Raises:
        InputError: there is no such metric; the message suggests similar names.

    Example:
        >>> find_entry("KL").name, find_entry("filtered groups").name, find_entry("accuracy_to_64_tokens").name
        ('kl', 'filtered_ratio', 'accuracy_to_{N}_tokens')
    """
    wanted = _normalize_name(name)
    for entry in GLOSSARY:
        if wanted in (_normalize_name(word) for word in names_of(entry)):
            return entry
    for entry in GLOSSARY:
        parts = re.split(r"\{N\}|\{NAME\}", entry.name)
        if len(parts) > 1 and re.fullmatch(".+".join(map(re.escape, parts)), wanted):
            return entry
    known = [word for entry in GLOSSARY for word in names_of(entry)]
    raise InputError(f"There is no metric {name!r}{did_you_mean(wanted, known)} `rljax explain` lists all of them.")


def names_of(entry: Entry) -> Iterator[str]:
    """Yield the names of a metric: in `metrics.jsonl`, and on the screen."""
    yield entry.name
    if entry.name in LABELS:
        yield from re.split(", | or ", LABELS[entry.name])


def _normalize_name(name: str) -> str:
    return name.strip().removeprefix("held-out ").lower().replace(" ", "_").replace("-", "_")
