"""Image patches: their embeddings, agreement between the sampler and the scorer, and training; patches are never sampled."""

from dataclasses import replace
from functools import partial

import flax.linen
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax.data.images import DOTS, PATTERNS, pixels_of, text_of
from rljax.data.problem import Problem
from rljax.data.prompts import left_pad
from rljax.data.tokenizer import load_tokenizer
from rljax.errors import InputError
from rljax.models import Model, TransformerConfig, transformer_policy
from rljax.models.patches import (
    Patches,
    PatchModel,
    count_earlier_patches,
    patch_policy,
    patches_of,
    pixel_bits,
    position_offsets,
    with_full_table,
)
from rljax.parallel import make_mesh
from rljax.programs.export import export
from rljax.rollout import DecodingEngine, Request, Sampling, Sequences, pack_one_per_row
from rljax.rollout.groups import pad_responses
from rljax.tasks.digits import FONT, DigitsConfig
from rljax.tracking.rows import read_metrics
from rljax.training.config import TrainConfig
from rljax.training.parts.custom_parts import CustomParts
from rljax.training.parts.policy import choose_policy
from rljax.training.parts.tokenizer import make_tokenizer
from rljax.training.setup import encode_problems

TOKENIZER = load_tokenizer(DigitsConfig.tokenizer)
VOCAB = TOKENIZER.vocab_size
SHAPE = TransformerConfig(vocab_size=VOCAB, layers=1, width=16, heads=2, kv_heads=1, head_dim=8, hidden=32)
CONFIG = replace(SHAPE, logit_scale=0.7, logit_cap=4.0)
PATCHES = patches_of(TOKENIZER.encode, PATTERNS, rows=2, columns=2)
READER = PatchModel(Model(CONFIG), PATCHES)
POLICY = patch_policy(CONFIG, PATCHES)
SCORE = jax.jit(POLICY.score, static_argnums=2)
IMAGE = "⡎⡄⠎⠆"
"""An image of 2 x 2 different patches."""
PROMPTS = [f"{IMAGE}{IMAGE}", f"1+{IMAGE}=", "3+4="]


@pytest.fixture(scope="module")
def params():
    """Random parameters of order 1, so that leaving out any part would be noticed."""
    first = POLICY.init(jax.random.key(0))
    leaves, tree = jax.tree.flatten(first)
    keys = jax.random.split(jax.random.key(1), len(leaves))
    return tree.unflatten([x + 0.3 * jax.random.normal(key, x.shape) for x, key in zip(leaves, keys, strict=True)])


def ids(text):
    return jnp.array([TOKENIZER.encode(text)])


def embeddings(params, text):
    """Return the embeddings with patch positions, as the transformer's layers receive them."""
    tokens = ids(text)
    table = with_full_table(READER, params)["embedding"]
    return (table[tokens] + position_offsets(READER, params["patches"], tokens, jnp.ones_like(tokens)))[0]


def test_patch_embedding_is_a_strided_convolution(params):
    image = np.random.default_rng(0).random((8, 4)) < 0.5
    part = params["patches"]
    kernel = np.zeros((4, 2, 1, 16), np.float32)
    for bit, (row, column) in enumerate(DOTS):
        kernel[row, column, 0] = part["projection"][bit]
    convolution = flax.linen.Conv(16, (4, 2), strides=(4, 2), padding="VALID")
    filtered = convolution.apply(
        {"params": {"kernel": kernel, "bias": part["bias"]}}, jnp.asarray(image, jnp.float32)[None, :, :, None]
    )[0]
    expected = filtered + part["row"][:, None] + part["column"][None]
    text = text_of(image.tolist())
    np.testing.assert_allclose(embeddings(params, text), expected.reshape(4, 16), atol=1e-6)


def test_embeddings_of_patches_and_text_match_a_loop(params):
    text = f"7{IMAGE}{IMAGE}+{IMAGE}=3"
    part, characters = params["patches"], [c for c in TOKENIZER.alphabet if c not in PATTERNS]
    expected, before = [], 0
    for character in text:
        if character not in PATTERNS:
            expected.append(np.asarray(params["embedding"][2 + characters.index(character)]))
            before = 0
            continue
        row, column = divmod(before % 4, 2)
        vector = part["bias"] + part["row"][row] + part["column"][column]
        pixels = pixels_of(character, height=4, width=2)
        for bit, (down, right) in enumerate(DOTS):
            vector = vector + part["projection"][bit] * float(pixels[down][right])
        expected.append(np.asarray(vector))
        before += 1
    np.testing.assert_allclose(embeddings(params, text), np.stack(expected), atol=1e-6)


