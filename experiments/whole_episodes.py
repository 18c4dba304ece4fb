"""Compare RL on complete episodes with RL on single turns: which one teaches a policy to plan its questions?

The policy must find one of 15 letters in at most four turns; each wrong guess is answered with "<" or ">". Halving the interval
always wins, but guessing any letter that is still possible does not. One arm trains on complete games, in which only the last
guess is rewarded. The other arm trains on single turns. Their prompt is the beginning of a game, with up to three wrong guesses,
each possible when it was made, and the reward is 1 if the next guess is right. In a single turn, every letter that is still
possible is equally good, so no reward depends on the information that a guess gains. Both arms start from the same random
parameters and are evaluated greedily on complete games with each of the 15 letters.

Command:

    python experiments/whole_episodes.py     (an estimated ten minutes on one CPU core)

A finished run is not repeated; use `--seeds` to do only some of the runs.

Deviations: none, because no paper has this setting. The policy has 0.1 million parameters, a turn is one letter, and the games of
the single turns are played by a random player instead of the policy.

It writes OUT.json, OUT.md and OUT.png: accuracy over sampled tokens, and the difference between the arms at equal tokens, paired by
seed.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

import rljax
from lab.letter_games import GAME, HINTS, LETTERS, AccuracyBySeed, GuessTheLetter, run_experiment, train_game
from lab.rows import Comparison
from rljax.files import settings_hash
from rljax.training.objective.algorithm import resolved_settings

CONFIG = GAME.replace(name="whole_episodes", steps=160, eval_every=20, learning_rate=6e-3)
ARMS: Mapping[str, Mapping[str, Any]] = {"whole episodes": {}, "single turns": {"prompts": 48}}
"""Name of an arm -> its settings. A game has about three turns, so a single-turn step has three times as many prompts."""
SITUATIONS = 960
"""Number of single-turn problems."""


def make_situations(seed: int) -> list[rljax.Problem]:
    """Sample beginnings of games, and make each one a problem with one turn."""
    generator = np.random.default_rng(seed)
    problems = []
    for _ in range(SITUATIONS):
        answer, possible, text = LETTERS[generator.integers(len(LETTERS))], LETTERS, "?"
        for _ in range(generator.integers(GuessTheLetter.max_turns)):
            wrong = [letter for letter in possible if letter != answer]
            if wrong:
                guess = wrong[generator.integers(len(wrong))]
                text += guess + HINTS[guess < answer]
                possible = "".join(
                    letter for letter in possible if letter != guess and (letter < guess) == (answer < guess)
                )
        problems.append(rljax.Problem(text, answer, columns={"turns": 1}))
    return problems


def hash_settings(row: Mapping[str, Any]) -> str:
    """Hash the settings that a row depends on."""
    return settings_hash(resolved_settings(CONFIG.replace(seed=row["seed"], **ARMS[row["arm"]])), SITUATIONS)


def run_arm(arm: str, seed: int) -> dict[str, Any]:
    """Train one arm with one seed."""
    games = [rljax.Problem("?", letter) for letter in LETTERS]
    train = games if arm == "whole episodes" else make_situations(seed)
    return train_game(CONFIG.replace(seed=seed, **ARMS[arm]), GuessTheLetter(), (train, games))


def compare(found: AccuracyBySeed) -> list[Comparison]:
    """Compare the arms at the end of training."""
    complete, single = (found[arm][-1] for arm in ARMS)
    return [Comparison("whole episodes win more games than single turns", complete, single)]


if __name__ == "__main__":
    run_experiment(
        "whole_episodes",
        ARMS,
        run_arm,
        hash_settings,
        compare,
        title="games won",
        caption="share of the 15 games that the greedy policy wins",
    )
