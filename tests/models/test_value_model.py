"""A transformer that values: where it looks, what it is copied from, and the folder it comes back from."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.errors import InputError
from rljax.models import Model, TransformerConfig, init_params
from rljax.models.huggingface import save_pretrained
from rljax.models.language_model import hidden_states
from rljax.models.value_model import (
    ValueModel,
    init_value_params,
    load_value_model,
    save_value_model,
    value_model,
    value_outputs,
)

CONFIG = TransformerConfig(vocab_size=11, width=16, layers=1, heads=2, kv_heads=1, head_dim=8, hidden=32, tied_head=False)
POLICY = Model(CONFIG)
MODEL = value_model(POLICY, 3)
TOKENS = jnp.arange(12).reshape(2, 6) % 11
VALID = jnp.ones((2, 6), bool).at[0, 0].set(False).at[1, 5].set(False)


@pytest.fixture(scope="module")
def params():
    return init_value_params(MODEL, jax.random.key(1))


def test_values_stand_before_their_tokens(params):
    outputs = value_outputs(MODEL, params, TOKENS, VALID, start=2)
    assert outputs.shape == (2, 4, 3)
    hidden = hidden_states(MODEL.trunk, params["trunk"], TOKENS, VALID)
    by_hand = np.einsum("btd,nd->btn", hidden[:, 1:5], params["head"])
    np.testing.assert_allclose(outputs, by_hand, atol=1e-5)
    other = TOKENS.at[:, 4].set(7)
    changed = np.abs(np.asarray(value_outputs(MODEL, params, other, VALID, start=2) - outputs)).max((0, 2))
    np.testing.assert_array_equal(changed > 1e-6, [False, False, False, True])


def test_a_critic_of_the_policy_has_its_trunk():
    policy = init_params(CONFIG, jax.random.key(0))
    critic = init_value_params(MODEL, jax.random.key(1), policy)
    assert "head" not in critic["trunk"]
    hidden = hidden_states(MODEL.trunk, critic["trunk"], TOKENS, VALID)
    np.testing.assert_array_equal(hidden, hidden_states(POLICY, policy, TOKENS, VALID))
    assert critic["trunk"]["embedding"] is not policy["embedding"], "the policy's buffers may be donated"
    fresh = init_value_params(MODEL, jax.random.key(1))
    assert not np.allclose(fresh["trunk"]["embedding"], policy["embedding"])


def test_a_folder_gives_the_same_model_back(tmp_path, params):
    save_value_model(tmp_path, MODEL, params, bos=None, eos=1)
    model, loaded = load_value_model(tmp_path, like=MODEL)
    assert model == MODEL
    jax.tree.map(np.testing.assert_array_equal, loaded, params)
    raw = json.loads((tmp_path / "config.json").read_text())
    assert (raw["architectures"], raw["num_labels"]) == (["LlamaForSequenceClassification"], 3)


def test_a_folder_is_what_transformers_reads(tmp_path, params):
    torch = pytest.importorskip("torch", reason="parity with transformers needs PyTorch (rljax[parity])")
    from transformers import AutoModelForSequenceClassification

    save_value_model(tmp_path, MODEL, params, bos=None, eos=1)
    theirs = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    with torch.no_grad():
        hidden = theirs.model(torch.tensor(np.asarray(TOKENS))).last_hidden_state
        scores = theirs.score(hidden).numpy()
    ours = value_outputs(MODEL, params, TOKENS, jnp.ones_like(VALID), start=1)
    np.testing.assert_allclose(ours, scores[:, :-1], atol=2e-4)


def test_what_does_not_fit_is_refused(tmp_path, params):
    save_value_model(tmp_path / "critic", MODEL, params, bos=None, eos=1)
    with pytest.raises(InputError, match="gives 3 numbers a token and the algorithm's value head reads 1"):
        load_value_model(tmp_path / "critic", like=value_model(POLICY, 1))
    larger = ValueModel(Model(TransformerConfig(**{**vars(CONFIG), "vocab_size": 12})), 3)
    with pytest.raises(InputError, match="vocabulary of 11 tokens and the policy one of 12"):
        load_value_model(tmp_path / "critic", like=larger)
    save_pretrained(tmp_path / "policy", CONFIG, init_params(CONFIG, jax.random.key(0)), bos=None, eos=1)
    with pytest.raises(InputError, match=r"has no 'score.weight', so it is no critic and no reward model"):
        load_value_model(tmp_path / "policy")
