"""Tests of rollout transcripts: a run logs the tokens, log-probabilities, advantages and masks of each training step."""

import json

import jax
import numpy as np
import pytest
from chat_models import save_chat_model
from run_states import first_state
from small_runs import SMALL, even_length
from third_party_policies import gru_policy

import rljax
from rljax.agents import ToolEnvironment
from rljax.data.problem import Problem
from rljax.data.token_texts import token_texts
from rljax.data.tokenizer import ByteTokenizer, IdTokenizer, load_tokenizer
from rljax.rollout import Response, Step, sequences_of, transcripts
from rljax.rollout.transcripts import find_boundaries, observed_role
from rljax.tracking.rollout_rows import check_rollout, read_rollouts
from rljax.tracking.run_folder import RunFolder
from rljax.training import rl_phase
from rljax.training.rollout_data import make_policy_scores
from rljax.training.scoring import policy_params

ALPHABET = "characters:0123456789<>=?"
TOKENIZER = load_tokenizer(ALPHABET)
GUESSES = [Problem(f"{n}?=", str(n % 10)) for n in range(10, 30)]
PROBLEMS = (GUESSES[:16], GUESSES[16:])
CONFIG = SMALL.replace(
    tokenizer=ALPHABET,
    steps=2,
    prompts=4,
    group_size=4,
    learning_rate=1e-2,
    eval_every=0,
    sample_every=1,
    warm_start_steps=0,
)


class GuessingGame:
    """Guess a digit. The observation after a wrong guess is "<<" or ">>"; after a turn that is not a digit, "?"."""

    max_turns = 3

    def reset(self, problem):
        return int(problem.answer)

    def step(self, state, completion):
        if completion[:1].isdigit():
            if int(completion[0]) == state:
                return Step(state, reward=1.0, correct=True, parts={"found": 1.0})
            hint = "<<" if state < int(completion[0]) else ">>"
            return Step(state, hint, reward=0.25, done=False, correct=False, parts={"found": 0.0, "tried": 1.0})
        return Step(state, "?", done=False, metrics={"silent": 1.0})


def record_steps(monkeypatch):
    """Record each step's details, the log-probabilities of its responses after its update, and the training worker."""
    recorded, original = [], rl_phase.one_step

    def one_step(run, tools, *arguments):
        outcome = original(run, tools, *arguments)
        params = policy_params(run.setup.base, outcome.checkpoint.state.params)
        after = make_policy_scores(run.setup)(params, sequences_of(outcome.details.collected.sampled)).logp
        recorded.append((outcome.details, np.asarray(after), run.setup.train))
        return outcome

    monkeypatch.setattr(rl_phase, "one_step", one_step)
    return recorded


@pytest.fixture(scope="module")
def logged(tmp_path_factory):
    """The logged rows of a run with an environment, and the results of its steps."""
    path = tmp_path_factory.mktemp("guess") / "run"
    config = CONFIG.replace(run=str(path), algorithm="dapo", logged_rollouts=16, oversample=2.0, max_tries=1)
    with pytest.MonkeyPatch.context() as patch:
        steps = record_steps(patch)
        parts = {"policy": gru_policy(TOKENIZER.vocab_size), "problems": PROBLEMS, "environment": GuessingGame()}
        rljax.train(config, **parts)
    return read_rollouts(RunFolder.open(path)).rows, steps


def test_rows_contain_the_values_of_their_step(logged):
    rows, steps = logged
    assert {row["step"] for row in rows} == {1, 2}
    assert {row["trained"] for row in rows} == {True, False}
    for row in rows:
        result, after, _ = steps[row["step"] - 1]
        groups = result.collected.groups if row["trained"] else result.collected.sampled
        (group,) = np.flatnonzero(groups.prompt_ids == row["problem"])
        member, rollout = row["member"], groups.rollout
        used = groups.attention[group, member]
        ids = groups.tokens[group, member][used]
        assert "".join(row["tokens"]) == "".join(token_texts(TOKENIZER, ids.tolist()))
        assert row["length"] == len(row["tokens"]) == used.sum()
        sampled = rollout.mask[group, member][used]
        assert [kind != "o" for kind in row["kinds"]] == sampled.tolist()
        response = group * groups.tokens.shape[1] + member
        if row["trained"]:
            assert [kind == "t" for kind in row["kinds"]] == result.batch.mask[response][used].tolist()
            assert_same(row["advantage"], result.batch.advantage[response][used], result.batch.mask[response][used])
            if rollout.valid[group, member]:
                assert_same(row["logp"], result.batch.policy_logp[response][used], sampled)
        else:
            assert "t" not in row["kinds"]
            assert row["advantage"] == [None] * row["length"]
        assert_same(row["logp"], rollout.policy_logp[group, member][used], sampled)
        all_groups = result.collected.sampled
        if row["problem"] in all_groups.prompt_ids:
            (index,) = np.flatnonzero(all_groups.prompt_ids == row["problem"])
            logp = after[index * groups.tokens.shape[1] + member][used]
            assert_same(row["ratio"], np.exp(logp - rollout.policy_logp[group, member][used]), sampled, tolerance=2e-4)
        reward = float(rollout.rewards[group, member]) if rollout.valid[group, member] else None
        assert row["reward"] == pytest.approx(reward)
        assert row["turns"] == groups.turns[group, member]
        assert row["sampled_at"] == groups.version[group, member]


