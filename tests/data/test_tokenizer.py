"""Tokenizers: round trips, special tokens, and the names that `load_tokenizer` accepts."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import transformers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from rljax.data.arithmetic import ALPHABET, arithmetic
from rljax.data.problem import Problem
from rljax.data.prompts import prompt_tokens
from rljax.data.tokenizer import ByteTokenizer, CharacterTokenizer, HuggingFaceTokenizer, load_tokenizer
from rljax.errors import InputError

SENTENCES = ["the sum of two numbers is a number", "two and two is four", "the answer is 42"]
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


def train(*, opening: bool = False) -> Tokenizer:
    """Train a byte-pair tokenizer; `opening` makes it put <s> before every text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    specials = ["<pad>", "<s>", "</s>"]
    tokenizer.train_from_iterator(
        SENTENCES,
        trainers.BpeTrainer(special_tokens=specials, initial_alphabet=alphabet, vocab_size=290, show_progress=False),
    )
    if opening:
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer


@pytest.fixture
def save(tmp_path):
    """Return a function that saves a tokenizer with the passed special tokens and returns its folder."""

    def _save(*, opening=False, chat_template=None, **special_tokens):
        fast = transformers.PreTrainedTokenizerFast(tokenizer_object=train(opening=opening), **special_tokens)
        fast.chat_template = chat_template
        fast.save_pretrained(tmp_path / "tokenizer")
        return str(tmp_path / "tokenizer")

    return _save


@given(st.text(ALPHABET))
def test_character_tokenizer_round_trip(text):
    tokenizer = CharacterTokenizer()
    ids = tokenizer.encode(text)
    assert len(ids) == len(text)
    assert all(2 <= i < tokenizer.vocab_size for i in ids)
    assert tokenizer.decode([0, 0, *ids, 1, 0]) == text


def test_character_tokenizer_ids_follow_alphabet():
    tokenizer = CharacterTokenizer("ba")
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.bos_token_id, tokenizer.vocab_size) == (0, 1, None, 4)
    assert tokenizer.encode("ab") == [3, 2]
    assert tokenizer.decode([2, 3, 4, 9]) == "ba��"


def test_character_tokenizer_encodes_arithmetic():
    tokenizer = load_tokenizer("characters")
    for problem in arithmetic("train", 20, seed=0, operators="+-*", nesting=1):
        text = problem.prompt + problem.demonstration
        assert tokenizer.decode(tokenizer.encode(text)) == text


@given(st.text())
def test_byte_tokenizer_round_trip(text):
    tokenizer = ByteTokenizer()
    ids = tokenizer.encode(text)
    assert ids == [byte + 3 for byte in text.encode("utf-8")]
    assert tokenizer.decode([0, 1, *ids, 2, 0]) == text


def test_byte_tokenizer_invalid_bytes():
    tokenizer = ByteTokenizer()
    assert (tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.vocab_size) == (0, 1, 2, 259)
    assert tokenizer.decode([0x61 + 3, 0xC3 + 3, 0x62 + 3]) == "a�b"
    assert tokenizer.decode([0x61 + 3, 259, 500, 0x62 + 3]) == "a��b"
    assert tokenizer.decode([258]) == "�"


def test_saved_tokenizer_round_trip(save):
    tokenizer = load_tokenizer(save(bos_token="<s>", eos_token="</s>", pad_token="<pad>"))
    text = "the  sum , of é\n is 42"
    ids = tokenizer.encode(text)
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.vocab_size) == (0, 2, 289)
    assert not set(ids) & {0, 1, 2}
    assert len(ids) < len(text)
    assert tokenizer.decode([0, 1, *ids, 2, 0]) == text
    assert isinstance(tokenizer.inner, transformers.PreTrainedTokenizerBase)


def test_text_that_is_not_utf8_is_refused(save):
    for tokenizer in (ByteTokenizer(), load_tokenizer(save(eos_token="</s>"))):
        with pytest.raises(
            InputError, match=r"^the text 'two\\udcff' has bytes that are not UTF-8, at character 3; give text in UTF-8"
        ):
            tokenizer.encode("two\udcff")


