"""Letter-game experiments: a winning strategy, single-turn situations, and the reward of each question."""

import importlib.util
from pathlib import Path

import rljax
from lab.letter_games import LETTERS, GuessTheLetter

EXPERIMENTS = Path(__file__).resolve().parents[2] / "experiments"


def load_experiment(name):
    spec = importlib.util.spec_from_file_location(name, EXPERIMENTS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def find_possible_letters(text, letters=LETTERS):
    """Return the letters that are consistent with the guesses and hints of a game so far."""
    for guess, hint in zip(text[::2], text[1::2], strict=True):
        letters = [letter for letter in letters if (letter < guess if hint == "<" else letter > guess)]
    return letters


def test_bisection_always_wins():
    game = GuessTheLetter()
    for letter in LETTERS:
        state, text, done = game.reset(rljax.Problem("?", letter)), "", False
        while not done:
            possible = find_possible_letters(text)
            step = game.step(state, possible[len(possible) // 2])
            state, text, done = step.state, text + possible[len(possible) // 2] + (step.observation or "<"), step.done
        assert step.correct


def test_a_game_ends_after_its_last_turn():
    game = GuessTheLetter()
    step = game.step(game.reset(rljax.Problem("?", "c", columns={"turns": 1})), "a")
    assert (step.done, step.reward, step.observation) == (True, 0.0, ">")


def test_single_turn_answers_agree_with_the_game_so_far():
    problems = load_experiment("whole_episodes").make_situations(0)
    assert {len(problem.prompt) for problem in problems} == {1, 3, 5, 7}
    for problem in problems:
        assert problem.answer in find_possible_letters(problem.prompt[1:])


def test_each_question_has_its_own_reward():
    module = load_experiment("turn_credit")
    game = module.FourQuestions()
    state, rewards = game.reset(rljax.Problem("?a", "ahba")), []
    for answer in ("d", "c", "a", "d"):  # right is the letter three places after the question: d, c, e, d
        step = game.step(state, answer)
        state = step.state
        rewards.append(step.reward)
    assert rewards == [0.25, 0.25, 0.0, 0.25]
    assert (step.done, step.correct) == (True, False)
