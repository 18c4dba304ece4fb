"""Stop strings: a response ends with the token that completes one, however it is tokenized, and is otherwise unchanged."""

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
from rljax.rollout.stopping import may_have_stopped, stop_end
from rljax.training.config import TrainConfig
from rljax.training.worker import make_sampling

BYTES = ByteTokenizer()


def byte_pairs(*special):
    """A `transformers` tokenizer with tokens of several characters, such as `</` and `ans`, and these special tokens."""
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        special_tokens=["</s>", "<pad>"], initial_alphabet=alphabet, vocab_size=280, show_progress=False
    )
    inner.train_from_iterator(["</answer> answer </ans> an</s >w a</a na<a/n"] * 9, trainer)
    inner.add_special_tokens(list(special))
    return HuggingFaceTokenizer(
        transformers.PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="</s>", pad_token="<pad>"), "pairs"
    )


PAIRS = byte_pairs()


def first_stop(tokens, stop, decode):
    """Number of tokens of the shortest prefix whose text contains a stop string."""
    for count in range(1, len(tokens) + 1):
        if any(string in decode(tokens[:count]) for string in stop):
            return count
    return None


@given(
    st.lists(st.integers(0, 279), min_size=1, max_size=60), st.sampled_from([("a",), ("na", "</"), ("é",), ("\n\n", "ans")])
)
def test_a_response_ends_at_the_first_prefix_that_contains_a_stop_string(tokens, stop):
    assert stop_end(np.array(tokens), stop, PAIRS.decode) == first_stop(tokens, stop, PAIRS.decode)


@pytest.mark.parametrize(
    ("tokenizer", "pieces", "stop"),
    [
        (BYTES, ["ab</answer>", " and"], "</answer>"),
        (BYTES, ["n\u00e9 et \u00e9", "t"], "t \u00e9"),
        (PAIRS, ["so </", "an", "swer>", " it"], "</answer>"),
        (PAIRS, ["so <", "/ans", "wer", ">"], "answer>"),
        (PAIRS, ["\u00e9", " so"], "\u00e9"),
    ],
)
def test_a_stop_string_may_span_tokens(tokenizer, pieces, stop):
    """The text was not encoded in one piece, so the stop string's own tokens do not occur."""
    parts = [tokenizer.encode(piece) for piece in pieces]
    tokens = [token for part in parts for token in part]
    end = stop_end(np.array(tokens), [stop], tokenizer.decode)
    assert end == first_stop(tokens, [stop], tokenizer.decode)
    assert end is not None
    assert stop in tokenizer.decode(tokens[:end])
    assert stop not in tokenizer.decode(tokens[: end - 1])


def test_checking_only_the_last_tokens_finds_the_stop():
    tokens = np.array(BYTES.encode("x" * 50 + "</b>" + "y" * 9))
    assert may_have_stopped(tokens, ("</b>",), BYTES.decode, new=10)
    assert not may_have_stopped(tokens[:53], ("</b>",), BYTES.decode, new=10)
    assert not may_have_stopped(tokens, (), BYTES.decode, new=10)


SHAPE = TransformerConfig(vocab_size=280, width=16, layers=1, heads=2, kv_heads=1, head_dim=8, hidden=32)
POLICY = transformer_policy(SHAPE, eos=0)
BUDGET = 80
"""Long enough for two and a half checks of the text."""


