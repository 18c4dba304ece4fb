"""Distillation in the trainer: the teacher's scores, metrics, unusable folders, and a student that matches its teacher."""

import json

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from run_states import first_state, learn_from, make_rl_state
from small_runs import SMALL, even_length

import rljax
from rljax.algorithms import BY_NAME, Rollout, loss, prepare
from rljax.data.tokenizer import CharacterTokenizer, HuggingFaceTokenizer
from rljax.data.tokenizer_note import MODEL_NOTE, save_tokenizer
from rljax.errors import InputError
from rljax.models import Model, TransformerConfig
from rljax.models.huggingface import read_config
from rljax.models.language_model import logits
from rljax.models.model_folder import write_model
from rljax.models.packed import take_before_scored, to_batch
from rljax.models.value_model import init_value_params, value_contents, value_model
from rljax.ops.distillation import generalized_jsd
from rljax.ops.divergence import exact_kl
from rljax.ops.weights import sequence_mean
from rljax.options import INSTALLERS
from rljax.options.distillation import NAME, teacher_kl
from rljax.rollout import pack_one_per_row, sequences_of
from rljax.tracking.plots import PANELS
from rljax.training.lifecycle.initial_state import first_params
from rljax.training.parts.custom_parts import BUILT_IN, CustomParts
from rljax.training.parts.policy import make_transformer_config
from rljax.training.setup import make_setup

TINY = SMALL.replace(
    algorithm="on_policy_distillation",
    train_problems=12,
    heldout_problems=2,
    steps=2,
    prompts=4,
    group_size=4,
    temperature=0.7,
    learning_rate=1e-2,
)


def save_model(folder, **sizes):
    """Write a random model into a folder, as `rljax export` would, and return the folder."""
    setup = make_setup(TINY.replace(algorithm="grpo", seed=7, **sizes))
    setup.policy.save(jax.device_get(first_params(setup)), folder)
    return folder


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("models") / "teacher", layers=2, width=24)


def rl_rows(path):
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if row["phase"] == "rl"]


def test_run_with_a_teacher_of_another_size(teacher, tmp_path):
    result = rljax.train(TINY.replace(run=str(tmp_path / "run"), teacher=str(teacher)), even_length)
    rows = rl_rows(result.run)
    assert len(rows) == 2
    assert all(abs(row["teacher_kl"]) > 1e-5 and row["grad_norm"] > 0 for row in rows)
    assert json.loads((result.run / "config.json").read_text())["algorithm"]["teacher"] == str(teacher)
    assert "teacher_kl" in PANELS["rl"]
    resumed = rljax.train(resume=result.run, reward=even_length)
    assert resumed.run == result.run, "resuming must load the teacher again"


@pytest.mark.parametrize(
    ("name", "number"),
    [("on_policy_distillation", "teacher_kl"), ("gkd", "teacher_divergence"), ("minillm", "teacher_divergence")],
)
def test_teacher_equal_to_student_gives_no_gradient(teacher, tmp_path, name, number):
    """The metrics are 0 only if both are computed at the sampling temperature."""
    own = TINY.replace(run=str(tmp_path / "run"), model=str(teacher), tokenizer="characters", teacher=str(teacher), steps=1)
    (row,) = rl_rows(rljax.train(own.replace(algorithm=name), even_length).run)
    assert abs(row[number]) < 1e-6
    assert row["grad_norm"] < 1e-5