def test_patch_ids_may_be_interleaved_with_text_ids():
    patches = Patches((5, 0, 2, 3), rows=1, columns=1)
    reader = PatchModel(Model(TransformerConfig(7, 4, 1, 1, 1, 4, 8)), patches)
    params = {"embedding": jnp.array([[10.0], [11.0], [12.0]]), "patches": {}}
    params["patches"] = {"projection": jnp.array([[1.0], [2.0]]), "bias": jnp.array([0.5])}
    table = with_full_table(reader, params)["embedding"]
    assert table[:, 0].tolist() == [1.5, 10.0, 2.5, 3.5, 11.0, 0.5, 12.0]
    assert reader.text_row[[1, 4, 6]].tolist() == [0, 1, 2]


def test_patch_positions_restart_after_text_and_per_sequence():
    patch = jnp.array([[1, 1, 0, 1, 1, 1, 0, 1], [0, 0, 1, 1, 1, 1, 1, 1]], bool)
    segments = jnp.array([[1, 1, 1, 1, 1, 2, 2, 2], [0, 0, 1, 1, 1, 1, 1, 1]])
    counted = np.where(patch, count_earlier_patches(patch, segments), -1)
    assert counted.tolist() == [[0, 1, -1, 0, 1, 0, -1, 0], [-1, -1, 0, 1, 2, 3, 4, 5]]


@partial(jax.jit, static_argnames="decoder")
def _first_logits(decoder, weights, tokens, attention):
    logits, state = decoder.begin(weights, tokens, attention, 2)
    return logits, decoder.advance(weights, jnp.array([5]), state)[0]


def first_logits(decoder, weights, text):
    """Return the logits after a prompt, and after one more token."""
    return _first_logits(decoder, weights, *left_pad([TOKENIZER.encode(text)], 8, 0))


@pytest.fixture(scope="module")
def rollout(params):
    """Packed rows and padded arrays of two responses per prompt, sampled at a high temperature."""
    sampling = Sampling(8, (TOKENIZER.eos_token_id,), temperature=1.5)
    requests = [
        Request(tuple(TOKENIZER.encode(PROMPTS[i])), i, i, sampling, seed=10 * i + j) for i in range(3) for j in range(2)
    ]
    responses = DecodingEngine(POLICY.decoder, make_mesh(1, 1, 1), 8).generate(params, requests)
    arrays = pad_responses(responses, 8)
    prompts = left_pad([request.prompt_tokens for request in requests], 8, 0)
    return pack_one_per_row(Sequences(*prompts, arrays["tokens"], arrays["attention"])), arrays


def test_sampler_and_scorer_agree(params, rollout):
    packed, arrays = rollout
    logp = np.asarray(SCORE(params, packed, 1.5).logp)
    np.testing.assert_allclose(np.where(arrays["mask"], logp, 0), arrays["policy_logp"], atol=1e-5)
    assert np.abs(arrays["policy_logp"]).max() > 0.5


def test_patches_have_probability_zero(params, rollout):
    packed, arrays = rollout
    assert not READER.is_patch[arrays["tokens"]].any()
    for found in first_logits(POLICY.decoder, POLICY.decoder.weights(params), PROMPTS[0]):
        assert np.isneginf(found[:, READER.is_patch]).all()
        assert np.isfinite(found[:, ~READER.is_patch]).all()
    with_patches = packed._replace(tokens=np.full_like(packed.tokens, PATCHES.ids[7]))
    logp = SCORE(params, with_patches, 1.5).logp
    assert np.isneginf(np.asarray(logp)[arrays["attention"]]).all()


def test_the_gradient_reaches_every_parameter(params, rollout):
    packed, arrays = rollout

    def loss(params):
        return jnp.where(arrays["mask"], POLICY.score(params, packed, 1.0).logp, 0.0).sum()

    gradient = jax.jit(jax.grad(loss))(params)
    assert set(gradient["patches"]) == {"projection", "bias", "row", "column"}
    assert min(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(gradient)) > 0
    slopes = jnp.abs(gradient["patches"]["projection"]).max(-1)
    black = np.array([pixels_of(c, height=4, width=2) for c in IMAGE]).any(0)
    assert [bool(slope > 0) for slope in slopes] == [bool(black[dot]) for dot in DOTS]


def test_text_alone_matches_the_plain_transformer(params):
    """Without patches, the policy equals the built-in one with the patch vectors in its embedding table."""
    plain = transformer_policy(CONFIG, eos=1)
    theirs = first_logits(plain.decoder, with_full_table(READER, params), "3+4=")
    for own, other in zip(first_logits(POLICY.decoder, POLICY.decoder.weights(params), "3+4="), theirs, strict=True):
        np.testing.assert_allclose(own[:, ~READER.is_patch], other[:, ~READER.is_patch], atol=1e-5)


