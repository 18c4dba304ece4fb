"""Generated tasks: names, settings, generation, judging and training; reasoning-gym only if that package is installed."""

import importlib.util
import json
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from run_states import first_state, learn_from, make_rl_state
from shared_run import TINY, distances

from rljax.cli import parse
from rljax.data import reasoning_gym
from rljax.data.tool_calls import parse_turn
from rljax.errors import InputError
from rljax.importing import check_optional
from rljax.rewards.reasoning_gym import read_answer
from rljax.rewards.reward_scores import judge
from rljax.rollout.environment import make_environment
from rljax.settings.options import read_options, read_words
from rljax.tasks.puzzles import ReasoningGymConfig
from rljax.tasks.sums import SumsConfig
from rljax.training.config import TrainConfig

needs_package = pytest.mark.skipif(
    importlib.util.find_spec("reasoning_gym") is None, reason="the package reasoning-gym is not installed"
)
NAME = "reasoning_gym:ransom_note"
ONE_STEP = TINY.replace(algorithm_options={}, warm_start_steps=0, minibatches=1, microbatch_rows=None)


def test_task_round_trips_through_json_and_flat_names():
    config = TrainConfig.flat(task=NAME, task_options={"max_note_length": 2, "text": "a,b"}, train_problems=7)
    assert config.task == ReasoningGymConfig("ransom_note", {"max_note_length": 2, "text": "a,b"}, 7)
    assert TrainConfig.from_json(json.loads(json.dumps(config.to_json()))) == config
    assert TrainConfig.flat(**config.to_flat()) == config


def test_task_settings_from_flags_and_files(tmp_path):
    flags = ["--task-options", "max_note_length=2", "text=007", "--train-problems", "7"]
    config = parse(["train", "--task", NAME, *flags]).config
    assert config.task == ReasoningGymConfig("ransom_note", {"max_note_length": "2", "text": "007"}, 7)
    for name, content in (("flat.yaml", config.to_flat()), ("run.json", config.to_json())):
        file = tmp_path / name
        file.write_text(json.dumps(content))
        assert parse(["train", "--config", str(file)]).config.task == config.task


def test_the_reward_follows_the_task_unless_it_is_chosen():
    config = TrainConfig.flat(task=NAME)
    assert config.reward.name == "reasoning_gym"
    assert config.replace(task="sums").reward.name == config.replace(dataset="x").reward.name == "exact"
    assert config.replace(reward="math").replace(task="sums").reward.name == "math"
    assert TrainConfig.flat(task=NAME, reward="math").reward.name == "math"
    assert TrainConfig.flat(task=SumsConfig(), reward_weights=(2.0,)).replace(task=NAME).reward.weights == (2.0,)


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("sum", r"task is 'sum'; did you mean 'sums'\? Choose sums, iteration, countdown, .* or reasoning_gym:NAME\.$"),
        ("reasoning_gym", "name one of its generators"),
        ("poetry", r"task is 'poetry'; choose sums, iteration, countdown, .* or reasoning_gym:NAME\.$"),
    ],
)
def test_an_unknown_task_is_refused_with_a_list_of_tasks(task, message):
    with pytest.raises(InputError, match=message):
        TrainConfig.flat(task=task)


def test_a_missing_package_is_refused_with_the_command_that_installs_it():
    with pytest.raises(InputError, match="run `pip install reasoning-gym`"):
        check_optional("no_package_has_this_name", "reasoning-gym")


@dataclass
class Settings:
    """Example settings, with a default for each type that generators use."""

    seed: int = 0
    size: int = 5
    count: int = 3
    share: float = 0.5
    negative: bool = True
    name: str = "x"
    signs: tuple[str, ...] = ("+",)
    powers: list[int] = field(default_factory=lambda: [2])
    nothing: dict = field(default_factory=dict)
    weight: float = 1
    tasks: list[str] | None = None
    level: int | None = None
    parts: list[Path] | None = None


