"""Tests of stop strings: a response ends with the token that completes a stop string, and is otherwise unchanged."""

import jax
import numpy as np
import pytest
import transformers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from rljax.data.tokenizer import ByteTokenizer, HuggingFaceTokenizer
from rljax.errors import InputError
from rljax.models import transformer_policy
from rljax.models.config import TransformerConfig
from rljax.parallel import make_mesh
from rljax.rollout import DecodingEngine, Request, Sampling
from rljax.rollout.stop_strings import may_have_stopped, stop_end
from rljax.training.config import TrainConfig
from rljax.training.worker import make_sampling

BYTES = ByteTokenizer()


def make_bpe_tokenizer(*special):
    """Train a `transformers` BPE tokenizer with tokens such as `</` and `ans`, and with the special tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        special_tokens=["</s>", "<pad>"], initial_alphabet=alphabet, vocab_size=280, show_progress=False
    )
    tokenizer.train_from_iterator(["</answer> answer </ans> an</s >w a</a na<a/n"] * 9, trainer)
    tokenizer.add_special_tokens(list(special))
    return HuggingFaceTokenizer(
        transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", pad_token="<pad>"), "pairs"
    )


BPE = make_bpe_tokenizer()


def first_stop(tokens, stop, decode):
    """Return the number of tokens in the shortest prefix whose text contains a stop string."""
    for count in range(1, len(tokens) + 1):
        if any(string in decode(tokens[:count]) for string in stop):
            return count
    return None


@given(
    st.lists(st.integers(0, 279), min_size=1, max_size=60), st.sampled_from([("a",), ("na", "</"), ("é",), ("\n\n", "ans")])
)
def test_stop_end_finds_the_shortest_prefix(tokens, stop):
    assert stop_end(np.array(tokens), stop, BPE.decode) == first_stop(tokens, stop, BPE.decode)


@pytest.mark.parametrize(
    ("tokenizer", "pieces", "stop"),
    [
        (BYTES, ["ab</answer>", " and"], "</answer>"),
        (BYTES, ["n\u00e9 et \u00e9", "t"], "t \u00e9"),
        (BPE, ["so </", "an", "swer>", " it"], "</answer>"),
        (BPE, ["so <", "/ans", "wer", ">"], "answer>"),
        (BPE, ["\u00e9", " so"], "\u00e9"),
    ],
)
def test_stop_string_may_span_tokens(tokenizer, pieces, stop):
    """The pieces are encoded separately, so the stop string is tokenized differently than on its own."""
    parts = [tokenizer.encode(piece) for piece in pieces]
    tokens = [token for part in parts for token in part]
    end = stop_end(np.array(tokens), [stop], tokenizer.decode)
    assert end == first_stop(tokens, [stop], tokenizer.decode)
    assert end is not None
    assert stop in tokenizer.decode(tokens[:end])
    assert stop not in tokenizer.decode(tokens[: end - 1])


def test_may_have_stopped_checks_only_new_tokens():
    tokens = np.array(BYTES.encode("x" * 50 + "</b>" + "y" * 9))
    assert may_have_stopped(tokens, ("</b>",), BYTES.decode, new=10)
    assert not may_have_stopped(tokens[:53], ("</b>",), BYTES.decode, new=10)
    assert not may_have_stopped(tokens, (), BYTES.decode, new=10)


SHAPE = TransformerConfig(vocab_size=280, width=16, layers=1, heads=2, kv_heads=1, head_dim=8, hidden=32)
POLICY = transformer_policy(SHAPE, eos=0)
BUDGET = 80
"""Token budget, during which the text is checked for stop strings about two and a half times."""


@pytest.fixture(scope="module")
def complete_responses():
    """Parameters, an engine with 4 rows, requests without stop strings, and their responses."""
    params = jax.tree.map(lambda x: x * 3, POLICY.init(jax.random.key(0)))
    engine = DecodingEngine(POLICY.decoder, make_mesh(1, 1), 4, 4, BPE.decode)
    requests = [Request((5 + i // 2, 9), i // 2, i // 2, Sampling(BUDGET - i % 3, (0,)), seed=i << 40) for i in range(10)]
    return params, engine, requests, engine.generate(params, requests)


def test_stopped_response_is_a_prefix_of_the_complete_response(complete_responses):
    """Later requests reuse the rows of stopped responses. Responses to requests without stop strings are unchanged."""
    params, engine, requests, complete = complete_responses
    texts = [BPE.decode(response.tokens) for response in complete]
    readable = ["".join(character for character in text if character.isprintable()).split("\ufffd") for text in texts]
    stop_strings = tuple(max(parts, key=len)[:2] for parts in readable)
    stops = [stop_strings, (), (texts[2][-2:],), ("never in it",), *[stop_strings] * 6]
    with_stops = [
        request._replace(sampling=request.sampling._replace(stop=stop))
        for request, stop in zip(requests, stops, strict=True)
    ]
    stopped = engine.generate(params, with_stops)
    streamed = {index: one for piece in engine.stream(params, with_stops) for index, one in piece.items()}
    ends = [first_stop(one.tokens.tolist(), stop, BPE.decode) for one, stop in zip(complete, stops, strict=True)]
    assert ends[1] is ends[3] is None
    assert sum(end is not None and end < len(one.tokens) for end, one in zip(ends, complete, strict=True)) >= 5
    for index, (one, full, end) in enumerate(zip(stopped, complete, ends, strict=True)):
        assert one.finish == (full.finish if end is None else "stop"), index
        np.testing.assert_array_equal(one.tokens, full.tokens[:end], err_msg=str(index))
        assert len(one.mask) == len(one.tokens)
        assert one.mask.all()
        for field in ("behaviour_logp", "policy_logp"):
            np.testing.assert_allclose(getattr(one, field), getattr(full, field)[:end], atol=1e-5)
        jax.tree.map(np.testing.assert_array_equal, streamed[index], one)


def test_stop_string_at_the_end_of_the_budget_is_no_truncation(complete_responses):
    params, engine, requests, complete = complete_responses
    index = next(index for index, one in enumerate(complete) if one.finish == "length")
    last = BPE.decode(complete[index].tokens[-1:])
    text = BPE.decode(complete[index].tokens)
    stop = next(text[-count:] for count in range(1, len(text)) if text.find(text[-count:]) == len(text) - count)
    assert stop.endswith(last[-1:])
    request = requests[index]._replace(sampling=requests[index].sampling._replace(stop=(stop,)))
    (stopped,) = engine.generate(params, [request])
    assert (stopped.finish, len(stopped.tokens)) == ("stop", len(complete[index].tokens))


def test_engine_without_decoder_rejects_stop_strings(complete_responses):
    params, _, requests, _ = complete_responses
    engine = DecodingEngine(POLICY.decoder, make_mesh(1, 1), 4, 4)
    with pytest.raises(InputError, match=r"^text: stop strings .* got None"):
        engine.generate(params, [requests[0]._replace(sampling=Sampling(4, (0,), stop=("x",)))])


def test_stop_setting_is_passed_on_or_rejected():
    assert make_sampling(TrainConfig.flat(stop=("</a>", "\n\n")), BYTES).stop == ("</a>", "\n\n")
    for stop, message in (
        ("", "stop contains an empty text"),
        ("a\ufffd", "replacement character stands for bytes"),
        ("a\udcff", "whose surrogate or replacement character"),
    ):
        with pytest.raises(InputError, match=message):
            TrainConfig.flat(stop=("ok", stop))


@pytest.mark.parametrize("stop", ["</s>", "so</s>", "<pad>", "<tool>"])
def test_special_token_is_rejected_as_stop_string(stop):
    tokenizer = make_bpe_tokenizer("<tool>")
    assert stop not in tokenizer.decode(tokenizer.encode(stop))
    with pytest.raises(InputError, match=r"includes the special token .*`eos_token` of tokenizer_config\.json"):
        make_sampling(TrainConfig.flat(stop=("</a>", stop)), tokenizer)
    assert make_sampling(TrainConfig.flat(stop=("</a>", "</", "s>")), tokenizer).stop == ("</a>", "</", "s>")
