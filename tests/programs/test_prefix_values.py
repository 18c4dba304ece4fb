"""A reward model's values of complete responses and prefixes; tests/test_cli_inference.py tests the critic's values."""

import jax
import numpy as np
import pytest

from rljax.data.problem import Problem
from rljax.data.tokenizer import CharacterTokenizer
from rljax.errors import InputError
from rljax.models import Model, TransformerConfig
from rljax.models.value_model import init_value_params, value_model
from rljax.parallel import make_mesh
from rljax.preference.reward_model import RewardModel, make_reward_function, save_reward_model, sequence_tokens
from rljax.programs.prefix_values import critic_value, reward_model_value
from rljax.rollout.continuations import Prefix

TOKENIZER = CharacterTokenizer()
SHAPE = TransformerConfig(vocab_size=TOKENIZER.vocab_size, width=16, layers=1, heads=2, kv_heads=2, head_dim=8, hidden=32)
MODEL = value_model(Model(SHAPE), 1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder of a reward model with random weights."""
    path = tmp_path_factory.mktemp("models") / "random"
    save_reward_model(path, RewardModel(MODEL, init_value_params(MODEL, jax.random.key(0)), TOKENIZER, chat=False))
    return path


def make_prefix(text, *, ended):
    return Prefix(Problem("1+1=", "2"), (), (), text, (), ended)


def test_only_complete_responses_have_an_end_token(folder):
    mesh = make_mesh(1, 1)
    value, reward = reward_model_value(str(folder), mesh, chat=False), make_reward_function(folder, mesh)
    texts = ["1+1=2;#2", "#3", "1"]
    complete = value([make_prefix(text, ended=True) for text in texts])
    np.testing.assert_allclose(complete, reward(["1+1="] * 3, texts), atol=1e-6)
    unfinished = value([make_prefix(text, ended=False) for text in texts])
    assert np.abs(unfinished - complete).min() > 1e-4
    assert sequence_tokens("1+1=", "#3", TOKENIZER, chat=False)[-1] == TOKENIZER.eos_token_id


def test_text_outside_the_alphabet_has_no_value(folder):
    value = reward_model_value(str(folder), make_mesh(1, 1), chat=False)
    assert np.isnan(value([make_prefix("two", ended=True), make_prefix("#2", ended=True)])).tolist() == [True, False]


@pytest.mark.usefixtures("without_type_checks")
def test_model_folder_has_no_critic(folder):
    with pytest.raises(InputError, match="is not the folder of a run, so it has no critic; give model:FOLDER instead"):
        critic_value(None, folder)
