"""Encoding prompts and demonstrations as arrays, and the order of a prompt stream."""

import numpy as np
import pytest
import transformers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from rljax.data.arithmetic import arithmetic
from rljax.data.chat import ChatFormat
from rljax.data.problem import Problem
from rljax.data.prompts import (
    PromptStream,
    check_has_token,
    encode_demonstrations,
    encode_prompts,
    left_pad,
    move_turns_to_demonstration,
    prompt_tokens,
    response_tokens,
    right_pad,
)
from rljax.data.tokenizer import ByteTokenizer, CharacterTokenizer, HuggingFaceTokenizer
from rljax.data.turns import encode_messages
from rljax.errors import InputError

PROBLEMS = [Problem("1+1=", "2", "#2"), Problem("10+10=", "20", "10+10=20;#20"), Problem("2+3=", "5", "2+3=5;#5")]
token_rows = st.lists(st.lists(st.integers(0, 99), max_size=6), min_size=1, max_size=5)


class ChatTokenizer(ByteTokenizer):
    """A byte tokenizer whose chat template writes `role:content|` for each message."""

    def apply_chat_template(self, messages):
        return self.encode("".join(f"{m['role']}:{m['content']}|" for m in messages))


def test_encode_prompts_drops_long_prompts():
    tokenizer = CharacterTokenizer()
    encoded = encode_prompts(PROBLEMS, tokenizer, max_length=4)
    assert encoded.problems == (PROBLEMS[0], PROBLEMS[2])
    assert encoded.tokens == (tokenizer.encode("1+1="), tokenizer.encode("2+3="))
    assert encoded.dropped == 1
    assert encode_prompts(PROBLEMS, tokenizer, max_length=6).dropped == 0


def test_encode_prompts_adds_bos():
    tokenizer = ByteTokenizer()
    encoded = encode_prompts(PROBLEMS, tokenizer, max_length=6)
    assert encoded.tokens[0] == [tokenizer.bos_token_id, *tokenizer.encode("1+1=")]
    assert (len(encoded.tokens), encoded.dropped) == (2, 1)


def test_encode_prompts_applies_chat_template():
    messages = ({"role": "system", "content": "add"}, {"role": "user", "content": "1+1="})
    problems = [PROBLEMS[0], Problem("add\n1+1=", "2", messages=messages)]
    encoded = encode_prompts(problems, ChatTokenizer(), max_length=99, chat=True)
    assert [ChatTokenizer().decode(tokens) for tokens in encoded.tokens] == ["user:1+1=|", "system:add|user:1+1=|"]
    assert ChatTokenizer.bos_token_id not in encoded.tokens[0]
    assert encode_prompts(problems, ChatTokenizer(), max_length=99).tokens[0] == [1, *ByteTokenizer().encode("1+1=")]


@pytest.mark.parametrize(
    ("problems", "arguments", "message"),
    [
        (
            PROBLEMS,
            {"max_length": 3},
            "longer than the limit of 3 tokens: the shortest has 4; raise the limit to at least 4",
        ),
        ([], {"max_length": 3}, "no problems to encode as prompts; give"),
        ([], {"max_length": 3, "name": "held-out prompt"}, "no problems to encode as held-out prompts; give"),
        (PROBLEMS, {"max_length": 9, "chat": True}, "a CharacterTokenizer has no chat template"),
    ],
)
def test_invalid_arguments_are_refused(problems, arguments, message):
    with pytest.raises(InputError, match=message):
        encode_prompts(problems, CharacterTokenizer(), **arguments)


def test_check_has_token_refuses_empty_prompt():
    empty = Problem("", "1")
    encoded = encode_prompts([empty], CharacterTokenizer(), max_length=9)
    assert encoded.tokens == ([],)
    with pytest.raises(InputError, match="the prompt '' has no token, but a response must follow one"):
        check_has_token(empty, encoded.tokens[0])
    check_has_token(empty, encode_prompts([empty], ByteTokenizer(), max_length=9).tokens[0])


