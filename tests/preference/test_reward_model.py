"""A reward model's scores, its folder, and the reward function built from it."""

import json
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from digit_pairs import digit_pairs, texts

from rljax.data.preferences import Preference
from rljax.data.prompts import right_pad
from rljax.data.tokenizer import ByteTokenizer, CharacterTokenizer
from rljax.data.tokenizer_note import REWARD_NOTE, folder_tokenizer
from rljax.errors import InputError
from rljax.models import Model, TransformerConfig, init_params
from rljax.models.huggingface import save_pretrained
from rljax.models.language_model import hidden_states
from rljax.models.model_folder import write_model
from rljax.models.value_model import init_value_params, load_value_model, value_contents, value_model
from rljax.parallel import make_mesh
from rljax.preference.pair_update import encode_pairs, evaluate_on_pairs
from rljax.preference.reward_model import (
    RewardModel,
    load_reward_model,
    make_reward_function,
    make_score,
    save_reward_model,
    score_sequences,
    sequence_tokens,
)
from rljax.rewards.correctness import Failed
from rljax.rewards.reward_scores import judge

TOKENIZER = CharacterTokenizer()
SHAPE = TransformerConfig(vocab_size=TOKENIZER.vocab_size, width=16, layers=1, heads=2, kv_heads=2, head_dim=8, hidden=32)
MODEL = value_model(Model(SHAPE), 1)
ONE = make_mesh(1, 1)
SCORE = jax.jit(partial(score_sequences, MODEL))
HELDOUT = digit_pairs(200, 1)


@pytest.fixture(scope="module")
def params():
    return init_value_params(MODEL, jax.random.key(0))


@pytest.fixture(scope="module")
def saved(params, tmp_path_factory):
    """The folder of a reward model with random weights."""
    folder = tmp_path_factory.mktemp("models") / "random"
    save_reward_model(folder, RewardModel(MODEL, params, TOKENIZER, chat=False))
    return folder


def test_score_is_the_head_at_the_last_token(params):
    tokens = np.array([3, 5, 7, 4, TOKENIZER.eos_token_id], np.int32)
    positions, segments = np.arange(5)[None], np.ones((1, 5), np.int32)
    hidden = jax.jit(partial(hidden_states, MODEL.trunk))(params["trunk"], tokens[None], positions, segments)
    expected = float(np.asarray(hidden)[0, -1] @ np.asarray(params["head"])[0])
    rows, attention = np.full((3, 8), 9, np.int32), np.zeros((3, 8), bool)
    for row, begin in enumerate((0, 2, 3)):
        rows[row, begin : begin + 5], attention[row, begin : begin + 5] = tokens, True
    scores = SCORE(params, rows, attention)
    np.testing.assert_allclose(scores, expected, atol=1e-6)
    without_end = SCORE(params, rows, attention & (rows != TOKENIZER.eos_token_id))
    assert np.abs(np.asarray(without_end) - expected).min() > 1e-4


def test_sequences_end_with_eos():
    assert sequence_tokens("1+1=", "2", TOKENIZER, chat=False) == [*TOKENIZER.encode("1+1=2"), TOKENIZER.eos_token_id]
    byte_tokens = sequence_tokens("1+1=", "2", ByteTokenizer(), chat=False)
    assert (byte_tokens[0], byte_tokens[-1], len(byte_tokens)) == (
        ByteTokenizer.bos_token_id,
        ByteTokenizer.eos_token_id,
        7,
    )
    with pytest.raises(InputError, match="has no chat template"):
        sequence_tokens("1+1=", "2", TOKENIZER, chat=True)


@pytest.mark.parametrize(("mesh", "rows"), [((1, 1), 1), ((1, 1), 5), ((2, 4), 3)])
def test_scores_are_independent_of_batch_padding_and_mesh(params, mesh, rows):
    sequences = [sequence_tokens("7=", "1" * n, TOKENIZER, chat=False) for n in (30, 1, 12, 13, 2, 3, 9)]
    one_by_one = [float(SCORE(params, *right_pad([row], 64, 0))[0]) for row in sequences]
    mesh = make_mesh(*mesh)
    found = make_score(MODEL, mesh, rows=rows)(params, sequences)
    np.testing.assert_allclose(found, one_by_one, atol=1e-5)
    assert make_score(MODEL, mesh, rows=rows)(params, []).shape == (0,)