def test_the_update_of_gkd_is_the_gradient_of_the_full_divergence(teacher):
    """Compares the trainer's update, a gradient descent step, with a computation on the full logits."""
    setup, state = first_state(TINY.replace(algorithm="gkd", teacher=str(teacher)), optimizer=optax.sgd(1.0))
    state = make_rl_state(setup, state)
    groups = setup.train.generate(state.params, range(4), 4, jax.random.key(0))
    packed, mask = pack_one_per_row(sequences_of(groups)), jnp.asarray(groups.rollout.mask.reshape(16, -1))
    models = [Model(make_transformer_config(setup.config.model, 20)), Model(read_config(teacher))]

    def objective(params):
        inputs = packed.tokens, packed.positions, packed.segments
        both = [
            take_before_scored(logits(model, weights, *map(jnp.asarray, inputs)), packed) / 0.7
            for model, weights in zip(models, (params, setup.frozen[NAME]), strict=True)
        ]
        token_divergence = to_batch(generalized_jsd(*both, beta=0.5), packed)
        return (sequence_mean(mask) * jnp.where(mask, token_divergence, 0.0)).sum()

    before = jax.device_get(state.params)
    expected = jax.device_get(jax.jit(jax.grad(objective))(state.params))
    state, metrics = learn_from(setup, state, groups)
    parameter_change = jax.tree.map(np.subtract, before, jax.device_get(state.params))
    chex.assert_trees_all_close(parameter_change, expected, rtol=1e-3, atol=1e-6)
    value = float(jax.jit(objective)(before))
    np.testing.assert_allclose(metrics.policy.loss.numbers()["teacher_divergence"], value, rtol=1e-5)
    assert value > 1e-3
    assert "teacher_kl" not in (metrics.options or {}), (
        "no second pass of the teacher, because the loss contains the divergence"
    )


def test_a_policy_without_features_cannot_compare_distributions(teacher):
    setup = make_setup(TINY.replace(algorithm="grpo"))
    without_features = setup.policy._replace(features=None)
    for name, settings in (("gkd", {"teacher": str(teacher)}), ("otb", {})):
        with pytest.raises(InputError, match=f"policy.features: {name} reads full distributions, so it needs the hidden"):
            make_setup(TINY.replace(algorithm=name, **settings), CustomParts(policy=without_features), INSTALLERS)


def test_the_divergence_is_measured_on_response_tokens():
    mask = np.array([[[1, 1, 0]]], bool)
    logp = np.array([[[-1.0, -2.0, np.nan]]], np.float32)
    rollout = Rollout(mask=mask, behaviour_logp=logp, rewards=np.zeros((1, 1), np.float32), policy_logp=logp)
    assert teacher_kl(rollout, None) == {}
    rollout = rollout._replace(teacher_logp=np.array([[[-2.0, -2.5, np.nan]]], np.float32))
    assert teacher_kl(rollout, None) == {"teacher_kl": 0.75}
    assert teacher_kl(rollout._replace(mask=np.zeros_like(mask)), None) == {}


def write_reward_model(folder):
    shape = TransformerConfig(
        vocab_size=CharacterTokenizer().vocab_size, width=16, layers=1, heads=2, kv_heads=2, head_dim=8, hidden=32
    )
    model = value_model(Model(shape), 1)
    write_model(folder, value_contents(model, init_value_params(model, jax.random.key(0)), bos=None, eos=1))
    return folder


def test_an_unusable_teacher_folder_is_refused(teacher, tmp_path):
    cases = {
        r"on_policy_distillation learns from a teacher; set its model folder or hub id with --teacher": {},
        r"grpo does not learn from a teacher, so teacher='x' has no effect": {"algorithm": "grpo", "teacher": "x"},
        r"The model folder '\./nowhere' does not exist": {"teacher": "./nowhere"},
        r"is a reward model or a critic; choose a language model": {
            "teacher": str(write_reward_model(tmp_path / "reward"))
        },
        r"has a vocabulary of 20 tokens, but the policy has 259; they must match": {
            "teacher": str(teacher),
            "tokenizer": "bytes",
        },
    }
    for message, settings in cases.items():
        with pytest.raises(InputError, match=message):
            make_setup(TINY.replace(**settings), BUILT_IN, INSTALLERS)


class FakeTokenizer:
    """A fake `transformers` tokenizer with the methods used here."""

    eos_token_id, pad_token_id, bos_token_id = 0, 0, None

    def __init__(self, *tokens):
        self.tokens = tokens

    def __call__(self, text, add_special_tokens):
        return {"input_ids": []}

    def __len__(self):
        return len(self.tokens)

    def get_vocab(self):
        return {token: index for index, token in enumerate(self.tokens)}


