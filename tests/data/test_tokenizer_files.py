"""Tokenizer files saved with weights: `AutoTokenizer` encodes as rljax did, and rljax recognizes its own tokenizers."""

import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from rljax.data.arithmetic import ALPHABET
from rljax.data.tokenizer import ByteTokenizer, CharacterTokenizer, IdTokenizer, load_tokenizer
from rljax.data.tokenizer_files import save_tokenizer_files
from rljax.errors import InputError

LETTERS = "0123 \n\t<pad>eos+=é日🙂"
OWN = {"arithmetic": CharacterTokenizer(), "letters": CharacterTokenizer(LETTERS), "bytes": ByteTokenizer()}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Tokenizer name -> a folder with its files, for each of rljax's own tokenizers."""
    folders_by_name = {name: tmp_path_factory.mktemp(name) for name in OWN}
    for name, folder in folders_by_name.items():
        assert save_tokenizer_files(OWN[name], folder) == ["tokenizer.json", "tokenizer_config.json"]
    return folders_by_name


@pytest.fixture(scope="module")
def theirs(folders):
    return {name: AutoTokenizer.from_pretrained(folder) for name, folder in folders.items()}


def assert_same(ours, theirs, text):
    ids = ours.encode(text)
    assert theirs.encode(text, add_special_tokens=False) == ids
    assert theirs.decode([ours.pad_token_id, *ids, ours.eos_token_id], skip_special_tokens=True) == text


@given(st.text(ALPHABET))
def test_saved_character_tokenizer_ids(theirs, text):
    assert_same(OWN["arithmetic"], theirs["arithmetic"], text)


@given(st.text(LETTERS))
def test_saved_character_tokenizer_special_names_are_text(theirs, text):
    for one in (text, f"<eos>{text}<pad> "):
        assert_same(OWN["letters"], theirs["letters"], one)


@given(st.text())
def test_saved_byte_tokenizer_ids(theirs, text):
    for one in (text, f"<bos>{text}<eos>"):
        assert_same(OWN["bytes"], theirs["bytes"], one)


@given(st.binary())
def test_saved_byte_tokenizer_invalid_bytes(theirs, data):
    ids = [byte + 3 for byte in data]
    assert theirs["bytes"].decode(ids, skip_special_tokens=True) == OWN["bytes"].decode(ids)


@pytest.mark.parametrize("name", OWN)
def test_saved_tokenizer_special_tokens(theirs, name):
    ours, other = OWN[name], theirs[name]
    ends = (other.pad_token_id, other.eos_token_id, other.bos_token_id, len(other))
    assert ends == (ours.pad_token_id, ours.eos_token_id, ours.bos_token_id, ours.vocab_size)
    opening = [] if ours.bos_token_id is None else [ours.bos_token_id]
    assert other("1+1=")["input_ids"] == opening + ours.encode("1+1="), "the ids of a training prompt"


def test_saved_character_tokenizer_unknown_character(theirs):
    with pytest.raises(Exception, match="Missing"):
        theirs["letters"]("x")


@pytest.mark.parametrize("name", OWN)
def test_load_tokenizer_recognizes_own_files(folders, name):
    again = load_tokenizer(str(folders[name]))
    assert type(again) is type(OWN[name])
    assert vars(again) == vars(OWN[name])


def test_load_tokenizer_changed_files(folders, tmp_path):
    changed = AutoTokenizer.from_pretrained(folders["letters"])
    changed.add_tokens(["<tool>"])
    changed.save_pretrained(tmp_path)
    again = load_tokenizer(str(tmp_path))
    assert again.encode("<tool>1") == [len(LETTERS) + 2, OWN["letters"].encode("1")[0]]


def make_word_tokenizer() -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.WordLevel({"</s>": 0, "a": 1, "b": 2}, unk_token="b"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>")


def test_save_tokenizer_files_copies_checkpoint_files(tmp_path):
    source, folder = tmp_path / "source", tmp_path / "model"
    folder.mkdir()
    inner = make_word_tokenizer()
    inner.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    inner.save_pretrained(source)
    raw = json.loads((source / "tokenizer_config.json").read_text())
    (source / "tokenizer_config.json").write_text(json.dumps(raw | {"note": "as it was"}, indent=7))
    (source / "additional_chat_templates").mkdir()
    (source / "additional_chat_templates" / "tool.jinja").write_text("{{ messages }}")
    (source / "model.safetensors").write_text("weights")
    (source / "tokenizer.json").chmod(0o600)
    written = save_tokenizer_files(load_tokenizer(str(source)), folder)
    assert {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"} < set(written)
    assert sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()) == sorted(written)
    assert "additional_chat_templates/tool.jinja" in written
    assert all((folder / file).read_bytes() == (source / file).read_bytes() for file in written)
    assert (folder / "tokenizer.json").stat().st_mode & 0o777 == 0o666 & ~umask()


def umask() -> int:
    """The umask of this process."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_save_tokenizer_files_of_python_tokenizer(tmp_path):
    from rljax.data.tokenizer import HuggingFaceTokenizer

    assert "tokenizer.json" in save_tokenizer_files(HuggingFaceTokenizer(make_word_tokenizer(), "words"), tmp_path)
    assert load_tokenizer(str(tmp_path)).encode("a b") == [1, 2]


def test_save_tokenizer_files_errors(without_type_checks, tmp_path):
    source = tmp_path / "source"
    make_word_tokenizer().save_pretrained(source)
    tokenizer = load_tokenizer(str(source))
    for file in source.iterdir():
        file.unlink()
    with pytest.raises(InputError, match=r"files of the tokenizer .*source' are no longer in .*; restore them"):
        save_tokenizer_files(tokenizer, tmp_path)

    class Foreign(ByteTokenizer.__base__):
        pad_token_id, eos_token_id, bos_token_id, vocab_size = 0, 1, None, 2

    with pytest.raises(InputError, match=r"a Foreign cannot be written as tokenizer.json"):
        save_tokenizer_files(Foreign(), tmp_path)


def test_id_tokenizer(tmp_path):
    tokenizer = IdTokenizer(20, eos=2)
    assert tokenizer.encode("") == []
    assert tokenizer.decode([12, 2]) == "12"
    assert save_tokenizer_files(tokenizer, tmp_path) == []
    for text, wrong in (("1 x", "x"), ("1 20", "20"), ("-1", "-1")):
        with pytest.raises(InputError, match=f"'{wrong}' in .* is not a token id from 0 to 19"):
            tokenizer.encode(text)
    with pytest.raises(InputError, match=r"'9{79}… in .* is not a token id from 0 to 19"):
        tokenizer.encode("9" * 5000)
    with pytest.raises(InputError, match="'ids' is valid only together with a model folder"):
        load_tokenizer("ids")
