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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tyro

import rljax
from lab.letter_games import GAME, LETTERS, accuracy_at, draw_curves, keep_compiled, train_game
from lab.rows import Comparison, add_missing_rows, share_text, verdict_table, write_page
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


@dataclass(frozen=True)
class Arguments:
    """Arguments of the experiment."""

    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    """Random seeds; all arms use the same ones."""
    out: Path = Path("experiments/turn_credit")
    """Output files: `.json`, `.md` and `.png`."""
    work: Path = Path("runs/turn_credit")
    """Folder of the compiled programs."""


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


def report(rows: Sequence[Mapping[str, Any]]) -> str:
    """Format the accuracy of each arm at equal numbers of sampled tokens, and the differences from GRPO."""
    most = min(row["tokens"][-1] for row in rows)
    shown = [most * part / 4 for part in range(5)]
    lines = [f"| arm | {' | '.join(f'{tokens / 1000:.0f}k tokens' for tokens in shown)} |", f"|{' --- |' * 6}"]
    half = {}
    for arm in ARMS:
        cells = [{row["seed"]: accuracy_at(row, tokens) for row in rows if row["arm"] == arm} for tokens in shown]
        lines.append(f"| {arm} | {' | '.join(map(share_text, cells))} |")
        half[arm] = cells[2]
    compared = [
        Comparison(f"{one} above {other}, at half of the tokens", half[one], half[other])
        for one, other in (("mt_grpo, 0", "grpo"), ("mt_grpo, 1", "grpo"), ("mt_grpo, 0", "mt_grpo, 1"))
    ]
    return "\n".join([*lines, "", *verdict_table(compared, margin=0.02, when="before")]) + "\n"


def main(arguments: Arguments) -> None:
    """Do the runs that the JSON file does not have yet, then write the table and the plot."""
    keep_compiled(arguments.work / "compiled")
    file = arguments.out.with_suffix(".json")
    wanted = [{"arm": arm, "seed": seed} for seed in arguments.seeds for arm in ARMS]
    rows = add_missing_rows(file, wanted, run_arm, settings=hash_settings)
    caption = (
        "share of 64 held-out episodes in which the greedy policy answers all four questions right, at equal numbers of sampled "
        "tokens, mean over the seeds with a 95 % t interval."
    )
    write_page(file, "python experiments/turn_credit.py", caption, report(rows))
    arms = {arm: [row for row in rows if row["arm"] == arm] for arm in ARMS}
    draw_curves({"all four questions right": arms}, arguments.out.with_suffix(".png"))


if __name__ == "__main__":
    main(tyro.cli(Arguments))
