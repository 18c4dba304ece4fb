"""A model as its own teacher: the teacher's prompts and scores, responses without a teacher, and learning."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from run_states import first_state, make_rl_state
from small_runs import SMALL, even_length

import rljax
from rljax.data.problem import Problem
from rljax.errors import InputError
from rljax.models import Model
from rljax.models.language_model import logits
from rljax.options.self_distillation import NAME, next_right_responses, teacher_problem, teacher_sequences, text_shown
from rljax.rollout import sequences_of
from rljax.training.parts.policy import make_transformer_config
from rljax.training.rollout_data import ScoreInputs, make_rollout_scorer

CONFIG = SMALL.replace(
    **{"algorithm": "on_policy_distillation", "teacher": "self", "teacher_template": "{shown}{prompt}"},
    **{"train_problems": 12, "heldout_problems": 2, "steps": 2, "prompts": 4, "group_size": 4, "temperature": 0.7},
    **{"layers": 1, "width": 16, "hidden": 32, "learning_rate": 1e-2},
)


def rollout_of(shows):
    setup, state = first_state(CONFIG.replace(teacher_shows=shows), reward=even_length)
    state = make_rl_state(setup, state)
    return setup, state, setup.train.generate(state.params, range(4), 4, jax.random.key(0))


def logp_by_hand(setup, params, prompt, response):
    """Log-probability of each response token after the prompt, computed from the logits at the sampling temperature."""
    model, sequence = (
        Model(make_transformer_config(setup.config.model, setup.tokenizer.vocab_size)),
        jnp.array([[*prompt, *response]]),
    )
    positions = jnp.arange(sequence.shape[1])[None]
    rows = np.asarray(logits(model, params, sequence, positions, jnp.ones_like(sequence)), np.float64)[0] / 0.7
    rows = rows - np.log(np.exp(rows - rows.max(-1, keepdims=True)).sum(-1, keepdims=True)) - rows.max(-1, keepdims=True)
    return [rows[len(prompt) + index - 1, token] for index, token in enumerate(response)]


def test_teacher_scores_follow_prompt_with_demonstration():
    setup, state, groups = rollout_of("demonstration")
    teacher = jax.tree.map(lambda x: 1.1 * x, state.options[NAME])
    state = state._replace(options=state.options | {NAME: teacher})
    scored = make_rollout_scorer(setup)(state, groups).groups.rollout
    for response_index in ((0, 0), (2, 3)):
        problem = setup.train.prompts.problems[groups.prompt_ids[response_index[0]]]
        prompt = setup.tokenizer.encode(problem.demonstration + problem.prompt)
        response = groups.tokens[response_index][groups.attention[response_index]].tolist()
        expected = logp_by_hand(setup, teacher, prompt, response)
        np.testing.assert_allclose(
            scored.teacher_logp[response_index][groups.attention[response_index]], expected, rtol=2e-4, atol=2e-5
        )


def test_teacher_reads_another_success_or_is_absent():
    setup, state, groups = rollout_of("success")
    right = np.array([[1, 0, 0, 1], [0, 0, 0, 0], [0, 1, 0, 0], [1, 1, 1, 1]], np.float32)
    groups = groups._replace(rollout=groups.rollout._replace(rewards=right, correct=None, valid=np.ones((4, 4), bool)))
    inputs = ScoreInputs(state, groups, sequences_of(groups), state.params, state.params)
    sequences, has_teacher = teacher_sequences(setup, inputs)
    others = [[3, 3, 3, 0], [None] * 4, [1, None, 1, 1], [1, 2, 3, 0]]
    for row, (group, member) in enumerate(np.ndindex(4, 4)):
        prompt, other = setup.train.prompts.problems[groups.prompt_ids[group]].prompt, others[group][member]
        shown = "" if other is None else setup.train.text(groups.tokens[group, other], groups.attention[group, other])
        read = sequences.prompt_tokens[row][sequences.prompt_attention[row]].tolist()
        assert read == setup.tokenizer.encode(shown + prompt)
        assert has_teacher[row] == bool(shown)
    rollout = make_rollout_scorer(setup)(state, groups).groups.rollout
    same = (np.abs(rollout.teacher_logp - rollout.policy_logp) * rollout.mask).max(-1) == 0
    np.testing.assert_array_equal(same.ravel(), ~has_teacher)


def test_successes_are_the_next_other_right_responses():
    rng = np.random.default_rng(0)
    right = rng.random((20, 5)) < 0.4
    for group, row in enumerate(next_right_responses(right).tolist()):
        for member, chosen in enumerate(row):
            others = [(member + step) % 5 for step in range(1, 5) if right[group, (member + step) % 5]]
            assert chosen == (others[0] if others else -1)


def test_the_prompt_of_the_teacher_is_filled_once_and_ends_a_chat():
    filled = teacher_problem(Problem("{shown}?", ""), "{prompt}!", "{prompt} | {shown}")
    assert filled.prompt == "{shown}? | {prompt}!"
    messages = ({"role": "system", "content": "Add."}, {"role": "user", "content": "1+1="})
    chat = teacher_problem(Problem("Add.\n1+1=", "2", messages=messages), "2", "{prompt} ({shown})")
    assert chat.messages == (messages[0], {"role": "user", "content": "1+1= (2)"})
    assert text_shown(Problem("1=", "", columns={"hint": 3}), "hint") == ""


def test_student_approaches_its_teacher(tmp_path):
    config = CONFIG.replace(run=str(tmp_path / "run"), teacher_shows="demonstration", teacher_rate=0.0, steps=12, prompts=8)
    result = rljax.train(config, even_length)
    rows = [json.loads(line) for line in (result.run / "metrics.jsonl").read_text().splitlines()]
    distances = [row["teacher_kl"] for row in rows if row["phase"] == "rl"]
    assert np.mean(distances[-3:]) < 0.5 * np.mean(distances[:3])


def test_a_run_continues_with_its_teacher(tmp_path):
    config = CONFIG.replace(run=str(tmp_path / "run"), teacher_shows="success", teacher_rate=0.5, steps=2)
    result = rljax.train(config, even_length)
    assert rljax.train(resume=result.run, reward=even_length).run == result.run


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "teaches nothing; set --teacher-shows"),
        ({"teacher_shows": "hint"}, "no problem has a text in the column hint"),
        ({"teacher_shows": "success", "teacher_template": "{prompt}"}, "must contain {prompt} and {shown}"),
        ({"teacher_shows": "success", "teacher_rate": 1.5}, "must be from 0"),
        (
            {"teacher_shows": "success", "teacher_template": "{prompt}\n{shown}"},
            r"The teacher's prompt cannot be encoded: .* Or set --teacher-template to a text with {prompt} and {shown} that",
        ),
        (
            {"teacher_shows": "success", "teacher": None, "algorithm": "dapo"},
            "apply only to a model that is its own teacher",
        ),
        ({"teacher_shows": "success", "algorithm": "gkd"}, "is for on_policy_distillation, but the algorithm is gkd"),
        ({"teacher_shows": "success", "algorithm": "dapo"}, "is for on_policy_distillation, but the algorithm is dapo"),
    ],
)
def test_invalid_teacher_settings_are_refused(changes, message):
    with pytest.raises(InputError, match=message):
        first_state(CONFIG.replace(**changes), reward=even_length)