def test_token_versions_are_recorded_if_weights_change(logged):
    groups = logged[1][0][0].collected.sampled
    assert all("token_versions" not in row for row in logged[0])
    version = np.where(np.arange(groups.tokens.shape[-1]) < 2, 4, 5) * np.ones_like(groups.tokens)
    found = transcripts.token_versions(groups._replace(token_version=version), 0, 0)
    length = int(groups.attention[0, 0].sum())
    assert found == {"token_versions": [[4, 2], [5, length - 2]] if length > 2 else [[4, length]]}


def assert_same(found, expected, known, *, tolerance=1e-4):
    """Assert that a row's rounded values match `expected` where `known`, and are None everywhere else."""
    assert [value is not None for value in found] == np.asarray(known, bool).tolist()
    np.testing.assert_allclose([v for v in found if v is not None], np.asarray(expected)[known], rtol=tolerance, atol=1e-4)


def test_ratio_increases_with_the_advantage(logged):
    """An update makes tokens with a positive advantage more likely than tokens with a negative one."""
    pairs = [
        (advantage, ratio)
        for row in logged[0]
        for advantage, ratio in zip(row["advantage"], row["ratio"], strict=True)
        if advantage
    ]
    assert len(pairs) > 20
    positive = np.mean([ratio for advantage, ratio in pairs if advantage > 0])
    negative = np.mean([ratio for advantage, ratio in pairs if advantage < 0])
    assert positive > negative


def test_spans_separate_turns_and_observations(logged):
    rows, _ = logged
    assert max(row["turns"] for row in rows) > 1
    for row in rows:
        assert check_rollout(row) is None
        assert sum(span["role"] == "policy" for span in row["spans"]) == row["turns"]
        for span in row["spans"]:
            kinds = set(row["kinds"][span["start"] : span["end"]])
            assert (kinds == {"o"}) == (span["role"] == "environment")
    hints = [
        "".join(row["tokens"][s["start"] : s["end"]]) for row in rows for s in row["spans"] if s["role"] == "environment"
    ]
    assert set(hints) <= {"<<", ">>", "?"}
    assert any("found" in row["parts"] for row in rows)
    assert all(row["metrics"].keys() <= {"silent", "overflow"} for row in rows)


def test_best_and_worst_responses_are_logged(logged):
    rows, steps = logged
    trained = [row for row in rows if row["trained"] and row["step"] == 1]
    for best, worst in zip(trained[::2], trained[1::2], strict=True):
        assert best["problem"] == worst["problem"]
        groups = steps[0][0].collected.groups
        (group,) = np.flatnonzero(groups.prompt_ids == best["problem"])
        rewards = np.where(groups.rollout.valid[group], groups.rollout.rewards[group], -1)
        assert [best["reward"], -1 if worst["reward"] is None else worst["reward"]] == [rewards.max(), rewards.min()]


