"""Value models: which tokens a value depends on, initialization from the policy, and saved folders."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from safetensors.numpy import load_file, save_file

from rljax.errors import InputError
from rljax.models import Model, Packed, TransformerConfig, init_params
from rljax.models.huggingface import save_pretrained
from rljax.models.language_model import hidden_states as hidden_states_of
from rljax.models.language_model import positions_of
from rljax.models.model_folder import write_model
from rljax.models.value_model import init_value_params, load_value_model, value_contents, value_model, value_outputs

CONFIG = TransformerConfig(vocab_size=11, width=16, layers=1, heads=2, kv_heads=1, head_dim=8, hidden=32, tied_head=False)
POLICY = Model(CONFIG)
MODEL = value_model(POLICY, 3)
SURPRISAL_MODEL = value_model(POLICY, 1, surprisal=True)
TOKENS = jnp.arange(12).reshape(2, 6) % 11
ATTENTION = jnp.ones((2, 6), bool).at[0, 0].set(False).at[1, 5].set(False)


def hidden_states(model, params, tokens, attention, **options):
    """Return the last hidden states of rows with one sequence each."""
    return hidden_states_of(model, params, tokens, positions_of(attention), attention.astype(jnp.int32), **options)


def outputs_of(model, params, tokens, attention, *, start, logp=None):
    """Return the head's output before each token, from slot `start` on."""
    rows, slots = tokens.shape
    scored = jnp.tile(jnp.arange(start, slots), (rows, 1))
    place = jnp.arange(scored.size).reshape(scored.shape)
    if logp is not None:
        logp = jnp.pad(jnp.where(attention[:, start:], logp, 0.0), ((0, 0), (start, 0)))
    segments = attention.astype(jnp.int32)
    return value_outputs(model, params, Packed(tokens, positions_of(attention), segments, scored, place, logp))


@pytest.fixture(scope="module")
def params():
    return init_value_params(MODEL, jax.random.key(1))


def test_a_value_depends_only_on_the_tokens_before_it(params):
    outputs = outputs_of(MODEL, params, TOKENS, ATTENTION, start=2)
    assert outputs.shape == (2, 4, 3)
    hidden = hidden_states(MODEL.trunk, params["trunk"], TOKENS, ATTENTION)
    by_hand = np.einsum("btd,nd->btn", hidden[:, 1:5], params["head"])
    np.testing.assert_allclose(outputs, by_hand, atol=1e-5)
    other = TOKENS.at[:, 4].set(7)
    changed = np.abs(np.asarray(outputs_of(MODEL, params, other, ATTENTION, start=2) - outputs)).max((0, 2))
    np.testing.assert_array_equal(changed > 1e-6, [False, False, False, True])


def test_a_log_probability_is_an_input_at_its_token():
    params = init_value_params(SURPRISAL_MODEL, jax.random.key(1))
    logp = -jnp.arange(1.0, 9.0).reshape(2, 4)
    outputs = outputs_of(SURPRISAL_MODEL, params, TOKENS, ATTENTION, start=2, logp=logp)
    offset = np.zeros((2, 6, 16), np.float32)
    for row, slot in np.argwhere(np.asarray(ATTENTION)[:, 2:]):
        offset[row, 2 + slot] = logp[row, slot] * params["surprisal"]
    hidden = hidden_states(SURPRISAL_MODEL.trunk, params["trunk"], TOKENS, ATTENTION, offset=offset)
    np.testing.assert_allclose(outputs, hidden[:, 1:5] @ params["head"].T, atol=1e-6)

    unlikely = outputs_of(SURPRISAL_MODEL, params, TOKENS, ATTENTION, start=2, logp=logp.at[:, 1].add(-3.0))
    changed = np.abs(np.asarray(unlikely - outputs)).max((0, 2))
    np.testing.assert_array_equal(changed > 1e-6, [False, False, True, True])  # a value depends on earlier tokens only
    masked = jnp.where(ATTENTION[:, 2:], logp, jnp.nan)
    np.testing.assert_array_equal(outputs_of(SURPRISAL_MODEL, params, TOKENS, ATTENTION, start=2, logp=masked), outputs)
    with pytest.raises(ValueError, match="policy_logp is missing: this critic reads the log-probability"):
        outputs_of(SURPRISAL_MODEL, params, TOKENS, ATTENTION, start=2)