@pytest.fixture(scope="module")
def complete_responses():
    """Requests without stop strings, an engine of 4 rows, and the responses."""
    params = jax.tree.map(lambda x: x * 3, POLICY.init(jax.random.key(0)))
    engine = DecodingEngine(POLICY.decoder, make_mesh(1, 1), 4, 4, PAIRS.decode)
    requests = [Request((5 + i // 2, 9), i // 2, i // 2, Sampling(BUDGET - i % 3, (0,)), seed=i << 40) for i in range(10)]
    return params, engine, requests, engine.generate(params, requests)


def test_a_stopped_response_is_a_prefix_of_the_complete_one(complete_responses):
    """Compares token by token; later requests take over stopped rows, and requests without stop strings are unchanged."""
    params, engine, requests, whole = complete_responses
    texts = [PAIRS.decode(response.tokens) for response in whole]
    readable = ["".join(character for character in text if character.isprintable()).split("\ufffd") for text in texts]
    several = tuple(max(parts, key=len)[:2] for parts in readable)
    stops = [several, (), (texts[2][-2:],), ("never in it",), *[several] * 6]
    with_stops = [
        request._replace(sampling=request.sampling._replace(stop=stop))
        for request, stop in zip(requests, stops, strict=True)
    ]
    found = engine.generate(params, with_stops)
    streamed = {place: one for piece in engine.stream(params, with_stops) for place, one in piece.items()}
    ends = [first_stop(one.tokens.tolist(), stop, PAIRS.decode) for one, stop in zip(whole, stops, strict=True)]
    assert ends[1] is ends[3] is None
    assert sum(end is not None and end < len(one.tokens) for end, one in zip(ends, whole, strict=True)) >= 5
    for place, (one, full, end) in enumerate(zip(found, whole, ends, strict=True)):
        assert one.finish == (full.finish if end is None else "stop"), place
        np.testing.assert_array_equal(one.tokens, full.tokens[:end], err_msg=str(place))
        assert len(one.mask) == len(one.tokens)
        assert one.mask.all()
        for field in ("behaviour_logp", "policy_logp"):
            np.testing.assert_allclose(getattr(one, field), getattr(full, field)[:end], atol=1e-5)
        jax.tree.map(np.testing.assert_array_equal, streamed[place], one)


def test_a_stop_string_at_the_end_of_the_budget_is_not_a_truncation(complete_responses):
    params, engine, requests, whole = complete_responses
    place = next(place for place, one in enumerate(whole) if one.finish == "length")
    last = PAIRS.decode(whole[place].tokens[-1:])
    text = PAIRS.decode(whole[place].tokens)
    stop = next(text[-count:] for count in range(1, len(text)) if text.find(text[-count:]) == len(text) - count)
    assert stop.endswith(last[-1:])
    request = requests[place]._replace(sampling=requests[place].sampling._replace(stop=(stop,)))
    (found,) = engine.generate(params, [request])
    assert (found.finish, len(found.tokens)) == ("stop", len(whole[place].tokens))


def test_an_engine_without_text_refuses_stop_strings(complete_responses):
    params, _, requests, _ = complete_responses
    engine = DecodingEngine(POLICY.decoder, make_mesh(1, 1), 4, 4)
    with pytest.raises(InputError, match=r"^text: stop strings .* got None"):
        engine.generate(params, [requests[0]._replace(sampling=Sampling(4, (0,), stop=("x",)))])


def test_the_setting_reaches_the_requests_and_an_empty_string_is_refused():
    assert make_sampling(TrainConfig.flat(stop=("</a>", "\n\n")), BYTES).stop == ("</a>", "\n\n")
    for stop, message in (("", "stop contains an empty text"), ("a\ufffd", "replacement character stands for bytes")):
        with pytest.raises(InputError, match=message):
            TrainConfig.flat(stop=("ok", stop))


@pytest.mark.parametrize("stop", ["</s>", "so</s>", "<pad>", "<tool>"])
def test_a_special_token_is_refused_because_text_never_contains_it(stop):
    tokenizer = byte_pairs("<tool>")
    assert stop not in tokenizer.decode(tokenizer.encode(stop))
    with pytest.raises(InputError, match=r"is a special token of the tokenizer: .*`eos_token` of tokenizer_config\.json"):
        make_sampling(TrainConfig.flat(stop=("</a>", stop)), tokenizer)
    assert make_sampling(TrainConfig.flat(stop=("</a>", "</", "s>")), tokenizer).stop == ("</a>", "</", "s>")
