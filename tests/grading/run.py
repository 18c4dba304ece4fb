"""Measure the errors of the reward `math` on answers that are right or wrong by construction.

    python tests/grading/run.py --data ../shared/data --count 6000 --out tests/grading/result.json

The references come from `generated_references.py` and, if the data folder contains them, from MATH (`math_train.json`), AMC 2023
(`amc23.jsonl`) and GSM8K (`gsm8k_train.jsonl`). `right.py` and `wrong.py` rewrite the references into answers.
"""

import argparse
import json
import random
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from grading.cases import cases, completion
from grading.generated_references import references as generated_references
from grading.right import RIGHT
from grading.wrong import WRONG

from rljax.rewards.correctness import Unfinished
from rljax.rewards.math import math


def data_references(folder: Path, rng: random.Random) -> dict[str, list[str]]:
    """Read the references of every dataset in the folder; GSM8K contributes a random 1000 of its answers."""
    answers_by_source = {}
    if (file := folder / "math_train.json").is_file():
        answers = [str(row["answer"]).strip() for row in json.loads(file.read_text(encoding="utf-8")) if row["answer"]]
        answers_by_source["math_train"] = answers
    if (file := folder / "amc23.jsonl").is_file():
        answers_by_source["amc23"] = [
            f"{json.loads(line)['answer']:g}" for line in file.read_text(encoding="utf-8").splitlines()
        ]
    if (file := folder / "gsm8k_train.jsonl").is_file():
        answers = [
            json.loads(line)["answer"].rpartition("####")[2].strip().replace(",", "")
            for line in file.open(encoding="utf-8")
        ]
        answers_by_source["gsm8k_train"] = rng.sample(answers, 1000)
    return answers_by_source


def score(sampled: list[tuple[str, str, str]], seed: int) -> list[float | None]:
    """Score every answer against its reference."""
    rng = random.Random(seed)
    return math(
        ["?"] * len(sampled),
        [completion(answer, rng) for _, _, answer in sampled],
        [reference for _, reference, _ in sampled],
    )


def measure(references: list[str], count: int, seed: int) -> dict:
    """Count the right answers that are not rewarded and the wrong answers that are rewarded."""
    result: dict = {"references": len(set(references))}
    for name, rewrites, correct_reward in (("right", RIGHT, 1.0), ("wrong", WRONG, 0.0)):
        sampled = cases(references, rewrites, count, seed)
        started = time.monotonic()
        rewards = score(sampled, seed)
        failed = sum(isinstance(reward, Unfinished) for reward in rewards)
        misjudged = [reward for reward in rewards if reward != correct_reward and not isinstance(reward, Unfinished)]
        result[name] = {
            "answers": len(sampled),
            "misjudged": len(misjudged),
            "failed": failed,
            "share": round((len(misjudged) + (failed if correct_reward else 0)) / max(1, len(sampled)), 5),
            "seconds": round(time.monotonic() - started, 1),
            "answers_by_kind": dict(Counter(case[0] for case in sampled)),
            "cases": [
                {"kind": kind, "reference": reference, "answer": answer, "reward": str(reward)}
                for (kind, reference, answer), reward in zip(sampled, rewards, strict=True)
                if reward != correct_reward
            ],
        }
    return result


def main() -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(__file__).resolve().parents[3] / "shared" / "data")
    parser.add_argument("--count", type=int, default=6000, help="number of right answers and of wrong answers")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("result.json"))
    arguments = parser.parse_args()
    answers_by_source = {**data_references(arguments.data, random.Random(arguments.seed)), "own": generated_references()}
    result = {"sources": {name: len(answers) for name, answers in answers_by_source.items()}, "seed": arguments.seed}
    result |= measure(
        [answer for answers in answers_by_source.values() for answer in answers], arguments.count, arguments.seed
    )
    arguments.out.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    for name in ("right", "wrong"):
        print(name, {key: value for key, value in result[name].items() if key not in ("cases", "answers_by_kind")})


if __name__ == "__main__":
    main()