def test_only_a_surprisal_model_learns_from_log_probabilities():
    logp = jnp.where(jax.random.bernoulli(jax.random.key(0), 0.5, (64, 4)), -0.1, -3.0).at[:, 2:].set(-0.1)
    outcome = jnp.where(logp.min(-1) < -1, 0.0, 1.0)  # 0 if any token is unlikely
    tokens, attention = jnp.ones((64, 6), int), jnp.ones((64, 6), bool)
    optimizer = optax.adam(1e-2)

    def error(model, params):
        values = outputs_of(model, params, tokens, attention, start=2, logp=logp)[:, -1, 0]
        return jnp.square(values - outcome).mean()

    def final_error(model):
        @jax.jit
        def step(params, moments):
            gradient = jax.grad(lambda params: error(model, params))(params)
            with jax.numpy_dtype_promotion("standard"):  # Optax computes decay**count, and the count is an integer
                updates, moments = optimizer.update(gradient, moments)
            return optax.apply_updates(params, updates), moments

        params = init_value_params(model, jax.random.key(1))
        moments = optimizer.init(params)
        for _ in range(150):
            params, moments = step(params, moments)
        return float(error(model, params))

    assert final_error(SURPRISAL_MODEL) < 0.02
    assert final_error(value_model(POLICY, 1)) == pytest.approx(float(outcome.var()), rel=0.02)


def test_a_critic_starts_with_the_trunk_of_the_policy():
    policy = init_params(CONFIG, jax.random.key(0))
    critic = init_value_params(MODEL, jax.random.key(1), policy)
    assert "head" not in critic["trunk"]
    hidden = hidden_states(MODEL.trunk, critic["trunk"], TOKENS, ATTENTION)
    np.testing.assert_array_equal(hidden, hidden_states(POLICY, policy, TOKENS, ATTENTION))
    assert critic["trunk"]["embedding"] is not policy["embedding"], "the policy's buffers may be donated"
    fresh = init_value_params(MODEL, jax.random.key(1))
    assert not np.allclose(fresh["trunk"]["embedding"], policy["embedding"])


@pytest.mark.parametrize("original", [MODEL, SURPRISAL_MODEL], ids=["without surprisal", "with surprisal"])
def test_a_saved_model_is_read_back(tmp_path, original):
    params = init_value_params(original, jax.random.key(1))
    write_model(tmp_path, value_contents(original, params, bos=None, eos=1))
    model, loaded = load_value_model(tmp_path, vocab_size=11, size=original.size, surprisal=original.surprisal)
    assert model == original
    jax.tree.map(np.testing.assert_array_equal, loaded, params)
    raw = json.loads((tmp_path / "config.json").read_text())
    assert (raw["architectures"], raw["num_labels"]) == (["LlamaForSequenceClassification"], original.size)


def test_a_folder_is_readable_by_transformers(tmp_path, params):
    torch = pytest.importorskip("torch", reason="parity with transformers needs PyTorch: pip install torch")
    from transformers import AutoModelForSequenceClassification

    write_model(tmp_path, value_contents(MODEL, params, bos=None, eos=1))
    theirs = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    with torch.no_grad():
        hidden = theirs.model(torch.tensor(np.asarray(TOKENS))).last_hidden_state
        scores = theirs.score(hidden).numpy()
    ours = outputs_of(MODEL, params, TOKENS, jnp.ones_like(ATTENTION), start=1)
    np.testing.assert_allclose(ours, scores[:, :-1], atol=2e-4)


def test_incompatible_folders_are_refused(tmp_path, params):
    write_model(tmp_path / "critic", value_contents(MODEL, params, bos=None, eos=1))
    with pytest.raises(InputError, match="gives 3 outputs per token, but the algorithm's value head expects 1"):
        load_value_model(tmp_path / "critic", size=1)
    with pytest.raises(InputError, match="vocabulary of 11 tokens, but the policy's has 12"):
        load_value_model(tmp_path / "critic", vocab_size=12)
    with pytest.raises(InputError, match="does not read log-probabilities, but the configured critic does;"):
        load_value_model(tmp_path / "critic", surprisal=True)
    write_model(
        tmp_path / "surprisal",
        value_contents(SURPRISAL_MODEL, init_value_params(SURPRISAL_MODEL, jax.random.key(1)), bos=None, eos=1),
    )
    with pytest.raises(InputError, match="reads log-probabilities, but the configured critic does not"):
        load_value_model(tmp_path / "surprisal", surprisal=False)
    save_pretrained(tmp_path / "policy", CONFIG, init_params(CONFIG, jax.random.key(0)), bos=None, eos=1)
    with pytest.raises(InputError, match=r"has no 'score.weight', so it is neither a critic nor a reward model"):
        load_value_model(tmp_path / "policy")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("score.weight", r"'score.weight' in .* has shape \(16, 1\), but config.json implies \(N, 16\)"),
        ("surprisal.weight", r"'surprisal.weight' in .* has shape \(1, 16\), but config.json implies \(16,\)"),
        ("model.layers.0.mlp.up_proj.weight", r"up_proj.weight' in .* has shape \(16, 32\), but .* implies \(32, 16\)"),
    ],
)
def test_the_error_names_a_tensor_with_a_wrong_shape(tmp_path, name, message):
    write_model(
        tmp_path, value_contents(SURPRISAL_MODEL, init_value_params(SURPRISAL_MODEL, jax.random.key(1)), bos=None, eos=1)
    )
    tensors = load_file(tmp_path / "model.safetensors")
    tensors[name] = tensors[name].T.copy() if tensors[name].ndim == 2 else tensors[name][None]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(InputError, match=message):
        load_value_model(tmp_path)