@pytest.mark.parametrize(("opening", "bos"), [(True, 1), (False, None)])
def test_bos_is_the_token_that_is_added(save, opening, bos):
    tokenizer = load_tokenizer(save(opening=opening, bos_token="<s>", eos_token="</s>"))
    assert tokenizer.bos_token_id == bos
    assert 1 not in tokenizer.encode("two")


def test_eos_is_default_pad_token(save):
    tokenizer = load_tokenizer(save(eos_token="</s>"))
    assert tokenizer.pad_token_id == tokenizer.eos_token_id == 2


def test_tokenizer_without_eos(save):
    folder = save(pad_token="<pad>")
    with pytest.raises(
        InputError, match=r"tokenizer' has no end-of-sequence token.*set `eos_token` in its tokenizer_config"
    ):
        load_tokenizer(folder)


def test_chat_template(save):
    pytest.importorskip("jinja2")
    tokenizer = load_tokenizer(save(eos_token="</s>", chat_template=TEMPLATE))
    ids = tokenizer.apply_chat_template([{"role": "system", "content": "add"}, {"role": "user", "content": "2 and 2"}])
    assert tokenizer.decode(ids) == "<system>add<user>2 and 2<assistant>"
    assert all(type(i) is int for i in ids)


def make_bare_tokenizer() -> HuggingFaceTokenizer:
    return HuggingFaceTokenizer(transformers.PreTrainedTokenizerFast(tokenizer_object=train(), eos_token="</s>"), "bare")


def test_missing_chat_template():
    with pytest.raises(InputError, match="'bare' has no chat template; leave out --chat"):
        make_bare_tokenizer().apply_chat_template([{"role": "user", "content": "2"}])


@pytest.mark.parametrize(
    ("raised", "message"),
    [
        (ImportError("needs jinja2"), r"\(ImportError: needs jinja2\); run `pip install jinja2`"),
        (
            KeyError("no\n tool"),
            r"'bare' rejects messages with the roles \['system'\] \(KeyError: .*\); change the messages",
        ),
    ],
)
def test_failing_chat_template(monkeypatch, raised, message):
    def fail(*args, **kwargs):
        raise raised

    tokenizer = make_bare_tokenizer()
    tokenizer.inner.chat_template = TEMPLATE
    monkeypatch.setattr(tokenizer.inner, "apply_chat_template", fail)
    with pytest.raises(InputError, match=message):
        tokenizer.apply_chat_template([{"role": "system", "content": "2"}])


def test_load_tokenizer_names():
    assert isinstance(load_tokenizer("bytes"), ByteTokenizer)
    assert load_tokenizer("characters").alphabet == ALPHABET
    assert load_tokenizer("characters:a:b").alphabet == "a:b"


def test_load_tokenizer_hub_id(monkeypatch):
    names = []

    def from_pretrained(name):
        names.append(name)
        raise OSError("no\n  network")

    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", from_pretrained)
    with pytest.raises(
        InputError, match=r"'some/model' cannot be loaded \(OSError: no network\); check the id and the network"
    ):
        load_tokenizer("some/model")
    assert names == ["some/model"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "the name of the tokenizer is empty"),
        ("characters:", "alphabet of the character tokenizer is empty"),
        ("characters:abca", "'abca' contains 'a' more than once"),
        ("./no/such", "folder './no/such' does not exist"),
        ("a/b/c", "folder 'a/b/c' does not exist"),
    ],
)
def test_invalid_arguments_are_refused(name, message):
    with pytest.raises(InputError, match=message):
        load_tokenizer(name)


