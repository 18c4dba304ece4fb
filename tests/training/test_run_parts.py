"""Building a run's parts from its configuration: tasks, datasets and their errors, and reward models."""

import json

import jax
import pytest
from small_runs import SMALL, even_length

from rljax.data.problem import Problem
from rljax.data.tokenizer import load_tokenizer
from rljax.errors import InputError
from rljax.models import Model, TransformerConfig
from rljax.models.value_model import init_value_params, value_model
from rljax.preference.reward_model import RewardModel, save_reward_model
from rljax.programs.base_settings import load_config
from rljax.programs.train import with_dataset
from rljax.settings.flat import flat_names
from rljax.training.config import TrainConfig
from rljax.training.config.train_config import GROUPS
from rljax.training.lifecycle.initial_state import first_params
from rljax.training.objective.algorithm import make_algorithm
from rljax.training.parts.custom_parts import CustomParts
from rljax.training.run import advise_on_random_start
from rljax.training.setup import make_setup

TINY = SMALL.replace(
    algorithm="grpo",
    tokenizer="bytes",
    train_problems=12,
    heldout_problems=2,
    max_prompt_tokens=20,
)


def write_jsonl(path, rows):
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return str(path)


def test_the_task_is_chosen_by_name():
    setup = make_setup(TINY.replace(task="iteration", iterations=(8, 9), train_problems=12, max_response_tokens=64))
    assert {problem.columns["steps"] for problem in setup.train.prompts.problems} <= {8, 9}
    with pytest.raises(
        InputError, match=r"task is 'poetry'; choose sums, iteration, countdown, .* or reasoning_gym:NAME\."
    ):
        TINY.replace(task="poetry")


def test_a_dataset_replaces_the_generated_task():
    assert TINY.replace(dataset="sums.jsonl").task is None
    with pytest.raises(
        InputError, match=r"dataset \('sums.jsonl'\) and a generated task \(sums\) are set; choose one of them"
    ):
        TINY.replace(dataset="sums.jsonl", operands=(2, 3))
    with pytest.raises(InputError, match="no setting 'iterations'"):
        TINY.replace(task="sums", iterations=(2, 3))


def test_every_setting_has_one_flat_name():
    flat = TINY.to_flat()
    assert TrainConfig.flat(**flat) == TINY
    names = [name for group in GROUPS.values() for name in flat_names(group).values()]
    assert len(names) == len(set(names))
    assert {"warm_start_steps", "critic", "critic_learning_rate", "replicas", "model", "reward"} <= set(flat)


def test_bad_rows_are_refused_or_reported(tmp_path):
    rows = [{"prompt": f"{n}+1=", "answer": str(n + 1)} for n in range(20)]
    file = write_jsonl(tmp_path / "sums.jsonl", [*rows[:3], "{broken", *rows[3:]])
    with pytest.raises(InputError, match="line 4"):
        make_setup(TINY.replace(dataset=file))
    rows.append({"prompt": "1" * 50 + "+1=", "answer": "2"})
    file = write_jsonl(tmp_path / "sums.jsonl", [*rows[:3], "{broken", *rows[3:]])
    setup = make_setup(TINY.replace(dataset=file, on_error="drop"))
    long, bad = (next(note for note in setup.omissions if word in note) for word in ("longer", "line 4"))
    limit = setup.config.data.max_prompt_tokens
    assert long == f"1 row is left out: prompt longer than max_prompt_tokens={limit}"
    assert bad.startswith("1 bad row left out.")
    assert len(setup.train.prompts.tokens) + len(setup.heldout.prompts.tokens) == 20


def test_a_list_of_rows_is_a_dataset():
    rows = ({"prompt": f"{n}+1=", "answer": str(n + 1), "level": n} for n in range(20))
    config, passed = with_dataset(TINY, rows)
    assert (config.task, config.data.dataset) == (None, "rows passed to train()")
    setup = make_setup(config, CustomParts(dataset=passed))
    problems = [*setup.train.prompts.problems, *setup.heldout.prompts.problems]
    assert {problem.answer for problem in problems} == {str(n + 1) for n in range(20)}
    assert {problem.columns["level"] for problem in problems} == set(range(20))
    assert with_dataset(TINY, "sums.jsonl") == (TINY.replace(dataset="sums.jsonl"), None)
    with pytest.raises(InputError, match=r"has the name of its dataset in config\.json"):
        with_dataset(None, "sums.jsonl")


