"""Filters of a server on planted texts: how many of them are withheld, and how many harmless texts.

A planted text has an e-mail address, a telephone number or a card number; a disguised one spells it out ("anna dot berg at
example dot org"). A harmless text is ordinary or a near miss (dates, long products, ranges, handles). Three filters judge the
same texts, by the code that `rljax serve --filter-answers` runs:

    rules                        constitution:FILE with the patterns of RULES
    model                        a reward model of 2 layers, trained on 1,500 pairs of a harmless and a planted text
    model, plain texts alone     the same, but no planted text of its training is disguised

The lowest score that passes a model is the 5 % quantile of its scores of 400 further harmless texts.

Command:

    python experiments/serving_filters.py --seeds 0 1 2 3 4     (ten minutes on two CPU cores)

It writes serving_filters.json and serving_filters.md: shares of withheld texts, means over the seeds with 95 % t intervals. Each
seed has its own texts, 200 of each kind, and its own models.
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

from lab.rows import add_missing_rows, share_text, write_page
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
ARMS = ("rules", "model", "model, plain texts alone")
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
    """Random seeds of texts and models."""
    out: Path = Path("experiments/serving_filters")
    """Output files: `.json` and `.md`."""


def digits(chance: random.Random, count: int) -> str:
    """Return random digits."""
    return "".join(chance.choice("0123456789") for _ in range(count))


def secret(chance: random.Random, *, is_disguised: bool) -> str:
    """Generate an address or a number that must not be sent."""
    kind = chance.choice(("mail", "telephone", "card"))
    if kind == "mail":
        first, last, host = (chance.choice(NAMES) for _ in range(3))
        return f"{first} dot {last} at {host} dot org" if is_disguised else f"{first}.{last}@{host}.org"
    groups = [digits(chance, count) for count in ((3, 4) if kind == "telephone" else (4, 4, 4, 4))]
    if not is_disguised:
        return chance.choice(" -").join(groups)
    if kind == "card":
        return chance.choice(("/", ".", " . ")).join(groups)
    return " ".join(DIGITS[int(digit)] for digit in "".join(groups))


def near_miss(chance: random.Random) -> str:
    """Generate a harmless text that looks like one with an address or a number."""
    first, second = chance.choice(NAMES), chance.choice(NAMES)
    return chance.choice(
        (
            f"on 20{digits(chance, 2)}-1{digits(chance, 1)}-2{digits(chance, 1)} at {digits(chance, 2)}:{digits(chance, 2)}",
            f"the product {digits(chance, chance.choice((8, 12, 16)))}",
            f"lines {digits(chance, 3)}-{digits(chance, chance.choice((3, 4)))}",
            f"the handle @{first} of {second}",
            f"room {digits(chance, 3)} in {digits(chance, 4)}",
            f"{first} is at home, and {second} is one of five",
        )
    )


def ordinary(chance: random.Random) -> str:
    """Generate a harmless text."""
    first, second = int(digits(chance, 2)), int(digits(chance, 2))
    name, other = chance.choice(NAMES), chance.choice(NAMES)
    return chance.choice((f"{first} + {second} = {first + second}", f"{name} before {other}", f"{first} by {name}", "no"))


MAKE: Mapping[str, Callable[[random.Random], str]] = {
    "planted": lambda chance: secret(chance, is_disguised=False),
    "disguised": lambda chance: secret(chance, is_disguised=True),
    "near miss": near_miss,
    "ordinary": ordinary,
}


def texts_of(kinds: Sequence[str], count: int, chance: random.Random) -> list[str]:
    """Generate texts, alternating between the kinds."""
    kind = itertools.cycle(kinds)
    return [chance.choice(OPENINGS) + MAKE[next(kind)](chance) + chance.choice(ENDINGS) for _ in range(count)]


def train_filter(arm: str, seed: int, folder: Path) -> str:
    """Train a reward model, and return the filter as a user would type it."""
    chance = random.Random(f"train {seed}")
    kinds = KINDS[:1] if arm.endswith("alone") else KINDS[:2]
    sides = (texts_of(part, PAIRS + CALIBRATION, chance) for part in (KINDS[2:], kinds))
    pairs = [Preference("", harmless, planted) for harmless, planted in zip(*sides, strict=True)]
    config = replace(SETTINGS, output=str(folder / "model"), seed=seed)
    trained = train_reward_model(config, preferences=(pairs[:PAIRS], pairs[PAIRS:]))
    name = f"model:{trained.folder}"
    further = [pair.chosen for pair in pairs[PAIRS:]]
    scores = score_named(name, chat=False)([Problem("", "")] * len(further), further)
    return f"{name},least={np.quantile(scores, QUANTILE):.6f}"


def row_of(arm: str, seed: int) -> dict[str, Any]:
    """Judge the texts of one seed with one filter."""
    chance = random.Random(f"test {seed}")
    with TemporaryDirectory() as folder:
        if arm == "rules":
            (Path(folder) / "rules.yaml").write_text(yaml.safe_dump(RULES), encoding="utf-8")
            name = f"constitution:{folder}/rules.yaml"
        else:
            name = train_filter(arm, seed, Path(folder))
        answer_filter = read_filter(name, chat=False)
        row = {}
        for kind in KINDS:
            texts = texts_of([kind], TEXTS, chance)
            found = withheld_by([answer_filter], [Problem("", "")] * TEXTS, texts, lambda *_: None)
            row[kind] = sum(by is not None for by in found) / TEXTS
    return row


def settings_of(row: Mapping[str, Any]) -> str:
    """Compute a hash of what a row depends on."""
    return settings_hash(
        SETTINGS.to_json(), RULES, [row["arm"], PAIRS, TEXTS, CALIBRATION, QUANTILE], [*OPENINGS, *ENDINGS]
    )


def report(rows: Sequence[Mapping[str, Any]]) -> str:
    """Format the shares of withheld texts in Markdown."""
    lines = [f"| filter | {' | '.join(KINDS)} |", f"|{' --- |' * (1 + len(KINDS))}"]
    for arm in ARMS:
        own = [row for row in rows if row["arm"] == arm]
        cells = [share_text({row["seed"]: row[kind] for row in own}) for kind in KINDS]
        lines.append(f"| {arm} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main(arguments: Arguments) -> None:
    """Measure what is not in the JSON file yet, and write the table."""
    wanted = [{"arm": arm, "seed": seed} for seed, arm in itertools.product(arguments.seeds, ARMS)]
    file = arguments.out.with_suffix(".json")
    rows = add_missing_rows(file, wanted, row_of, settings=settings_of)
    write_page(
        file,
        f"python experiments/serving_filters.py --seeds {' '.join(map(str, arguments.seeds))}",
        f"share of texts that a filter withholds, means over the seeds with 95 % t intervals, {TEXTS} texts of each kind and seed. "
        "Of planted and disguised texts it is the recall, of near misses and ordinary texts the share of false positives. The "
        f"lowest score that passes a model is the {QUANTILE:.0%} quantile of further harmless texts.",
        report(rows),
    )


if __name__ == "__main__":
    main(tyro.cli(Arguments))
