"""Every key of tokenizer_config.json acts as in transformers, tested on all arguments of its tokenizer class."""

import inspect
import json
import re

import pytest
from chat_models import save_chat_model
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from rljax.data.chat import ChatFormat
from rljax.data.tokenizer import HuggingFaceTokenizer, load_tokenizer
from rljax.errors import InputError

SPECIAL = tuple(PreTrainedTokenizerBase.SPECIAL_TOKENS_ATTRIBUTES)
OTHER_KEYS = tuple(re.findall(r'kwargs\.pop\("(\w+)"', inspect.getsource(PreTrainedTokenizerBase.__init__)))
KEYS = sorted({*SPECIAL, *OTHER_KEYS, "add_bos_token", "add_eos_token", "add_prefix_space"})
TEXT = " two  words <s>, a turn<end>"
VALUES = (True, "<u>", "left", ["<u>"], 700, {"image_token": "<u>"})
"""Values of several types; each key accepts at least one of them."""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_chat_model(tmp_path_factory.mktemp("tokenizer") / "model")


@pytest.mark.parametrize("key", KEYS)
def test_config_key_matches_transformers(model, key):
    file = model / "tokenizer_config.json"
    before = file.read_text()
    accepted = 0
    try:
        for value in VALUES:
            file.write_text(json.dumps(json.loads(before) | {key: value}))
            try:
                theirs = AutoTokenizer.from_pretrained(model)
                ids = theirs.encode(TEXT, add_special_tokens=False)
            except (TypeError, ValueError, AttributeError, KeyError):
                continue
            if theirs.eos_token == "left":  # transformers adds this as a new token, which no model has learned
                with pytest.raises(InputError, match="has eos_token 'left', which is not in its vocabulary"):
                    load_tokenizer(str(model))
                continue
            ours = load_tokenizer(str(model))
            assert list(ours.encode(TEXT)) == ids
            assert ours.eos_token_id == theirs.eos_token_id
            assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
            accepted += 1
    finally:
        file.write_text(before)
    assert accepted


def test_chat_template_with_split_special_tokens(model):
    inner = AutoTokenizer.from_pretrained(model, split_special_tokens=True)
    tokenizer = HuggingFaceTokenizer(inner, "model", chat=ChatFormat(is_used=True))
    with pytest.raises(InputError, match="sets split_special_tokens, so the special tokens of its chat template"):
        tokenizer.apply_chat_template([{"role": "user", "content": "a"}])