def test_saved_model_gives_the_same_scores(saved, params):
    raw = json.loads((saved / "config.json").read_text())
    assert (raw["architectures"], raw["num_labels"]) == (["LlamaForSequenceClassification"], 1)
    again = load_reward_model(saved)
    assert (again.chat, again.tokenizer.alphabet) == (False, TOKENIZER.alphabet)
    encoded = encode_pairs(HELDOUT, TOKENIZER, max_tokens=32)
    score = make_score(again.model, ONE)
    assert evaluate_on_pairs(score, again.params, encoded) == evaluate_on_pairs(score, params, encoded)


def test_half_precision_scores_are_close(saved):
    prompts, completions = texts(HELDOUT[:16])
    exact = make_reward_function(saved, ONE)(prompts=prompts, completions=completions)
    coarse = make_reward_function(saved, ONE, dtype="bfloat16")(prompts=prompts, completions=completions)
    np.testing.assert_allclose(coarse, exact, atol=0.05 * np.abs(exact).max())
    assert coarse != exact


def test_tokenizer_is_saved_with_the_model(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    from transformers import PreTrainedTokenizerFast

    from rljax.data.tokenizer import HuggingFaceTokenizer

    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"</s>": 0, "a": 1, "b": 2}, unk_token="b"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    inner = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="</s>")
    shape = replace(SHAPE, vocab_size=3)
    model = value_model(Model(shape), 1)
    params = init_value_params(model, jax.random.key(0))
    save_reward_model(tmp_path, RewardModel(model, params, HuggingFaceTokenizer(inner, "words"), chat=True))
    again = load_reward_model(tmp_path)
    assert again.chat
    assert again.tokenizer.encode("a b") == [1, 2]
    answers = make_reward_function(tmp_path, ONE)(prompts=["b"], completions=["a a"])
    assert "has no chat template" in answers[0].reason
    assert load_reward_model(tmp_path, chat=False).chat, "the folder's setting overrides the argument"


class ChatCharacterTokenizer(CharacterTokenizer):
    """A tokenizer whose chat template writes a plus after each message."""

    def apply_chat_template(self, messages):
        return [token for message in messages for token in self.encode(message["content"] + "+")]


def test_chats_are_scored_with_the_chat_template(tmp_path, params):
    write_model(tmp_path, value_contents(MODEL, params, bos=None, eos=1))
    chat = ({"role": "system", "content": "1"}, {"role": "user", "content": "2"})
    arguments = {"prompts": ["1\n2", "3"], "completions": ["4", "5"]}
    found = make_reward_function(tmp_path, ONE, tokenizer=ChatCharacterTokenizer(), chat=True, chats={"1\n2": chat})(
        **arguments
    )
    sequences = [[*TOKENIZER.encode(text), 1] for text in ("1+2+4", "3+5")]
    np.testing.assert_allclose(found, make_score(MODEL, ONE)(params, sequences), atol=1e-6)
    pair = Preference("1\n2", "4", "5", chat)
    assert encode_pairs([pair], ChatCharacterTokenizer(), max_tokens=9, chat=True).chosen == sequences[:1]


def test_folder_of_another_library_needs_a_tokenizer(tmp_path, params):
    write_model(tmp_path, value_contents(MODEL, params, bos=None, eos=1))
    with pytest.raises(InputError, match="contains no tokenizer"):
        load_reward_model(tmp_path)
    assert load_reward_model(tmp_path, tokenizer=TOKENIZER, chat=True).chat
    with pytest.raises(InputError, match=r"has a vocabulary of \d+ tokens, but the tokenizer has 259"):
        load_reward_model(tmp_path, tokenizer=ByteTokenizer())