@given(token_rows)
def test_padding(rows):
    for pad, add_fill in ((left_pad, lambda row, fill: fill + row), (right_pad, lambda row, fill: row + fill)):
        tokens, mask = pad(rows, 6, 7)
        assert (tokens.dtype, mask.dtype) == (np.int32, np.bool_)
        assert tokens.tolist() == [add_fill(row, [7] * (6 - len(row))) for row in rows]
        assert mask.tolist() == [add_fill([True] * len(row), [False] * (6 - len(row))) for row in rows]


@pytest.mark.parametrize("pad", [left_pad, right_pad])
def test_padding_refuses_long_row(pad):
    with pytest.raises(ValueError, match="row 1 has 3 tokens, more than the length 2"):
        pad([[1], [1, 2, 3]], 2, 0)


def test_encode_demonstrations_padding():
    tokenizer = CharacterTokenizer()
    arrays = encode_demonstrations(PROBLEMS, tokenizer, prompt_length=5, response_length=12)
    assert arrays.dropped == 1
    for row, problem in enumerate((PROBLEMS[0], PROBLEMS[2])):
        prompt = arrays.prompt_tokens[row][arrays.prompt_attention[row]]
        response = arrays.response_tokens[row][arrays.response_attention[row]]
        assert prompt.tolist() == tokenizer.encode(problem.prompt)
        assert response.tolist() == [*tokenizer.encode(problem.demonstration), tokenizer.eos_token_id]
    assert arrays.prompt_attention.tolist() == [[False] + [True] * 4] * 2
    assert arrays.response_attention.sum(-1).tolist() == [3, 9]
    assert arrays.response_attention[0].tolist() == [True] * 3 + [False] * 6
    assert arrays.response_tokens.shape == (2, 9), "the width is the longest response that fits"


def test_encode_demonstrations_drops_long_rows():
    assert encode_demonstrations(PROBLEMS, CharacterTokenizer(), 6, 8).dropped == 2
    assert encode_demonstrations(PROBLEMS, CharacterTokenizer(), 6, 13).dropped == 0
    assert encode_demonstrations(PROBLEMS, CharacterTokenizer(), 5, 13).dropped == 1
    with pytest.raises(InputError, match="every demonstration is longer than the limit of 2 tokens: the shortest has 3"):
        encode_demonstrations(PROBLEMS, CharacterTokenizer(), 6, 2)
    with pytest.raises(InputError, match="every prompt is longer than the limit of 2"):
        encode_demonstrations(PROBLEMS, CharacterTokenizer(), 2, 9)
    with pytest.raises(InputError, match="the problem 'a' has no demonstration"):
        encode_demonstrations([*PROBLEMS, Problem("a", "1")], CharacterTokenizer(), 9, 99)


def test_encode_demonstrations_with_chat():
    arrays = encode_demonstrations(PROBLEMS[:1], ChatTokenizer(), 20, 9, chat=True)
    assert ChatTokenizer().decode(arrays.prompt_tokens[0]) == "user:1+1=|"


def test_encode_demonstrations_of_arithmetic():
    problems = arithmetic("train", 50, seed=0)
    arrays = encode_demonstrations(problems, CharacterTokenizer(), 12, 48)
    assert (arrays.dropped, arrays.prompt_tokens.shape) == (0, (50, 12))


@pytest.mark.parametrize("size", [1, 2, 7, 300])
def test_prompt_stream_epoch_has_every_record_once(size):
    stream = PromptStream(range(size), seed=0)
    for epoch in range(4):
        assert sorted(stream.indices(epoch * size, size)) == list(range(size))
    assert sorted(stream.indices(0, 3 * size)) == sorted([*range(size)] * 3)


def test_prompt_stream_epochs_differ():
    stream = PromptStream(range(300), seed=0)
    beginnings = {tuple(stream.indices(300 * epoch, 10)) for epoch in range(8)}
    assert len(beginnings) == 8
    assert tuple(range(10)) not in beginnings


def test_prompt_stream_seeds_do_not_share_epochs():
    streams = [PromptStream(range(300), seed=seed) for seed in range(6)]
    beginnings = {tuple(stream.indices(300 * epoch, 10)) for stream in streams for epoch in range(6)}
    assert len(beginnings) == 36