def test_options_have_the_types_of_their_defaults():
    options = {"count": 4, "share": 1, "negative": "false", "name": 7, "signs": "+,-", "powers": "1,3"}
    fitted = reasoning_gym.fit_options("made_up", Settings, options)
    assert fitted == {"count": 4, "share": 1.0, "negative": False, "name": "7", "signs": ("+", "-"), "powers": [1, 3]}
    assert isinstance(fitted["share"], float)


def test_texts_are_converted_to_the_option_types():
    words = [
        "name=007",
        "count=4",
        "share=1e-1",
        "weight=2.5",
        "negative=0",
        "signs=1e3,+",
        "powers=1,-3",
        "tasks=007",
        "level=7",
    ]
    fitted = reasoning_gym.fit_options("made_up", Settings, read_words(words))
    assert fitted == {
        **{"name": "007", "count": 4, "share": 0.1, "weight": 2.5, "negative": False},
        **{"signs": ("1e3", "+"), "powers": [1, -3], "tasks": ["007"], "level": 7},
    }


def test_an_option_that_appears_twice_is_refused():
    with pytest.raises(ValueError, match="'count' appears twice"):
        read_words(["count=1", "count=2"])
    with pytest.raises(ValueError, match="'count' appears twice"):
        read_options(["count=1", "count=2"])
    with pytest.raises(ValueError, match="'=3' must have the form name=value"):
        read_options(["=3"])


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"counts": 1}, r"has no option 'counts'; did you mean 'count'\? It has count, share, negative"),
        ({"seed": 1}, "has no option 'seed'"),
        ({"count": 1.5}, "--task-options count=1.5: a whole number is expected"),
        ({"share": "half"}, "a number is expected"),
        ({"negative": "no"}, "true or false is expected"),
        ({"powers": "1,x"}, "a whole number is expected"),
        ({"nothing": "x"}, "this option is none of them"),
        ({"parts": "x"}, "this option is none of them"),
        ({"count": True}, "a whole number is expected"),
        ({"count": "1.5"}, "a whole number is expected"),
        ({"share": False}, "a number is expected"),
        ({"share": "nan"}, "a number is expected"),
        ({"level": "x"}, "a whole number is expected"),
    ],
)
def test_an_option_of_another_type_is_refused(option, message):
    with pytest.raises(InputError, match=message):
        reasoning_gym.fit_options("made_up", Settings, option)


@pytest.mark.parametrize(("text", "answer"), [(" 7\n", "7"), ("so <answer> 8 </answer>.", "8"), ("<answer>9", "<answer>9")])
def test_the_answer_is_tagged_or_the_full_response(text, answer):
    assert read_answer(text) == answer


@needs_package
def test_a_step_learns_from_the_score_of_the_generator(monkeypatch):
    """Also checks reproducibility: the generator iterates over a set, whose order depends on PYTHONHASHSEED."""
    small = {"min_note_length": 1, "max_note_length": 2, "min_magazine_length": 2, "max_magazine_length": 3}
    settings = {"train_problems": 12, "heldout_problems": 4, "max_prompt_tokens": 400, "max_response_tokens": 6}
    config = ONE_STEP.replace(task="reasoning_gym:ransom_note", task_options=small, algorithm="grpo", **settings)
    setup, state = first_state(config)
    train, heldout = list(setup.train.prompts.problems), list(setup.heldout.prompts.problems)
    assert (len(train), len(heldout)) == (12, 4)
    assert len({problem.prompt for problem in [*train, *heldout]}) == 16
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    assert reasoning_gym.reasoning_gym("ransom_note", train=12, heldout=4, seed=0, options=small) == (train, heldout)

    problem = train[0]
    completions = [problem.answer, f"<answer>{problem.answer}</answer>", f"{problem.answer}, surely", "9"]
    column = {"reasoning_gym": [problem.columns["reasoning_gym"]]}
    scores = [judge(setup.train.judge.reward, [problem.prompt], [text], column) for text in completions]  # in one worker
    assert [float(one.correct[0]) for one in scores] == [1, 1, 0, 0]
    rewards = np.array([float(one.total[0]) for one in scores], np.float32)
    assert rewards[:2].tolist() == [1, 1]
    assert 0 < rewards[2] < 1, "partial credit is kept"

    groups = setup.train.generate(state.params, range(4), 4, jax.random.key(0))
    assert groups.rollout.correct is not None
    groups = groups._replace(rollout=groups.rollout._replace(rewards=np.tile(rewards, (4, 1))))
    state, before = make_rl_state(setup, state), jax.device_get(state.params)
    state, _ = learn_from(setup, state, groups)
    assert max(distances(state.params, before)) > 0


