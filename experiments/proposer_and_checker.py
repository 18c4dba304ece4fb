"""Compare a proposer and a checker with one policy that answers once, at equal numbers of sampled tokens.

The task is sums modulo 8: two letters stand for numbers, and a third letter is the answer. The policy has random initial
parameters and no demonstrations, so it finds the rule by trial and error. The arms:

- one answer: the policy answers once;
- both roles: one policy proposes an answer, reads it and a request, and answers again; the second answer is the final one. Each
  turn has its own reward and advantage;
- two policies: the first run trains a proposer, as in `one answer`. The proposer is then frozen, and a second run trains a checker,
  which starts as a copy of the proposer and reads its proposals. The tokens of the frozen proposer are also counted.

Command:

    python experiments/proposer_and_checker.py     (about twelve minutes on two CPU cores)

A finished run is not repeated; use `--seeds` to do only some of the runs.

Deviations: SCoRe (arXiv:2409.12917) trains a pretrained model in two stages; here the policy has 0.1 million random parameters,
both turns are trained from the beginning, and a turn is one letter, so a checker has no room for more calculation than a
proposer. The settings and the claims were chosen after one run of each arm with another seed. In the arm `two policies` the first
half of the curve is the accuracy of the proposer.

It writes OUT.json, OUT.md and OUT.png: held-out accuracy of the final answers as a function of the tokens sampled in
training, and the differences at equal tokens, paired by seed. A final answer takes one sampled token in the arm `one answer`,
and two in the others.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import rljax
from lab.letter_games import GAME, LETTERS, AccuracyBySeed, run_experiment, train_game
from lab.rows import Comparison
from rljax.agents import SelfCorrection
from rljax.files import settings_hash
from rljax.rewards.correctness import verifier
from rljax.training.objective.algorithm import resolved_settings

DIGITS, REQUEST = LETTERS[:8], "?"
"""The letters that stand for 0 to 7, and the request that the policy reads between its answers."""
CONFIG = GAME.replace(
    name="proposer_and_checker",
    tokenizer=f"characters:{LETTERS}{REQUEST}\n",
    prompts=16,
    heldout_problems=len(DIGITS) ** 2,
    learning_rate=3e-3,
)
"""Settings of all arms."""
CREDIT = {"algorithm": "mt_grpo", "algorithm_options": {"beta": 0.0, "turn_discount": 0.0}}
"""Algorithm that compares each turn with the same turn of the group's other episodes; with one-turn episodes, it is GRPO."""
ONCE = {"steps": 120, "eval_every": 20}
TWICE = {"steps": 60, "eval_every": 10, **CREDIT}
ARMS: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "one answer": [ONCE],
    "both roles": [TWICE],
    "two policies": [{**ONCE, "steps": 60, "models": "last"}, {**TWICE, "steps": 30}],
}
"""Name of an arm -> settings of each of its runs. An episode of two turns has twice as many tokens, so runs have half the steps."""


@verifier
def is_sum(prompts: Sequence[str], completions: Sequence[str], answer: Sequence, **columns: Sequence) -> list[float]:
    """Give 1 for a turn that ends with the right letter, else 0."""
    del prompts, columns
    return [float(text[-1:] == right) for text, right in zip(completions, answer, strict=True)]


def make_sums() -> list[rljax.Problem]:
    """Make all sums of two numbers modulo 8."""
    size = len(DIGITS)
    return [
        rljax.Problem(f"{DIGITS[one]}{DIGITS[other]}", DIGITS[(one + other) % size])
        for one in range(size)
        for other in range(size)
    ]


def environments_of(arm: str, proposer: Path) -> list[SelfCorrection | None]:
    """Return the environment of each run of an arm; None means a single answer without an environment.

    Args:
        arm: name of the arm.
        proposer: model folder of the frozen proposer, which the first of the two runs of `two policies` writes.
    """
    if arm == "one answer":
        return [None]
    if arm == "two policies":
        return [None, SelfCorrection(is_sum, request=REQUEST, role="checker", other_policy=str(proposer))]
    return [SelfCorrection(is_sum, request=REQUEST)]


def hash_settings(row: Mapping[str, Any]) -> str:
    """Hash the settings that a row depends on."""
    runs = [CONFIG.replace(seed=row["seed"], **settings) for settings in ARMS[row["arm"]]]
    return settings_hash(*map(resolved_settings, runs), DIGITS)


def run_arm(arm: str, seed: int) -> dict[str, Any]:
    """Train one arm with one seed; the curves of its runs are concatenated."""
    sums, accuracy, tokens = make_sums(), [], []
    with TemporaryDirectory() as folder:
        runs = [Path(folder, f"run-{index}") for index in range(len(ARMS[arm]))]
        for settings, run, environment in zip(ARMS[arm], runs, environments_of(arm, runs[0] / "last"), strict=True):
            first = {} if run == runs[0] else {"model": str(runs[0] / "last")}
            config = CONFIG.replace(seed=seed, run=str(run), **first, **settings)
            parts = {"reward": is_sum} if environment is None else {}
            observed = 0 if environment is None else len(f"{REQUEST}\n")
            found = train_game(config, environment, (sums, sums), lambda _, count=observed: count, **parts)
            is_later, before = bool(tokens), tokens[-1] if tokens else 0
            accuracy += found["accuracy"][is_later:]
            tokens += [before + count for count in found["tokens"][is_later:]]
    return {"accuracy": accuracy, "tokens": tokens}


def compare(found: AccuracyBySeed) -> list[Comparison]:
    """Compare the arms after half of the sampled tokens and at the end."""
    return [
        Comparison(f"{arm} above one answer, {when}", found[arm][point], found["one answer"][point])
        for point, when in ((2, "after half of the tokens"), (4, "at the end"))
        for arm in [*ARMS][1:]
    ]


if __name__ == "__main__":
    run_experiment(
        "proposer_and_checker",
        ARMS,
        run_arm,
        hash_settings,
        compare,
        title="sums answered",
        caption="share of all 64 sums whose final, greedy answer is right",
    )