def test_load_tokenizer_invalid_folder(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(InputError, match=r"contains no tokenizer .*`--tokenizer bytes`"):
        load_tokenizer(str(tmp_path))
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(InputError, match=r"cannot be loaded \(.*\); repair the folder's tokenizer files"):
        load_tokenizer(str(tmp_path))
    with pytest.raises(InputError, match="is a file; give the folder that contains it"):
        load_tokenizer(str(tmp_path / "tokenizer.json"))


def test_character_tokenizer_unknown_character():
    with pytest.raises(InputError, match=r"the character 'x' in '1x2y' is not in the tokenizer's alphabet '012'"):
        CharacterTokenizer("012").encode("1x2y")
    with pytest.raises(InputError, match=r"in '1{60,}… is"):
        CharacterTokenizer("1").encode("1" * 100 + "?")


def test_importing_data_skips_heavy_packages():
    modules = "sys, rljax.data, rljax.data.tokenizer, rljax.data.problem_datasets"
    code = f"import {modules}; print({{'transformers', 'grain'}} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"


def test_vocab_size_includes_id_gaps():
    inner = Tokenizer(models.WordLevel({"<eos>": 0, "a": 1, "far": 900}, unk_token="a"))
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<eos>")
    assert HuggingFaceTokenizer(fast, "gap").vocab_size == 901


@pytest.mark.parametrize(
    ("single", "prefix"),
    [("<s> $A", [1]), ("<s> <pad> $A", [1, 0]), ("</s> $A", [2]), ("<s> $A </s>", [1]), ("$A </s>", []), ("$A", [])],
)
def test_prefix_is_kept_and_suffix_is_dropped(single, prefix):
    backend = train()
    specials = [("<pad>", 0), ("<s>", 1), ("</s>", 2)]
    backend.post_processor = processors.TemplateProcessing(single=single, special_tokens=specials)
    inner = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>")
    tokenizer = HuggingFaceTokenizer(inner, "prefixed")
    assert tokenizer.prefix_ids == prefix
    assert tokenizer.bos_token_id == (1 if prefix == [1] else None)
    whole = inner("two and two")["input_ids"]
    assert prompt_tokens(Problem("two and two", "4"), tokenizer) == (whole[:-1] if single.endswith("</s>") else whole)


def config_keys_in_source():
    """Keys of tokenizer_config.json that the source code of `transformers` reads."""
    root = Path(transformers.__file__).parent
    text = "".join((root / f"tokenization_utils_{part}.py").read_text() for part in ("base", "tokenizers"))
    return set(re.findall(r'kwargs\.(?:pop|get|setdefault)\("([a-z_]+)"', text)) - {"name_or_path", "tokenizer_file"}


def test_tokenizer_config_keys_match_transformers(save):
    """For each key and value, a prompt has the same ids as in `transformers`, apart from an end token."""
    folder = Path(save(opening=True, bos_token="<s>", eos_token="</s>", pad_token="<pad>"))
    file = folder / "tokenizer_config.json"
    plain = json.loads(file.read_text())
    names = {*transformers.PreTrainedTokenizerFast.SPECIAL_TOKENS_ATTRIBUTES, *plain, "add_bos_token", "add_eos_token"}
    names |= config_keys_in_source()
    assert names >= {
        "split_special_tokens",
        "add_prefix_space",
        "padding_side",
        "clean_up_tokenization_spaces",
        "chat_template",
    }
    count = 0
    for name in sorted(names - {"tokenizer_class", "backend"}):
        for value in (True, False, "the", "</s>", 7):
            file.write_text(json.dumps({**plain, name: value}))
            try:
                theirs = transformers.AutoTokenizer.from_pretrained(folder)
                expected = theirs("the two</s> numbers")["input_ids"]
            except Exception:
                with pytest.raises((InputError, TypeError)):
                    load_tokenizer(str(folder)).encode("the two</s> numbers")
                continue
            if theirs.eos_token_id is None:
                continue
            ours = load_tokenizer(str(folder))
            ids = prompt_tokens(Problem("the two</s> numbers", ""), ours)
            assert expected in (ids, [*ids, theirs.eos_token_id]), (name, value)
            assert (ours.eos_token_id, ours.vocab_size) == (theirs.eos_token_id, len(theirs)), (name, value)
            count += 1
    assert count > 30
