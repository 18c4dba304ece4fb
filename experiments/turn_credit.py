"""Compare credit per turn with credit per episode, on episodes of four questions that are rewarded separately.

In each turn, the policy answers a letter with a letter, by a fixed rule that it must find by trial and error. A right answer earns
1/4, and the turns are independent of each other. The arms differ only in the advantage:

- grpo: every token of an episode gets the advantage of the sum of its rewards;
- mt_grpo, 0 (`turn_discount` 0): a token gets the advantage of its own turn, compared with the same turn of the group's other
  episodes;
- mt_grpo, 1 (`turn_discount` 1, the default): the same plus the advantages of all later turns.

Command:

    python experiments/turn_credit.py     (an estimated ten minutes on one CPU core)

A finished run is not repeated; use `--seeds` to do only some of the runs.

Deviations: the MT-GRPO paper (arXiv:2505.11821) has two turns and a pretrained model; here the policy has about 100,000
randomly initialized parameters and a turn is one letter. The advantages of later turns would be needed in a world whose turns
depend on each other and whose only reward is at the end. The learning rate and the claims in `compare` were chosen after one run
of two arms with another seed.

The script writes OUT.json, OUT.md and OUT.png: the fraction of held-out episodes that the greedy policy solves, as a function of
the number of sampled tokens, and the differences between arms at equal tokens, paired by seed.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

import rljax
from lab.letter_games import GAME, LETTERS, AccuracyBySeed, run_experiment, train_game
from lab.rows import Comparison
from rljax.files import settings_hash
from rljax.training.objective.algorithm import resolved_settings

QUESTIONS, TURNS = LETTERS[:8], 4
"""The letters of questions and answers, and the number of questions per episode."""
ARMS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "grpo": ("grpo", {"beta": 0.0}),
    "mt_grpo, 0": ("mt_grpo", {"beta": 0.0, "turn_discount": 0.0}),
    "mt_grpo, 1": ("mt_grpo", {"beta": 0.0, "turn_discount": 1.0}),
}
"""Name of an arm -> algorithm and its options."""


class AnswerState(NamedTuple):
    """State of an episode."""

    questions: str
    """The questions that are not answered yet; the first one is the current question."""
    right: int = 0
    """Number of right answers so far."""


class FourQuestions:
    """Asks four one-letter questions, one per turn; the right answer is the letter three positions later, cyclically."""

    max_turns = TURNS

    def reset(self, problem: rljax.Problem) -> AnswerState:
        """Begin an episode; the problem's answer contains the questions."""
        return AnswerState(problem.answer)

    def step(self, state: AnswerState, completion: str) -> rljax.Step:
        """Judge the answer, which is the last character of the turn, and ask the next question."""
        wanted = QUESTIONS[(QUESTIONS.index(state.questions[0]) + 3) % len(QUESTIONS)]
        is_right = completion[-1:] == wanted
        state = AnswerState(state.questions[1:], state.right + is_right)
        done = not state.questions
        correct = state.right == TURNS if done else None
        return rljax.Step(state, state.questions[:1], reward=is_right / TURNS, done=done, correct=correct)


def make_questions(count: int, seed: int) -> list[rljax.Problem]:
    """Sample episodes of four questions."""
    chosen = np.random.default_rng(seed).integers(len(QUESTIONS), size=(count, TURNS))
    texts = ["".join(QUESTIONS[index] for index in row) for row in chosen]
    return [rljax.Problem(f"?{text[0]}", text) for text in texts]


PROBLEMS = make_questions(256, 0), make_questions(64, 1)
CONFIG = GAME.replace(
    name="turn_credit", steps=36, eval_every=4, learning_rate=3e-3, prompts=8, heldout_problems=len(PROBLEMS[1])
)


def config_of(arm: str, seed: int) -> rljax.TrainConfig:
    """Build the settings of a run."""
    algorithm, options = ARMS[arm]
    return CONFIG.replace(algorithm=algorithm, algorithm_options=options, seed=seed)


def hash_settings(row: Mapping[str, Any]) -> str:
    """Hash the settings that a row depends on."""
    return settings_hash(resolved_settings(config_of(row["arm"], row["seed"])), QUESTIONS)


def run_arm(arm: str, seed: int) -> dict[str, Any]:
    """Train one arm with one seed."""
    return train_game(config_of(arm, seed), FourQuestions(), PROBLEMS)


def compare(found: AccuracyBySeed) -> list[Comparison]:
    """Compare the arms after half of the sampled tokens."""
    pairs = (("mt_grpo, 0", "grpo"), ("mt_grpo, 1", "grpo"), ("mt_grpo, 0", "mt_grpo, 1"))
    return [
        Comparison(f"{one} above {other}, after half of the tokens", found[one][2], found[other][2]) for one, other in pairs
    ]


if __name__ == "__main__":
    run_experiment(
        "turn_credit",
        ARMS,
        run_arm,
        hash_settings,
        compare,
        title="all four questions right",
        caption="share of 64 held-out episodes in which the greedy policy answers all four questions right",
    )
