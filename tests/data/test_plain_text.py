"""Plain text: files become rows, and their tokens become blocks; the expected token streams are built by hand."""

import numpy as np
import pytest

from rljax.data.plain_text import is_text, text_dataset
from rljax.data.problem import Problem
from rljax.data.problem_datasets import read_problems
from rljax.data.text_blocks import cut_blocks
from rljax.data.tokenizer import ByteTokenizer, load_tokenizer
from rljax.errors import InputError


def documents(*texts):
    return [Problem(str(number), "", columns={"text": text}) for number, text in enumerate(texts)]


@pytest.mark.parametrize("length", [1, 3, 4, 50])
def test_cut_blocks_predicts_each_token_once(length):
    """Each block must be a slice of the stream built by hand, preceded by the token before the slice."""
    tokenizer = ByteTokenizer()
    bos, eos = tokenizer.bos_token_id, tokenizer.eos_token_id
    stream = [bos, *tokenizer.encode("héllo"), eos, bos, *tokenizer.encode("you"), eos]
    blocks = cut_blocks(documents("héllo", "you"), tokenizer, length)
    predicted = [
        token for row, mask in zip(blocks.response_tokens, blocks.response_mask, strict=True) for token in row[mask]
    ]
    assert predicted == stream[1:]
    assert blocks.prompt_tokens[:, 0].tolist() == stream[:-1:length]
    assert np.array_equal(blocks.response_mask, blocks.response_attention)
    assert blocks.response_tokens.shape[1] == length


def test_cut_blocks_without_bos_starts_with_eos():
    tokenizer = load_tokenizer("characters")
    assert tokenizer.bos_token_id is None
    blocks = cut_blocks(documents("1+2", "3"), tokenizer, 8)
    eos = tokenizer.eos_token_id
    assert blocks.prompt_tokens.tolist() == [[eos]]
    assert blocks.response_tokens[0].tolist() == [*tokenizer.encode("1+2"), eos, *tokenizer.encode("3"), eos, *([0] * 2)]


def test_text_dataset_holds_out_last_tenth_of_each_file(tmp_path):
    first, second = tmp_path / "one.txt", tmp_path / "two words.txt"
    first.write_text("\ufeff" + "a" * 90 + "b" * 10, encoding="utf-8")
    second.write_text("c" * 47 + "d" * 5, encoding="utf-8")
    name = text_dataset([first, second])
    assert is_text(name)
    assert not is_text(str(first))
    train, heldout = (read_problems(name, split=split).problems for split in ("train", "test"))
    assert [problem.columns["text"] for problem in train] == ["a" * 90, "c" * 47]
    assert [problem.columns["text"] for problem in heldout] == ["b" * 10, "d" * 5]
    assert len({problem.prompt for problem in (*train, *heldout)}) == 4


def test_unusable_text_files(tmp_path):
    short, binary = tmp_path / "short.txt", tmp_path / "binary.txt"
    short.write_text("123456789")
    binary.write_bytes(b"\xff\xfe\x00" * 20)
    for file, message in (
        (short, "too little text to hold out a tenth"),
        (binary, "not in UTF-8"),
        (tmp_path / "absent.txt", "does not exist"),
    ):
        with pytest.raises(InputError, match=message):
            read_problems(text_dataset([file]))
    with pytest.raises(
        InputError, match=r"'text:it's\.txt', cannot be split into words as in a shell|\"text:it's\.txt\", cannot be split"
    ):
        read_problems("text:it's.txt")
    with pytest.raises(InputError, match="name at least one file"):
        read_problems("text:")


def test_text_dataset_rejects_jsonl_file(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text('{"text": "one two three"}\n' * 9)
    with pytest.raises(InputError, match="contains rows, and their braces and column names would be learned as text"):
        read_problems(text_dataset([file]))
