"""Credit per turn or per episode: four questions in one episode, each with a reward of its own.

Each turn answers a letter with a letter, by a fixed rule that must be found by trial. A right answer earns 1/4, and the turns have
nothing to do with each other. The arms differ in the advantage alone:

- grpo: every token of an episode gets the advantage of the sum of its rewards;
- mt_grpo, 0: a token gets the advantage of its own turn, compared with the same turn of the group's other episodes;
- mt_grpo, 1: plus the advantages of all later turns, the default.

Command:

    python experiments/turn_credit.py     (an estimated ten minutes on one CPU core)

A finished run is not repeated; use `--seeds` to do only some of the runs.

Deviations: MT-GRPO's paper (arXiv:2505.11821) has two turns and a pretrained model; here the policy has 0.1 million random
parameters and a turn is one letter. A world whose turns depend on each other, and with a reward at its end alone, would need the
later turns. The learning rate and the claims followed one run of two arms with another seed.

It writes OUT.json, OUT.md and OUT.png: share of held-out episodes that the greedy policy solves, over sampled tokens, and the
differences at equal tokens, paired by seed.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

import rljax
from lab.letter_games import GAME, LETTERS, Shares, run_experiment, train_game
from lab.rows import Comparison
from rljax.files import settings_hash
from rljax.training.objective.algorithm import resolved_settings

QUESTIONS, TURNS = LETTERS[:8], 4
"""The letters of the questions, which are also the answers, and the questions per episode."""
ARMS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "grpo": ("grpo", {"beta": 0.0}),
    "mt_grpo, 0": ("mt_grpo", {"beta": 0.0, "turn_discount": 0.0}),
    "mt_grpo, 1": ("mt_grpo", {"beta": 0.0, "turn_discount": 1.0}),
}
"""Name of an arm -> algorithm and its options."""


class AnswerState(NamedTuple):
    """State of an episode."""

    questions: str
    """The questions that are left; the first one is open."""
    right: int = 0
    """Number of right answers so far."""


class FourQuestions:
    """Answer four letters, one per turn; the right answer to a letter is the one three places later, around the end."""

    max_turns = TURNS

    def reset(self, problem: rljax.Problem) -> AnswerState:
        """Begin an episode; the problem's answer contains the questions."""
        return AnswerState(problem.answer)

    def step(self, state: AnswerState, completion: str) -> rljax.Step:
        """Judge an answer, the last character of the turn, and ask the next question."""
        wanted = QUESTIONS[(QUESTIONS.index(state.questions[0]) + 3) % len(QUESTIONS)]
        is_right = completion[-1:] == wanted
        state = AnswerState(state.questions[1:], state.right + is_right)
        done = not state.questions
        correct = state.right == TURNS if done else None
        return rljax.Step(state, state.questions[:1], reward=is_right / TURNS, done=done, correct=correct)


def make_questions(count: int, seed: int) -> list[rljax.Problem]:
    """Sample episodes of four questions."""
    chosen = np.random.default_rng(seed).integers(len(QUESTIONS), size=(count, TURNS))
    texts = ["".join(QUESTIONS[place] for place in row) for row in chosen]
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


def compare(found: Shares) -> list[Comparison]:
    """Compare the arms at half of the tokens."""
    pairs = (("mt_grpo, 0", "grpo"), ("mt_grpo, 1", "grpo"), ("mt_grpo, 0", "mt_grpo, 1"))
    return [
        Comparison(f"{one} above {other}, at half of the tokens", found[one][2], found[other][2]) for one, other in pairs
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