SMALL = TrainConfig.flat(
    task="digits",
    images=(8, 4),
    layers=1,
    width=16,
    heads=2,
    kv_heads=1,
    hidden=32,
    algorithm="grpo",
    train_problems=40,
    heldout_problems=4,
    max_prompt_tokens=8,
    max_response_tokens=8,
    prompts=4,
    group_size=4,
    minibatches=1,
    steps=2,
    replicas=1,
    quiet=True,
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The result of two training steps with a reward that gives a random model both 0 and 1."""
    run = tmp_path_factory.mktemp("images") / "run"

    def even_length(completions):
        return [float(len(completion) % 2 == 0) for completion in completions]

    return rljax.train(SMALL.replace(run=str(run)), even_length)


def test_two_training_steps_change_the_projection(trained):
    first = choose_policy(SMALL, CustomParts(), make_tokenizer(SMALL), make_mesh(1, 1, 1)).init(jax.random.key(0))
    moved = jax.tree.map(lambda now, before: float(np.abs(now - before).max()), trained.params, first)
    assert min(jax.tree.leaves(moved["patches"])) > 0
    rows = read_metrics(trained.run / "metrics.jsonl")
    assert [row["step"] for row in rows if row["phase"] == "rl"] == [1, 2]


def test_a_run_with_images_can_be_opened_but_not_exported(trained, tmp_path):
    opened = rljax.load(trained.run, which="last", reward="exact")
    texts = opened.sample([f"{IMAGE}{IMAGE}"], count=4, temperature=2.0)[0]
    assert not any(set(text) & set(PATTERNS) for text in texts)
    assert not (trained.run / "best").exists()
    with pytest.raises(InputError, match="a model folder cannot store patch embeddings"):
        export(trained.run, tmp_path / "model")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"images": (8, 5)}, "the width of an image is 5 pixels"),
        ({"model": "somewhere"}, r"images=\(8, 4\) cannot be combined with model='somewhere'"),
        ({"calculator": 0.5}, r"images=\(8, 4\) cannot be combined with calculator=0\.5"),
        ({"tensor": 2}, r"tensor cannot be combined with images=\(8, 4\)"),
        ({"context": 2}, r"context cannot be combined with images=\(8, 4\)"),
        ({"lora_rank": 2}, r"lora_rank cannot be combined with images=\(8, 4\)"),
    ],
)
def test_settings_incompatible_with_images_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        SMALL.replace(**settings)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: patches_of(load_tokenizer("bytes").encode, PATTERNS, rows=1, columns=1), "must be one token of its own"),
        (lambda: patches_of(lambda text: [7] * len(text), PATTERNS, rows=1, columns=1), "must be one token of its own"),
        (lambda: patch_policy(CONFIG, Patches((3, VOCAB), 1, 1)), f"the patch {VOCAB} is not in the vocabulary"),
        (lambda: patch_policy(CONFIG, Patches((3, 3), 1, 1)), "2 patterns of pixels with 1 ids"),
        (lambda: patch_policy(CONFIG, Patches((3, 4), 0, 1)), "an image has 0 x 1 patches"),
        (lambda: pixel_bits(6), "there are 6 patterns of pixels; give a power of 2"),
        (lambda: encode_problems(SMALL, [Problem(IMAGE[:3], "")], TOKENIZER), "has 3 consecutive patches"),
        (lambda: encode_problems(SMALL, [Problem(IMAGE, "", "8⣿")], TOKENIZER), "the demonstration '8⣿' contains an"),
    ],
)
def test_invalid_patches_are_refused(call, message):
    with pytest.raises(InputError, match=message):
        call()


def test_digits_are_readable_without_noise():
    clean, noisy = DigitsConfig(pixel_noise=0.0, train_problems=60), DigitsConfig(pixel_noise=0.15, train_problems=200)
    train, _ = clean.problems(1, seed=0)
    for problem in train:
        left, right = (pixels_of(problem.prompt[part], height=8, width=4) for part in (slice(4), slice(4, 8)))
        digits = [
            next(digit for digit, glyph in FONT.items() if [list(row) for row in glyph] == seen) for seen in (left, right)
        ]
        assert problem.demonstration == f"{digits[0]}+{digits[1]}=#{sum(digits)}"
    assert clean.optimum(train) == 1.0
    assert 0.3 < noisy.optimum(noisy.problems(1, seed=0)[0]) < 0.95