def test_mismatched_vocabulary_is_refused(saved):
    with pytest.raises(InputError, match=r"trained on a vocabulary of \d+ tokens, but the tokenizer has 4; .*'characters:"):
        make_reward_function(saved, ONE, tokenizer=CharacterTokenizer("01"))
    with pytest.raises(InputError, match=r"vocabulary of \d+ tokens, but the tokenizer has 259"):
        make_reward_function(saved, ONE, tokenizer=ByteTokenizer())


def test_folders_that_are_not_a_reward_model_are_refused(without_type_checks, tmp_path):
    several = value_model(Model(SHAPE), 3)
    write_model(
        tmp_path / "critic", value_contents(several, init_value_params(several, jax.random.key(0)), bos=None, eos=1)
    )
    with pytest.raises(InputError, match="gives 3 numbers per token, but a reward model gives 1"):
        load_reward_model(tmp_path / "critic")
    reader = value_model(Model(SHAPE), 1, surprisal=True)
    write_model(tmp_path / "reader", value_contents(reader, init_value_params(reader, jax.random.key(0)), bos=None, eos=1))
    with pytest.raises(InputError, match="reads the policy's log-probabilities, but a reward model reads only text"):
        load_reward_model(tmp_path / "reader")
    with pytest.raises(ValueError, match="must read only text"):
        score_sequences(*load_value_model(tmp_path / "reader"), jnp.ones((1, 4), int), jnp.ones((1, 4), bool))
    policy = init_params(SHAPE, jax.random.key(0))
    save_pretrained(tmp_path / "policy", SHAPE, policy, bos=None, eos=1)
    with pytest.raises(InputError, match=r"has no 'score\.weight'"):
        load_reward_model(tmp_path / "policy")
    with pytest.raises(InputError, match="does not exist"):
        load_reward_model("./nowhere")
    (tmp_path / "critic" / REWARD_NOTE).write_text('{"tokenizer": "bytes"}')
    with pytest.raises(InputError, match=r"rljax_reward\.json cannot be read .*train the model again"):
        folder_tokenizer(tmp_path / "critic")

    class Foreign(CharacterTokenizer.__base__):
        pad_token_id, eos_token_id, bos_token_id, vocab_size = 0, 1, None, 2

    with pytest.raises(InputError, match="a Foreign cannot be named in a model's folder"):
        save_reward_model(tmp_path / "none", RewardModel(MODEL, {}, Foreign(), chat=False))
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("rows", [3, 32])
def test_reward_is_the_score(saved, rows, params):
    reward = make_reward_function(saved, ONE, rows=rows)
    prompts, completions = texts(HELDOUT[:20])
    prompts, completions = [*prompts, "7="], [*completions, "1" * 40]
    sequences = [sequence_tokens(*pair, TOKENIZER, chat=False) for pair in zip(prompts, completions, strict=True)]
    direct = make_score(load_value_model(saved)[0], ONE, rows=8)(params, sequences)
    np.testing.assert_allclose(reward(prompts=prompts, completions=completions), direct, atol=1e-5)
    assert reward(prompts=[], completions=[]) == []
    scores = judge(reward, prompts, completions, {"answer": [""] * len(prompts)})
    np.testing.assert_allclose(scores.total, direct, atol=1e-5)
    assert list(scores.parts) == ["reward_model"]


def test_unencodable_completions_fail(saved):
    answers = make_reward_function(saved, ONE)(prompts=["7=", "7=", "7="], completions=["1", "é", "111"])
    assert isinstance(answers[1], Failed)
    assert "'é'" in answers[1].reason
    expected = make_reward_function(saved, ONE)(prompts=["7=", "7="], completions=["1", "111"])
    np.testing.assert_allclose([answers[0], answers[2]], expected, atol=1e-6)
    scores = judge(make_reward_function(saved, ONE), ["7="] * 12, ["1"] * 11 + ["é"], {})
    assert scores.valid.tolist() == [True] * 11 + [False]