def test_rollout_log_can_be_disabled_and_survives_resuming(tmp_path):
    sizes = {"prompts": 2, "heldout_problems": 4, "train_problems": 40, "logged_rollouts": 2}
    config = CONFIG.replace(tokenizer="characters", algorithm="grpo", **sizes)
    unlogged = rljax.train(config.replace(run=str(tmp_path / "none"), steps=1, logged_rollouts=0), even_length).run
    assert not (unlogged / "rollouts.jsonl").exists()
    complete = rljax.train(config.replace(run=str(tmp_path / "whole"), checkpoint_every=1), even_length).run
    resumed = rljax.train(config.replace(run=str(tmp_path / "part"), steps=1), even_length).run
    with (resumed / "rollouts.jsonl").open("a") as file:
        file.write("{}\n")  # A row from a step after the checkpoint; the resumed run repeats that step.
    rljax.train(config.replace(run=str(tmp_path / "part")), even_length, resume=resumed)
    assert (resumed / "rollouts.jsonl").read_bytes() == (complete / "rollouts.jsonl").read_bytes()
    rows = [json.loads(line) for line in (complete / "rollouts.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 1, 2, 2]


def double(number: int) -> int:
    """Double a number.

    Args:
        number: the number.
    """
    return 2 * number


class DoublingEnvironment(ToolEnvironment):
    tools = (double,)


CALL = '<tool_call>{"name": "double", "arguments": {"number": NaN}}</tool_call>'


def test_tool_calls_are_read_from_turns(tmp_path):
    """The engine has three turns: a call with the argument NaN (not valid JSON), a malformed call, and an answer."""
    model = save_chat_model(tmp_path / "model")
    config = SMALL.replace(
        model=str(model),
        chat=True,
        max_prompt_tokens=1000,
        max_response_tokens=2000,
        prompts=1,
        group_size=2,
        algorithm="rloo",
    )
    tokenizer, script = load_tokenizer(str(model)), iter([CALL, '<tool_call>{"name"</tool_call>', "#6"])

    class ScriptedEngine:
        def generate(self, params, requests):
            (request,) = requests
            ids = np.array([*tokenizer.encode(next(script)), tokenizer.eos_token_id], np.int32)
            logp = np.full(len(ids), -0.5, np.float32)
            return [Response(request.prompt_id, request.group, ids, np.ones(len(ids), bool), logp, logp, "stop")]

    engine = ScriptedEngine()
    problems = ([Problem("Double 3.", "6")], [Problem("Double 4.", "8")])
    setup, state = first_state(config, engine=engine, problems=problems, environment=DoublingEnvironment())
    groups = setup.train.generate(state.params, [0], 1, jax.random.key(0))
    place = transcripts.ResponseLocation(groups, 0, 0, False)
    (row,) = transcripts.make_rows(setup.train, [place], None, groups.rollout.policy_logp[0], step=1)
    assert check_rollout(json.loads(json.dumps(row, allow_nan=False))) is None
    policy_spans = [span for span in row["spans"] if span["role"] == "policy"]
    assert policy_spans[0]["calls"] == [{"name": "double", "arguments": '{"number": NaN}'}]
    assert "is not JSON" in policy_spans[1]["malformed"][0]
    assert "calls" not in policy_spans[2]
    assert (row["metrics"]["tool_calls"], row["metrics"]["malformed_calls"]) == (1, 1)
    assert row["reward"] == 1.0
    assert "".join(row["tokens"]).count("<end>") >= 3, "special tokens must be shown"
    assert row["ratio"] == [None if kind == "o" else 1.0 for kind in row["kinds"]]


def test_middle_of_a_long_response_is_left_out(logged, monkeypatch):
    monkeypatch.setattr(transcripts, "MAX_TOKENS", 4)
    result, _, worker = logged[1][0]
    groups = result.collected.sampled
    group, member = next(zip(*np.nonzero(groups.attention.sum(-1) > 6), strict=True))
    place = transcripts.ResponseLocation(groups, int(group), int(member), False)
    (row,) = transcripts.make_rows(worker, [place], result.batch, groups.rollout.policy_logp[group, member][None], step=1)
    assert len(row["tokens"]) == 4
    assert row["left_out"] == {"at": 2, "tokens": row["length"] - 4}
    assert check_rollout(row) is None


@pytest.mark.parametrize("text", ["aé€😀b", "日本語", "plain"])
def test_joined_token_texts_equal_the_text(text, tmp_path):
    tokenizer = ByteTokenizer()
    texts = token_texts(tokenizer, tokenizer.encode(text))
    assert len(texts) == len(text.encode())
    assert "".join(texts) == text
    fast = load_tokenizer(str(save_chat_model(tmp_path / "model")))
    assert "".join(token_texts(fast, [*fast.encode(text), fast.eos_token_id])) == f"{text}<end>"


def test_invalid_bytes_do_not_hide_later_text():
    tokenizer = ByteTokenizer()
    ids = [0xE9 + 3, *tokenizer.encode("ab"), 0xFF + 3, *tokenizer.encode("c"), 0xF0 + 3]
    assert "".join(token_texts(tokenizer, ids)) == "�ab�c�"
    for invalid in range(1, 9):
        texts = token_texts(tokenizer, [*[0xFF + 3] * invalid, *tokenizer.encode("é€a")])
        assert "".join(texts).lstrip("�") == "é€a"
    assert token_texts(tokenizer, [0xC3 + 3, tokenizer.eos_token_id]) == ["�", "<eos>"]
    assert token_texts(IdTokenizer(9, eos=2), [5, 7, 2]) == ["5", " 7", "<eos>"]


@pytest.mark.parametrize(
    ("text", "role"),
    [
        ("<|im_end|>\n<|im_start|>tool\n6<|im_end|>\n<|im_start|>assistant\n", "tool"),
        ("<|im_start|>user\n<tool_response>6</tool_response><|im_end|>", "tool"),
        ("<|start_header_id|>ipython<|end_header_id|>\n\n6<|eot_id|>", "tool"),
        ("<end_of_turn>\n<start_of_turn>user\nhigher<end_of_turn>\n<start_of_turn>model\n", "user"),
        ("[TOOL_RESULTS] 6", "tool"),
        ("[INST] higher [/INST]", "user"),
        ("higher", "environment"),
    ],
)
def test_observation_roles_are_read_from_template_markup(text, role):
    assert observed_role(text) == role


def test_adjacent_turns_stay_separate():
    sampled, ends = np.array([1, 1, 1, 1, 0], bool), np.array([0, 1, 0, 1, 0], bool)
    assert find_boundaries(sampled, ends) == [(0, 2), (2, 4), (4, 5)]