class Counter:
    """A fake reasoning-gym generator with `count` distinct problems."""

    def __init__(self, config):
        self.config = config

    def __getitem__(self, index):
        number = (self.config.seed + index) % self.config.count
        return {"question": f"after {number}?", "answer": None if number == 1 else str(number + 1), "metadata": {}}


@dataclass
class CounterSettings(Settings):
    def validate(self):
        assert self.count > 0, "count must be positive"


@pytest.fixture
def generators(monkeypatch):
    known = SimpleNamespace(DATASETS={"counter": (Counter, CounterSettings)})
    monkeypatch.setattr(reasoning_gym, "import_optional", lambda package, distribution: known)


@pytest.mark.usefixtures("generators")
def test_problems_are_distinct_and_determined_by_the_seed():
    problems_by_seed = {
        seed: reasoning_gym.sample_problems("counter", train=5, heldout=3, seed=seed, options={"count": 9})
        for seed in range(4)
    }
    for parts in problems_by_seed.values():
        prompts = [problem.prompt for split in ("train", "heldout") for problem in parts[split]]
        assert len(set(prompts)) == 8
    assert len({tuple(problem.prompt for problem in parts["train"]) for parts in problems_by_seed.values()}) > 1
    assert reasoning_gym.sample_problems("counter", train=5, heldout=3, seed=2, options={"count": 9}) == problems_by_seed[2]
    answers = {
        p.prompt: (p.answer, p.demonstration)
        for parts in problems_by_seed.values()
        for split in parts.values()
        for p in split
    }
    assert answers["after 1?"] == ("", None)
    assert answers["after 2?"] == ("3", "3")


@pytest.mark.usefixtures("generators")
@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("conter", {}, r"no generator 'conter'; did you mean 'counter'\? It has counter\.$"),
        ("zzzz", {}, r"no generator 'zzzz'\. It has counter\.$"),
        (
            "counter",
            {"count": 0},
            r"counter rejects its options \(AssertionError: count must be positive.*\); change --task-options",
        ),
        (
            "counter",
            {"count": 6},
            "has only 3 distinct train problems in 25 samples, and 5 are needed; lower --train-problems",
        ),
    ],
)
def test_impossible_generator_options_are_refused(name, options, message):
    with pytest.raises(InputError, match=message):
        reasoning_gym.sample_problems(name, train=5, heldout=3, seed=0, options=options)


@needs_package
def test_generated_problem_in_a_tool_environment():
    problem = reasoning_gym.sample_problems("basic_arithmetic", train=1, heldout=1, seed=0, options={})["train"][0]
    environment = make_environment("calculator", '{"reward": "reasoning_gym"}')
    state = environment.reset(problem)
    step = environment.step(
        state, parse_turn('<tool_call>{"name": "calculate", "arguments": {"expression": "1+1"}}</tool_call>')
    )
    assert not step.done
    right, wrong = (
        environment.step(step.state, parse_turn(f"<answer>{answer}</answer>")) for answer in (problem.answer, "no")
    )
    assert (right.done, right.reward) == (True, 1.0)
    assert (wrong.done, wrong.reward) == (True, 0.0)
