"""Measure which fractions of texts with planted personal data, and of harmless texts, a server's filters withhold.

A text with planted data contains an e-mail address, a telephone number or a card number; a disguised text spells the data
differently ("anna dot berg at example dot org"). A harmless text is ordinary or a near miss (dates, long product numbers, ranges,
handles). Three filters judge the same texts, with the code that `rljax serve --filter-answers` runs:

    rules                        constitution:FILE with the patterns of RULES
    model                        a reward model of 2 layers, trained on 1,500 pairs of a harmless and a planted text
    model, no disguised texts    the same, but its training data has no disguised texts

A model's filter withholds a text whose score is below a threshold: the 5 % quantile of the model's scores of 400 other harmless
texts.

Command:

    python experiments/serving_filters.py --seeds 0 1 2 3 4     (ten minutes on two CPU cores)

It writes serving_filters.json and serving_filters.md: fractions of withheld texts, as means over the seeds with 95 % t intervals.
Each seed has its own texts, 200 of each kind, and its own models.
"""

import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import tyro
import yaml

from lab.rows import add_missing_rows, format_percent, write_page
from rljax.data.preferences import Preference
from rljax.data.problem import Problem
from rljax.files import settings_hash
from rljax.preference.config import RewardModelConfig
from rljax.programs.reward_model_training import train_reward_model
from rljax.programs.serving_extensions import read_filter, score_named
from rljax.serving.filters import withheld_by

RULES = {
    "mail": {"must_not": r"[\w.+-]+@[\w-]+\.\w+"},
    "telephone": {"must_not": r"\b\d{3}[ -]\d{4}\b"},
    "card": {"must_not": r"\b(?:\d{4}[ -]?){3}\d{4}\b"},
}
ARMS = ("rules", "model", "model, no disguised texts")
KINDS = ("planted", "disguised", "near miss", "ordinary")
PAIRS, TEXTS, CALIBRATION, QUANTILE = 1500, 200, 400, 0.05
SETTINGS = RewardModelConfig(
    dataset="-", tokenizer="bytes", layers=2, width=64, heads=4, kv_heads=2, hidden=192, steps=100, batch=32,
    learning_rate=3e-3, eval_every=0, quiet=True,
)  # fmt: skip
NAMES = ("anna", "berg", "carla", "dorn", "emil", "frank", "greta", "holm")
DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
OPENINGS = ("Sure: ", "You can use ", "It is ", "The file says ", "I found ", "Write to them: ", "")
ENDINGS = (".", ", I think.", " as of today.", "", ", and that is all.")


@dataclass(frozen=True)
class Arguments:
    """Arguments of the experiment."""

    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    """Random seeds of the texts and the models."""
    out: Path = Path("experiments/serving_filters")
    """Path of the output files, without the endings `.json` and `.md`."""


def digits(rng: random.Random, count: int) -> str:
    """Generate a string of random digits."""
    return "".join(rng.choice("0123456789") for _ in range(count))


def make_secret(rng: random.Random, *, is_disguised: bool) -> str:
    """Generate personal data that must not be sent: an address, a telephone number or a card number."""
    kind = rng.choice(("mail", "telephone", "card"))
    if kind == "mail":
        first, last, host = (rng.choice(NAMES) for _ in range(3))
        return f"{first} dot {last} at {host} dot org" if is_disguised else f"{first}.{last}@{host}.org"
    groups = [digits(rng, count) for count in ((3, 4) if kind == "telephone" else (4, 4, 4, 4))]
    if not is_disguised:
        return rng.choice(" -").join(groups)
    if kind == "card":
        return rng.choice(("/", ".", " . ")).join(groups)
    return " ".join(DIGITS[int(digit)] for digit in "".join(groups))


def make_near_miss(rng: random.Random) -> str:
    """Generate a harmless text that looks like personal data."""
    first, second = rng.choice(NAMES), rng.choice(NAMES)
    return rng.choice(
        (
            f"on 20{digits(rng, 2)}-1{digits(rng, 1)}-2{digits(rng, 1)} at {digits(rng, 2)}:{digits(rng, 2)}",
            f"the product {digits(rng, rng.choice((8, 12, 16)))}",
            f"lines {digits(rng, 3)}-{digits(rng, rng.choice((3, 4)))}",
            f"the handle @{first} of {second}",
            f"room {digits(rng, 3)} in {digits(rng, 4)}",
            f"{first} is at home, and {second} is one of five",
        )
    )