@given(st.integers(0, 1000), st.integers(0, 40), st.integers(0, 40))
def test_prompt_stream_resumes_at_position(position, first, second):
    whole = PromptStream(range(300), seed=3).indices(position, first + second)
    resumed = PromptStream(range(300), seed=3).indices(position + first, second)
    assert whole[first:] == resumed
    assert len(whole) == first + second
    assert all(0 <= i < 300 for i in whole)


def test_prompt_stream_take():
    stream = PromptStream("abcde", seed=1)
    assert stream.take(3, 9) == ["abcde"[i] for i in stream.indices(3, 9)]


def test_prompt_stream_invalid_arguments():
    with pytest.raises(InputError, match="no records to sample from"):
        PromptStream([], seed=0)
    with pytest.raises(InputError, match="seed of the data order is -1"):
        PromptStream("a", seed=-1)
    for position, count in ((-1, 2), (2, -1)):
        with pytest.raises(ValueError, match=f"must not be negative, got {position} and {count}"):
            PromptStream("a", seed=0).indices(position, count)


def make_sentence_piece(template, *, legacy):
    """A tokenizer that begins a text with a space: with `legacy`, as Llama 2 also after special tokens, else only at the start."""
    characters = dict.fromkeys(["<unk>", "<s>", "</s>", *"▁abcdefghijklmnopqrstuvwxyz0123456789[]/INST?.+=", "▁4", "▁42"])
    merges = [("▁", "4"), ("▁4", "2")]
    inner = Tokenizer(models.BPE({token: index for index, token in enumerate(characters)}, merges, unk_token="<unk>"))
    if legacy:
        inner.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        inner.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    inner.decoder = decoders.Metaspace(prepend_scheme="first")
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, additional_special_tokens=["<s>"], eos_token="</s>", bos_token="<s>", unk_token="<unk>"
    )
    fast.chat_template = template
    return HuggingFaceTokenizer(fast, "pieces", chat=ChatFormat(is_used=True))


DIALOGUE = (
    "<s>{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
    "{% else %}|{{ m.content }}</s>{% endif %}{% endfor %}"
)


@pytest.mark.parametrize("legacy", [True, False])
@pytest.mark.parametrize("space", ["", " "])
@pytest.mark.parametrize("question", ["a+b?", "a+b?" * 200])
def test_responses_have_the_ids_of_the_joint_text(legacy, space, question):
    tokenizer = make_sentence_piece(DIALOGUE.replace("|", space), legacy=legacy)
    messages = [{"role": role, "content": text} for role, text in (("user", question), ("assistant", "42")) * 2]
    first, second = Problem(question, "42", "42"), Problem(question, "42", "42", messages=tuple(messages[:3]))
    for problem, count in ((first, 2), (second, 4), (move_turns_to_demonstration(second), 4)):
        ids = prompt_tokens(problem, tokenizer, chat=True) + response_tokens(problem, tokenizer, chat=True)[0]
        assert ids == tokenizer.encode(tokenizer.render(messages[:count], opens_turn=False))
    ids, mask = response_tokens(move_turns_to_demonstration(second), tokenizer, chat=True)
    between = encode_messages(tokenizer, first, "42", messages[2:3])
    assert between == [token for token, is_trained in zip(ids, mask, strict=True) if not is_trained]
    plain = prompt_tokens(first, tokenizer) + response_tokens(first, tokenizer)[0]
    assert plain == tokenizer.encode(f"{question}42</s>")


def test_response_that_merges_with_its_prompt_is_encoded_separately():
    tokenizer = make_sentence_piece(DIALOGUE, legacy=True)
    assert tokenizer.encode("a 42")[-1] == tokenizer.encode("42")[0], "the space and the number are one token"
    assert response_tokens(Problem("a ", "42", "42"), tokenizer)[0] == [*tokenizer.encode("42"), tokenizer.eos_token_id]


def test_prompt_tokens_with_and_without_chat():
    chat = Problem("add\n1+1=", "2", messages=({"role": "user", "content": "1+1="},))
    assert prompt_tokens(chat, ByteTokenizer()) == [1, *ByteTokenizer().encode("add\n1+1=")]
    assert prompt_tokens(chat, ChatTokenizer(), chat=True) == ByteTokenizer().encode("user:1+1=|")