def test_tokenizers_are_compared_token_by_token(teacher, monkeypatch):
    from rljax.options import distillation as module

    own = HuggingFaceTokenizer(FakeTokenizer("</s>", "a", "b"), "own")
    policy = make_setup(TINY.replace(algorithm="grpo")).policy
    monkeypatch.setattr(module, "has_tokenizer_files", lambda folder: True)

    def check(theirs, size=20):
        monkeypatch.setattr(module, "folder_tokenizer", lambda folder: theirs)
        module.check_tokens("T", teacher, size, policy, own)

    check(HuggingFaceTokenizer(FakeTokenizer("</s>", "a", "b"), "same"))
    for theirs, size, message in (
        (
            HuggingFaceTokenizer(FakeTokenizer("</s>", "b", "a"), "order"),
            20,
            "'T' and the policy do not .*: 2 tokens differ, such as 'a'",
        ),
        (HuggingFaceTokenizer(FakeTokenizer("</s>", "a", "b", "c"), "more"), 20, "1 tokens differ, such as 'c'"),
        (HuggingFaceTokenizer(FakeTokenizer("</s>", "a", "b"), "few"), 2, "it has logits for 2 tokens, the policy for 20"),
        (CharacterTokenizer("ab"), 20, "tokens differ"),
    ):
        with pytest.raises(InputError, match=message):
            check(theirs, size)


def test_a_note_names_the_teachers_alphabet(teacher, tmp_path):
    other = save_model(tmp_path / "other")
    save_tokenizer(other, MODEL_NOTE, CharacterTokenizer("0123456789+=ab#"), chat=False)
    with pytest.raises(InputError, match=r"do not have the same vocabulary: .* tokens differ"):
        make_setup(TINY.replace(teacher=str(other)), BUILT_IN, INSTALLERS)
    save_tokenizer(teacher, MODEL_NOTE, CharacterTokenizer(), chat=False)
    assert make_setup(TINY.replace(teacher=str(teacher)), BUILT_IN, INSTALLERS).teacher is not None
    (teacher / MODEL_NOTE).unlink()


VOCABULARY, LENGTH, STEPS = 5, 6, 150


@pytest.mark.parametrize(
    ("name", "options", "rate"),
    [
        ("on_policy_distillation", {}, 4.0 / LENGTH),
        ("gkd", {}, 16.0),
        ("gkd", {"beta": 0}, 4.0),
        ("gkd", {"beta": 1}, 4.0),
        ("minillm", {}, 0.7),
    ],
)
def test_a_student_reaches_its_teacher(name, options, rate):
    """Bigram models: the student samples, the teacher scores, and their distributions become equal in every context."""
    algorithm = BY_NAME[name](**options)
    teacher = jax.random.normal(jax.random.key(1), (VOCABULARY, VOCABULARY))

    def logp_of(table, tokens):
        logp = jax.nn.log_softmax(table)[tokens[..., :-1]]
        return jnp.take_along_axis(logp, tokens[..., 1:, None], -1)[..., 0]

    def sample(table, key):
        first = jax.random.randint(key, (8, 16), 0, VOCABULARY)
        keys = jax.random.split(key, LENGTH)

        def sample_next(token, key):
            following = jax.random.categorical(key, table[token])
            return following, following

        _, rest = jax.lax.scan(sample_next, first, keys)
        return jnp.concatenate([first[..., None], jnp.moveaxis(rest, 0, -1)], -1)

    @jax.jit
    def learn(table, key):
        tokens = sample(table, key)
        logp = logp_of(table, tokens)
        rollout = Rollout(
            mask=jnp.ones(logp.shape, bool),
            behaviour_logp=logp,
            rewards=jnp.zeros(logp.shape[:2]),
            teacher_logp=logp_of(teacher, tokens),
        )
        batch = prepare(algorithm, rollout)

        def objective(table):
            token_divergence = None
            if algorithm.teacher_divergence is not None:
                token_divergence = algorithm.teacher_divergence(table[tokens[..., :-1]], teacher[tokens[..., :-1]]).reshape(
                    -1, LENGTH
                )
            return loss(algorithm, logp_of(table, tokens).reshape(-1, LENGTH), batch, teacher_divergence=token_divergence)[
                0
            ]

        return table - rate * jax.grad(objective)(table)

    student = jnp.zeros((VOCABULARY, VOCABULARY))
    before = exact_kl(student, teacher).mean()
    for step in range(STEPS):
        student = learn(student, jax.random.key(step))
    after = exact_kl(student, teacher).mean()
    assert before > 0.3
    assert after < 0.01
    np.testing.assert_allclose(jax.nn.softmax(student), jax.nn.softmax(teacher), atol=0.06)