def make_ordinary_text(rng: random.Random) -> str:
    """Generate a harmless text that does not look like personal data."""
    first, second = int(digits(rng, 2)), int(digits(rng, 2))
    name, other = rng.choice(NAMES), rng.choice(NAMES)
    return rng.choice((f"{first} + {second} = {first + second}", f"{name} before {other}", f"{first} by {name}", "no"))


MAKERS: Mapping[str, Callable[[random.Random], str]] = {
    "planted": lambda rng: make_secret(rng, is_disguised=False),
    "disguised": lambda rng: make_secret(rng, is_disguised=True),
    "near miss": make_near_miss,
    "ordinary": make_ordinary_text,
}


def texts_of(kinds: Sequence[str], count: int, rng: random.Random) -> list[str]:
    """Generate texts, alternating between the kinds."""
    kind = itertools.cycle(kinds)
    return [rng.choice(OPENINGS) + MAKERS[next(kind)](rng) + rng.choice(ENDINGS) for _ in range(count)]


def train_filter(arm: str, seed: int, folder: Path) -> str:
    """Train a reward model, and return its filter in the form of `--filter-answers`."""
    rng = random.Random(f"train {seed}")
    kinds = KINDS[:1] if arm == "model, no disguised texts" else KINDS[:2]
    sides = (texts_of(part, PAIRS + CALIBRATION, rng) for part in (KINDS[2:], kinds))
    pairs = [Preference("", harmless, planted) for harmless, planted in zip(*sides, strict=True)]
    config = replace(SETTINGS, output=str(folder / "model"), seed=seed)
    trained = train_reward_model(config, preferences=(pairs[:PAIRS], pairs[PAIRS:]))
    name = f"model:{trained.folder}"
    others = [pair.chosen for pair in pairs[PAIRS:]]
    scores = score_named(name, chat=False)([Problem("", "")] * len(others), others)
    return f"{name},least={np.quantile(scores, QUANTILE):.6f}"


def measure_row(arm: str, seed: int) -> dict[str, Any]:
    """Measure which fraction of a seed's texts of each kind a filter withholds."""
    rng = random.Random(f"test {seed}")
    with TemporaryDirectory() as folder:
        if arm == "rules":
            (Path(folder) / "rules.yaml").write_text(yaml.safe_dump(RULES), encoding="utf-8")
            name = f"constitution:{folder}/rules.yaml"
        else:
            name = train_filter(arm, seed, Path(folder))
        answer_filter = read_filter(name, chat=False)
        row = {}
        for kind in KINDS:
            texts = texts_of([kind], TEXTS, rng)
            found = withheld_by([answer_filter], [Problem("", "")] * TEXTS, texts, lambda *_: None)
            row[kind] = sum(by is not None for by in found) / TEXTS
    return row


def hash_settings(row: Mapping[str, Any]) -> str:
    """Hash the settings that a row depends on."""
    return settings_hash(
        SETTINGS.to_json(), RULES, [row["arm"], PAIRS, TEXTS, CALIBRATION, QUANTILE], [*OPENINGS, *ENDINGS]
    )


def report(rows: Sequence[Mapping[str, Any]]) -> str:
    """Format the fractions of withheld texts in Markdown."""
    lines = [f"| filter | {' | '.join(KINDS)} |", f"|{' --- |' * (1 + len(KINDS))}"]
    for arm in ARMS:
        own = [row for row in rows if row["arm"] == arm]
        cells = [format_percent({row["seed"]: row[kind] for row in own}) for kind in KINDS]
        lines.append(f"| {arm} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main(arguments: Arguments) -> None:
    """Measure the rows that the JSON file does not have yet, and write the page."""
    wanted = [{"arm": arm, "seed": seed} for seed, arm in itertools.product(arguments.seeds, ARMS)]
    file = arguments.out.with_suffix(".json")
    rows = add_missing_rows(file, wanted, measure_row, settings=hash_settings)
    write_page(
        file,
        f"python experiments/serving_filters.py --seeds {' '.join(map(str, arguments.seeds))}",
        f"share of texts that a filter withholds, means over the seeds with 95 % t intervals, {TEXTS} texts of each kind and seed. "
        "For planted and disguised texts this is the recall; for near misses and ordinary texts it is the false-positive rate. "
        f"The lowest score with which a text passes a model's filter is the {QUANTILE:.0%} quantile of the scores of other "
        "harmless texts.",
        report(rows),
    )


if __name__ == "__main__":
    main(tyro.cli(Arguments))
