"""Full distributions of a teacher with another tokenizer: where they are compared, the update, and a student that comes closer."""

import json
from functools import partial
from pathlib import Path

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from run_states import first_state, learn_from, make_rl_state
from small_runs import SMALL, even_length
from two_tokenizers import byte_fallback, byte_level

import rljax
from rljax.data.tokenizer import load_tokenizer
from rljax.errors import InputError
from rljax.models import Model, init_params
from rljax.models.huggingface import read_config, save_pretrained
from rljax.models.language_model import logits
from rljax.models.packed import take_before_scored, to_batch
from rljax.ops.distillation import matched_vocabulary_distance, sorted_probability_distance
from rljax.ops.weights import sequence_mean
from rljax.options.distillation import NAME as TEACHER
from rljax.options.span_distributions import match_tokens
from rljax.options.span_teacher import reencode
from rljax.programs.batch_replay import loss_terms
from rljax.rollout import pack_one_per_row, sequences_of
from rljax.training.parts.policy import make_transformer_config
from rljax.training.rollout_data import make_prepare, make_rollout_scorer

PARTS = {"sorted": "teacher_divergence=sorted", "matched": "teacher_divergence=matched,beta=0.3"}


def save_model(make_tokenizer, folder, seed, scale=2):
    tokenizer = load_tokenizer(str(make_tokenizer(folder)))
    config = make_transformer_config(SMALL.replace(layers=1, width=16, hidden=32).model, tokenizer.vocab_size)
    params = jax.tree.map(lambda leaf: scale * leaf, init_params(config, jax.random.key(seed)))
    save_pretrained(folder, config, params, bos=None, eos=tokenizer.eos_token_id)
    return str(folder)


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    student, teacher = (
        save_model(byte_level, folder / "student", 0),
        save_model(byte_fallback, folder / "teacher", 1, scale=6),
    )
    return SMALL.replace(
        **{"algorithm": "gkd", "model": student, "teacher": teacher, "teacher_spans": True, "tokenizer": None},
        **{"train_problems": 12, "heldout_problems": 2, "steps": 2, "prompts": 4, "group_size": 4, "temperature": 0.7},
        **{"warm_start_steps": 0, "max_response_tokens": 8, "learning_rate": 1e-2, "microbatch_rows": 8},
    )


@pytest.mark.parametrize(
    ("part", "mesh"),
    [("sorted", {}), ("matched", {}), ("matched", {"replicas": 2, "fsdp": 4})],
)
def test_the_update_is_the_gradient_of_the_distances_where_spans_begin(config, part, mesh):
    """Compares the trainer's update, a gradient descent step, with a computation on the full logits of both models."""
    setup, state = first_state(
        config.replace(**{"with": (PARTS[part],)}, **mesh), reward=even_length, optimizer=optax.sgd(1.0)
    )
    state = make_rl_state(setup, state)
    groups = setup.train.generate(state.params, range(4), 4, jax.random.key(0))
    texts = ["the thing", "naïve 12", "42", "🙂 the"]
    tokens, attention = np.zeros((4, 4, 12), np.int32), np.zeros((4, 4, 12), bool)
    for group, text in enumerate(texts):
        for member in range(4):
            ids = setup.tokenizer.encode(text) + [setup.tokenizer.eos_token_id] * (member % 2)
            tokens[group, member, : len(ids)], attention[group, member, : len(ids)] = ids, True
    logp = np.where(attention, np.float32(-2), np.float32(0))
    rollout = groups.rollout._replace(mask=attention, policy_logp=logp, behaviour_logp=logp)
    groups = groups._replace(tokens=tokens, attention=attention, rollout=rollout)
    ours, mask = pack_one_per_row(sequences_of(groups)), jnp.asarray(attention.reshape(16, -1))
    rows, spans = reencode(setup, setup.teacher.tokenizer, groups)
    theirs = pack_one_per_row(rows)
    own_ids, other_ids = match_tokens(setup.tokenizer, setup.teacher.tokenizer)
    distance = {
        "sorted": sorted_probability_distance,
        "matched": partial(matched_vocabulary_distance, matched=own_ids, teacher_matched=other_ids, beta=0.3),
    }[part]

    def of_tokens(folder, params, packed):
        places = map(jnp.asarray, (packed.tokens, packed.positions, packed.segments))
        return to_batch(take_before_scored(logits(Model(read_config(Path(folder))), params, *places), packed) / 0.7, packed)

    judged = of_tokens(config.algorithm.teacher, setup.frozen[TEACHER], theirs)
    pairs = [(row, span.ours[0], span.theirs[0]) for row, found in enumerate(spans) for span in found]
    row, own, other = (np.array(column) for column in zip(*pairs, strict=True))
    assert len(pairs) == 36

    def objective(params):
        apart = distance(of_tokens(config.model.path, params, ours)[row, own], judged[row, other])
        return (sequence_mean(mask)[row, own] * apart).sum()

    before = jax.device_get(state.params)
    value, expected = jax.device_get(jax.jit(jax.value_and_grad(objective))(state.params))
    state, metrics = learn_from(setup, state, groups)
    moved = jax.tree.map(np.subtract, before, jax.device_get(state.params))
    np.testing.assert_allclose(metrics.policy.loss.numbers()["teacher_divergence"], value, rtol=1e-5)
    chex.assert_trees_all_close(moved, expected, rtol=1e-3, atol=1e-6)
    assert value > 1e-3