@pytest.mark.usefixtures("without_type_checks")
def test_a_row_that_is_not_an_object_is_refused():
    config, passed = with_dataset(TINY, [{"prompt": "1", "answer": "1"}, "2"])
    with pytest.raises(InputError, match="the dataset, row 2: a row must be an object"):
        make_setup(config, CustomParts(dataset=passed))


@pytest.mark.parametrize("part", [0, 1])
def test_a_prompt_without_a_token_is_refused(part):
    """The character tokenizer has no beginning-of-sequence token; the byte tokenizer's counts as a prompt."""
    problems = ([Problem("1+1=", "2")], [Problem("2+1=", "3")])
    problems[part].append(Problem("", "4"))
    with pytest.raises(InputError, match=r"^the prompt '' has no token, but a response must follow one"):
        make_setup(TINY.replace(tokenizer=None), CustomParts(problems=problems))
    setup = make_setup(TINY, CustomParts(problems=problems))
    assert (setup.train, setup.heldout)[part].prompts.tokens[-1] == [load_tokenizer("bytes").bos_token_id]


def test_rows_that_are_left_out_are_reported_with_their_reason(tmp_path):
    rows = [{"prompt": f"{n}+1=", "answer": str(n + 1)} for n in range(20)]
    data, heldout = write_jsonl(tmp_path / "sums.jsonl", rows), write_jsonl(tmp_path / "heldout.jsonl", rows[:7])
    setup = make_setup(TINY.replace(dataset=data, heldout_dataset=heldout, heldout_problems=5))
    assert list(setup.omissions) == [
        f"5 rows are left out: same prompt as a held-out problem of {heldout}",
        f"2 rows are left out: beyond the first heldout_problems=5 of {heldout}",
    ]
    assert len(setup.train.prompts.tokens) == 15
    assert not make_setup(TINY.replace(dataset=data)).omissions
    copies = write_jsonl(tmp_path / "copies.jsonl", [row for row in rows for _ in range(3)])
    setup = make_setup(TINY.replace(dataset=copies))
    used = len(setup.train.prompts.tokens) + len(setup.heldout.prompts.tokens)
    assert list(setup.omissions) == [f"{60 - used} rows are left out: same prompt as a held-out problem"]


def test_several_rewards_are_separated_by_commas(tmp_path):
    file = tmp_path / "own.py"
    file.write_text("def short(completions):\n    return [1.0 for _ in completions]\n")
    config = TINY.replace(reward=f"exact, {file}:short", reward_weights=(1.0, 0.2), reward_messages=False)
    judge = make_setup(config).train.judge
    assert judge.reward.weights == {"exact": 1.0, "short": 0.2}
    assert not judge.messages
    passed = make_setup(config, CustomParts(reward=[even_length, "format"])).train.judge.reward
    assert passed.weights == {"even_length": 1.0, "has_final_answer": 0.2}
    with pytest.raises(InputError, match="reward_weights has 2 numbers for 1 rewards"):
        make_setup(config.replace(reward="exact"))


def test_a_run_with_nothing_to_learn_from_gets_a_hint():
    assert "load_config('arithmetic_dapo')" in advise_on_random_start(TrainConfig(), [])
    assert advise_on_random_start(TrainConfig(), ["reward"]) is None
    assert advise_on_random_start(load_config("arithmetic_dapo"), []) is None
    assert advise_on_random_start(TrainConfig.flat(model="x"), []) is None


