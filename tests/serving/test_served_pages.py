"""Tests of a server with a paged cache: the same tokens, less memory, and no response that runs out of pages."""

import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import jax
import numpy as np
import pytest
from served_model import NAME, make_model, post, serving

from rljax.errors import InputError
from rljax.models.paged_cache import count_free
from rljax.programs.serving import ServeSettings, decoder_of, open_policy
from rljax.serving.decoding_rows import begin_rows, continue_rows, pages_of
from rljax.serving.paged_rows import paged_rows

TEXT = "/v1/completions"
ROWS, POOL = 32, 5
"""Rows of the server, four on each of eight devices; and 64-token pages per device, for 40% of four 192-token rows."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("models") / NAME)


@pytest.fixture(scope="module")
def paged(folder):
    with serving(folder, rows=ROWS, paged_cache=0.4) as (url, served):
        yield url, served


def ask(url, index):
    """Request responses; prompt and settings depend on `index`."""
    prompt = [6 + (index * step) % 90 for step in range(1, 1 + (7 * index) % 110)]
    settings = {"temperature": index % 3 / 2, "seed": index, "n": 1 + index % 2, "max_tokens": 5 + (11 * index) % 60}
    body = post(url, TEXT, prompt=prompt or [7], return_token_ids=True, logprobs=0, **settings).json()
    return [(choice["token_ids"], choice["logprobs"]["token_logprobs"]) for choice in body["choices"]]


def free_pages(served):
    return int(count_free(served.batcher.decoder.rows.state.pages)[1])


def test_paged_server_equals_contiguous_server(folder, paged, monkeypatch):
    url, served = paged
    decoder, free_counts = served.batcher.decoder, []
    original = decoder.proceed
    monkeypatch.setattr(
        decoder, "proceed", lambda *args, **options: (original(*args, **options), free_counts.append(free_pages(served)))[0]
    )
    before = begin_rows._cache_size(), continue_rows._cache_size()
    with ThreadPoolExecutor(24) as pool:
        found = list(pool.map(lambda index: ask(url, index), range(24)))
    assert (begin_rows._cache_size(), continue_rows._cache_size()) == before, "nothing must be compiled"
    assert served.batcher.load[:2] == (0, 0)
    assert decoder.functions.pages == POOL
    assert min(free_counts) < 24, "the test must use most of the pages"
    with serving(folder, rows=ROWS) as (other, _):
        expected = [ask(other, index) for index in range(24)]
    for one, two in zip(found, expected, strict=True):
        for (tokens, logp), (others, other_logp) in zip(one, two, strict=True):
            assert tokens == others
            np.testing.assert_allclose(logp, other_logp, atol=1e-4)


def test_cancelled_responses_free_their_pages(paged):
    url, served = paged
    body = {"model": NAME, "prompt": [9] * 100, "max_tokens": 64, "n": 8, "stop": ["never"]}
    with (
        httpx.Client(timeout=60, trust_env=False) as client,
        client.stream("POST", url + TEXT, json=body | {"stream": True}) as answer,
    ):
        assert next(answer.iter_bytes())
    assert len(ask(url, 3)) == 2
    done = threading.Event()
    for _ in range(100):
        if served.batcher.load[:2] == (0, 0):
            break
        done.wait(0.05)
    served.batcher.decoder.proceed(np.ones(ROWS, bool), wants_top=False)
    assert free_pages(served) == 8 * POOL


def test_choose_row_needs_pages_for_the_longest_response(paged):
    decoder = paged[1].batcher.decoder
    assert pages_of(192) == 4
    assert decoder.choose_row([192, 0, 0, 0, *[192] * 4, *[0] * 4, *[192] * 20], 192) == 8, (
        "row 8 is on a device with five free pages"
    )
    assert decoder.choose_row([192, 0, 0, 0] * 8, 100) is None, "100 tokens need two pages, and each device has only one"
    assert decoder.choose_row([192, 0, 0, 0] * 8, 50) == 1
    assert decoder.choose_row([50] * ROWS, 1) is None, "no row is free"


def test_paged_cache_has_the_requested_size(folder):
    sizes = {}
    for share in (None, 0.4):
        settings = ServeSettings(str(folder), context=1024, max_response_tokens=64, rows=64, paged_cache=share)
        decoder = decoder_of(open_policy(settings, str(folder)), settings)
        sizes[share] = sum(leaf.nbytes for leaf in jax.tree.leaves(decoder.rows.state))
    assert 0.4 <= sizes[0.4] / sizes[None] < 0.45


def test_invalid_paged_cache_is_rejected(folder):
    settings = ServeSettings(str(folder), paged_cache=1.5)
    opened = open_policy(settings, str(folder))
    with pytest.raises(InputError, match=r"paged_cache is 1\.5"):
        decoder_of(opened, settings)
    with pytest.raises(InputError, match=r"paged_cache=0\.5 needs a decoder with `paged`"):
        paged_rows(opened.policy.decoder._replace(paged=None), opened.mesh, 8, 64, 0.5)
