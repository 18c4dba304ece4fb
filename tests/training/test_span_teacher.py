"""A teacher with another tokenizer: the log-ratio of every span, and a student that approaches the teacher."""

import json
from functools import partial
from itertools import pairwise
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from run_states import first_state, make_rl_state
from small_runs import SMALL, even_length
from two_tokenizers import byte_fallback, byte_level

import rljax
from rljax.data.token_alignment import Span
from rljax.data.tokenizer import load_tokenizer
from rljax.errors import InputError
from rljax.models import Model, init_params
from rljax.models.huggingface import read_config, save_pretrained
from rljax.models.language_model import logits
from rljax.options.span_teacher import add_span_ratios
from rljax.training.parts.policy import make_transformer_config
from rljax.training.rollout_data import make_rollout_scorer


def save_model(make_tokenizer, folder, seed):
    tokenizer = load_tokenizer(str(make_tokenizer(folder)))
    config = make_transformer_config(SMALL.replace(layers=1, width=16, hidden=32).model, tokenizer.vocab_size)
    params = jax.tree.map(lambda leaf: 2 * leaf, init_params(config, jax.random.key(seed)))
    save_pretrained(folder, config, params, bos=None, eos=tokenizer.eos_token_id)
    return str(folder)


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    student, teacher = save_model(byte_level, folder / "student", 0), save_model(byte_fallback, folder / "teacher", 1)
    return SMALL.replace(
        **{
            "algorithm": "on_policy_distillation",
            "model": student,
            "teacher": teacher,
            "teacher_spans": True,
            "tokenizer": None,
        },
        **{"train_problems": 12, "heldout_problems": 2, "steps": 2, "prompts": 4, "group_size": 4, "temperature": 0.7},
        **{"warm_start_steps": 0, "max_response_tokens": 8, "learning_rate": 1e-2},
    )


def logp_by_hand(score, params, prompt, response):
    """Log-probability of each response token after the prompt, computed from the logits at the sampling temperature."""
    sequence = [*prompt, *response]
    tokens = jnp.array([sequence + [0] * (64 - len(sequence))])
    rows = np.asarray(
        score(params, tokens, jnp.arange(64)[None], (jnp.arange(64) < len(sequence)).astype(int)[None]), np.float64
    )
    rows = rows[0] / 0.7
    rows = rows - np.log(np.exp(rows - rows.max(-1, keepdims=True)).sum(-1, keepdims=True)) - rows.max(-1, keepdims=True)
    return np.array([rows[len(prompt) + index - 1, token] for index, token in enumerate(response)])


def test_a_token_has_the_log_ratio_of_its_span(config):
    setup, state = first_state(config, reward=even_length)
    state = make_rl_state(setup, state)
    groups = setup.train.generate(state.params, range(4), 4, jax.random.key(0))
    student, teacher = setup.tokenizer, setup.teacher.tokenizer
    score = jax.jit(partial(logits, Model(read_config(Path(config.algorithm.teacher)))))
    texts = ["the thing", "naïve 12", "42", "🙂 the"]
    tokens, attention = np.zeros((4, 4, 12), np.int32), np.zeros((4, 4, 12), bool)
    for group, text in enumerate(texts):
        for member in range(4):
            ids = student.encode(text) + [student.eos_token_id] * (member % 2)
            tokens[group, member, : len(ids)], attention[group, member, : len(ids)] = ids, True
    student_logp = np.where(attention, np.random.default_rng(0).uniform(-3, -1, attention.shape), 0).astype(np.float32)
    rollout = groups.rollout._replace(mask=attention, policy_logp=student_logp, behaviour_logp=student_logp)
    groups = groups._replace(tokens=tokens, attention=attention, rollout=rollout)
    found = make_rollout_scorer(setup)(state, groups).groups.rollout.teacher_logp
    for group, text in enumerate(texts):
        prompt = teacher.encode(setup.train.prompts.problems[groups.prompt_ids[group]].prompt)
        for member in range(2):
            ended = member % 2
            theirs = teacher.encode(text) + [teacher.eos_token_id] * ended
            judged = logp_by_hand(score, setup.teacher.params, prompt, theirs)
            count = attention[group, member].sum()
            ratios = (found - student_logp)[group, member][:count]
            # The tokens of a span share its log-ratio, so a run of equal ratios is one span; the spans sum to the response.
            span_ratios = [ratios[0], *[b for a, b in pairwise(ratios) if abs(a - b) > 1e-5]]
            np.testing.assert_allclose(
                sum(span_ratios), judged.sum() - student_logp[group, member].sum(), rtol=1e-4, atol=1e-4
            )
            if ended:
                np.testing.assert_allclose(
                    ratios[-1], judged[-1] - student_logp[group, member][count - 1], rtol=1e-4, atol=1e-4
                )


def test_single_token_spans_keep_token_log_ratios():
    student_logp, theirs = np.array([-1.0, -2.0]), np.array([-0.5, -4.0])
    np.testing.assert_array_equal(
        add_span_ratios(student_logp, theirs, [Span((0, 1), (0, 1)), Span((1, 2), (1, 2))]), theirs
    )


def test_student_approaches_a_teacher_with_another_tokenizer(config, tmp_path):
    result = rljax.train(config.replace(run=str(tmp_path / "run"), steps=20, prompts=8, learning_rate=3e-2), even_length)
    rows = [json.loads(line) for line in (result.run / "metrics.jsonl").read_text().splitlines()]
    distances = [row["teacher_kl"] for row in rows if row["phase"] == "rl"]
    assert np.mean(distances[-3:]) < 0.75 * np.mean(distances[:3])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"teacher": None}, "needs another model as the teacher, but teacher is None"),
        ({"algorithm": "gkd"}, "gkd compares distributions over the same tokens; choose"),
        ({"algorithm": "grpo"}, "is for on_policy_distillation and gkd, but the algorithm is grpo"),
        ({"teacher_spans": False}, "unless --teacher-spans is set"),
    ],
)
def test_incompatible_settings_are_refused(config, changes, message):
    with pytest.raises(InputError, match=message):
        first_state(config.replace(**changes), reward=even_length)