def test_a_custom_algorithm_is_a_function_in_a_file(tmp_path):
    file = tmp_path / "own.py"
    source = "import rljax\n\ndef mine(*, clip=0.3):\n    return rljax.algorithms.dapo(clip_high=clip)._replace(keep_group=None)\n"
    file.write_text(f"{source}\ndef none():\n    pass\n")
    made = make_algorithm(TINY.replace(algorithm=f"{file}:mine", algorithm_options={"clip": 0.4}))
    assert made.keep_group is None
    assert made.surrogate.keywords["high"] == 0.4
    with pytest.raises(InputError, match="has no option 'beta'; it has clip"):
        make_algorithm(TINY.replace(algorithm=f"{file}:mine", algorithm_options={"beta": 0.4}))
    with pytest.raises(InputError, match=r"must return an rljax\.algorithms\.Algorithm; got None"):
        make_algorithm(TINY.replace(algorithm=f"{file}:none"))


def test_a_reward_that_compares_with_answers_needs_them(tmp_path):
    rows = [
        {"text": f"Write f{n}.", "code": "def f(): pass", "test_list": ["assert f() is None"], "task_id": n}
        for n in range(12)
    ]
    file = write_jsonl(tmp_path / "code.jsonl", rows)
    limits = {"max_prompt_tokens": 400}
    with pytest.raises(
        InputError, match=r"'exact' compares responses with reference answers, but no problem of .* has one"
    ):
        make_setup(TINY.replace(dataset=file, **limits))
    setup = make_setup(TINY.replace(dataset=file, reward="code", **limits))
    assert setup.train.prompts.problems[0].columns["tests"] == ["assert f() is None"]


def test_verl_rows_without_tests_are_counted_at_the_start(tmp_path):
    def row(number, truth):
        return {
            "prompt": [{"role": "user", "content": f"Add {number}."}],
            "reward_model": {"ground_truth": json.dumps(truth)},
        }

    tests, calls = {"inputs": ["2\n"], "outputs": ["2\n"]}, {"inputs": ["[2]"], "outputs": ["2"], "fn_name": "add"}
    file = write_jsonl(tmp_path / "verl.jsonl", [row(number, calls if number < 5 else tests) for number in range(12)])
    setup = make_setup(TINY.replace(dataset=file, reward="code", max_prompt_tokens=400, warm_start_steps=0))
    assert "5 of 12 problems have no tests, so code will not judge them" in setup.omissions
    assert not any("no tests" in note for note in make_setup(TINY).omissions)


def test_prose_references_are_counted_at_the_start(tmp_path):
    prose = "Tom has three apples and buys nine more at the market, so that in the end he has a dozen of them."
    rows = [{"question": f"What is {n}?", "answer": prose if n < 5 else f"{prose} #### {n}"} for n in range(12)]
    config = TINY.replace(dataset=write_jsonl(tmp_path / "prose.jsonl", rows), max_prompt_tokens=400, warm_start_steps=0)
    (note,) = (note for note in make_setup(config.replace(reward="math,format")).omissions if "references" in note)
    assert note.startswith("5 of 12 references have more than 15 words and state no answer")
    assert "'Tom has three apples and buys nine more'" in note
    assert not any("references" in note for note in make_setup(config.replace(reward="format")).omissions)


def test_a_reward_model_can_be_used_as_a_reward(tmp_path):
    tokenizer = load_tokenizer("bytes")
    shape = TransformerConfig(vocab_size=tokenizer.vocab_size, width=8, layers=1, heads=2, kv_heads=1, head_dim=4, hidden=8)
    model = value_model(Model(shape), 1)
    folder = tmp_path / "judge"
    save_reward_model(folder, RewardModel(model, init_value_params(model, jax.random.key(0)), tokenizer, chat=False))
    setup = make_setup(TINY.replace(reward=f"model:{folder}"))
    groups = setup.train.generate(first_params(setup), [0, 1], 2, jax.random.key(1))
    assert groups.rollout.valid.all()
    assert len(set(groups.rollout.rewards.reshape(-1).tolist())) > 1
    with pytest.raises(InputError, match="nowhere"):
        make_setup(TINY.replace(reward="model:/nowhere"))