def test_debug_measures_the_distances(config):
    setup, state = first_state(config.replace(**{"with": (PARTS["matched"],)}), reward=even_length)
    state = make_rl_state(setup, state)
    groups = setup.train.generate(state.params, range(4), 4, jax.random.key(0))
    scored = make_rollout_scorer(setup)(state, groups)
    for option in setup.options:
        if option.before_updates is not None:
            state = option.before_updates(state, scored)
    batch = make_prepare(setup.algorithm, setup.options)(scored.groups.rollout, progress=0.0)
    terms = {term.name: term for term in loss_terms(setup, state, sequences_of(scored.groups), batch, step=0)}
    distance = terms["term teacher_divergence"]
    assert 0 < distance.largest < np.inf
    assert not distance.unsound


@pytest.mark.parametrize("part", PARTS)
def test_the_student_comes_closer_to_the_distributions_of_the_teacher(config, tmp_path, part):
    changes = {"run": str(tmp_path / "run"), "steps": 20, "prompts": 8, "learning_rate": 3e-2, "passes": 2}
    result = rljax.train(config.replace(**{"with": (PARTS[part],)}, **changes), even_length)
    rows = [json.loads(line) for line in (result.run / "metrics.jsonl").read_text().splitlines()]
    distances = [row["teacher_divergence"] for row in rows if row["phase"] == "rl"]
    assert np.mean(distances[-3:]) < 0.75 * np.mean(distances[:3])


def test_tokens_match_if_they_have_the_same_text(tmp_path):
    ours = load_tokenizer(str(byte_level(tmp_path / "a")))
    theirs = load_tokenizer(str(byte_fallback(tmp_path / "b")))
    own, other = match_tokens(ours, theirs)
    assert (ours.eos_token_id, theirs.eos_token_id) in set(zip(own.tolist(), other.tolist(), strict=True))
    texts = [
        (ours.decode([a]).strip(), theirs.decode([b]).strip()) for a, b in zip(own.tolist(), other.tolist(), strict=True)
    ]
    same = [pair for pair in texts if pair[0] == pair[1]]
    assert len(own) == len(set(own)) == len(set(other)) > 20
    assert len(same) >= len(texts) - 1, "only the two ends of a response may be written differently"


def test_a_teacher_with_the_same_tokens_matches_all_of_them(config, tmp_path):
    teacher = save_model(byte_level, tmp_path / "teacher", 2)
    numbers = []
    for words in ((), (PARTS["matched"].replace("0.3", "0.5"),)):
        setup, state = first_state(
            config.replace(**{"with": words, "teacher": teacher, "teacher_spans": False}), reward=even_length
        )
        state = make_rl_state(setup, state)
        groups = setup.train.generate(state.params, range(4), 4, jax.random.key(0))
        numbers.append(learn_from(setup, state, groups)[1].policy.loss.numbers()["teacher_divergence"])
    np.testing.assert_allclose(*numbers, rtol=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"with": ()}, "compares distributions over the same tokens; choose --algorithm gkd with"),
        ({"minibatches": 2}, "minibatches is 2; set --minibatches 1"),
        ({"teacher": None}, "needs another model as the teacher, but teacher is None"),
        ({"algorithm": "minillm"}, "a divergence from a teacher's distributions; use --algorithm gkd"),
        ({"algorithm": "grpo"}, "a divergence from a teacher's distributions; use --algorithm gkd"),
        ({"teacher_spans": False}, "unless --teacher-spans is set"),
    ],
)
def test_other_settings_are_refused(config, changes, message):
    with pytest.raises(InputError, match=message):
        first_state(config.replace(**{"with": (PARTS["sorted"],)} | changes), reward=even_length)
