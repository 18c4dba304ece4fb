"""A server with keys and values in pages: the same tokens, fewer bytes, and no response that runs out of pages."""

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
from rljax.serving.paged_rows import paged_rows
from rljax.serving.rows import begin_rows, continue_rows, pages_of

TEXT = "/v1/completions"
ROWS, POOL = 32, 5
"""Rows of the server, four on each of eight devices, and pages of a device: 0.4 of 4 rows of 192 tokens, 64 tokens per page."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("models") / NAME)


@pytest.fixture(scope="module")
def paged(folder):
    with serving(folder, rows=ROWS, paged_cache=0.4) as (url, served):
        yield url, served


def ask(url, place):
    """Request a response with settings that differ for each place."""
    prompt = [6 + (place * step) % 90 for step in range(1, 1 + (7 * place) % 110)]
    settings = {"temperature": place % 3 / 2, "seed": place, "n": 1 + place % 2, "max_tokens": 5 + (11 * place) % 60}
    body = post(url, TEXT, prompt=prompt or [7], return_token_ids=True, logprobs=0, **settings).json()
    return [(choice["token_ids"], choice["logprobs"]["token_logprobs"]) for choice in body["choices"]]


def free_pages(served):
    return int(count_free(served.batcher.decoder.rows.state.pages)[1])


def test_responses_equal_those_of_contiguous_rows_while_requests_wait_for_pages(folder, paged, monkeypatch):
    url, served = paged
    decoder, fewest = served.batcher.decoder, []
    original = decoder.proceed
    monkeypatch.setattr(
        decoder, "proceed", lambda *args, **options: (original(*args, **options), fewest.append(free_pages(served)))[0]
    )
    before = begin_rows._cache_size(), continue_rows._cache_size()
    with ThreadPoolExecutor(24) as pool:
        found = list(pool.map(lambda place: ask(url, place), range(24)))
    assert (begin_rows._cache_size(), continue_rows._cache_size()) == before, "nothing is compiled"
    assert served.batcher.load[:2] == (0, 0)
    assert decoder.functions.pages == POOL
    assert min(fewest) < 24, "most pages are in use"
    with serving(folder, rows=ROWS) as (other, _):
        expected = [ask(other, place) for place in range(24)]
    for one, two in zip(found, expected, strict=True):
        for (tokens, logp), (others, other_logp) in zip(one, two, strict=True):
            assert tokens == others
            np.testing.assert_allclose(logp, other_logp, atol=1e-4)


def test_pages_of_cancelled_responses_are_free_again(paged):
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


def test_a_row_is_chosen_where_its_longest_response_fits(paged):
    decoder = paged[1].batcher.decoder
    assert pages_of(192) == 4
    assert decoder.choose_row([192, 0, 0, 0, *[192] * 4, *[0] * 4, *[192] * 20], 192) == 8, (
        "on a device with five free pages"
    )
    assert decoder.choose_row([192, 0, 0, 0] * 8, 100) is None, "two pages, and one is free on each device"
    assert decoder.choose_row([192, 0, 0, 0] * 8, 50) == 1
    assert decoder.choose_row([50] * ROWS, 1) is None, "no row is free"


def test_the_cache_takes_the_chosen_share(folder):
    sizes = {}
    for share in (None, 0.4):
        settings = ServeSettings(str(folder), context=1024, most_tokens=64, rows=64, paged_cache=share)
        decoder = decoder_of(open_policy(settings, str(folder)), settings)
        sizes[share] = sum(leaf.nbytes for leaf in jax.tree.leaves(decoder.rows.state))
    assert 0.4 <= sizes[0.4] / sizes[None] < 0.45


def test_bad_shares_and_models_without_pages_are_refused(folder):
    settings = ServeSettings(str(folder), paged_cache=1.5)
    opened = open_policy(settings, str(folder))
    with pytest.raises(InputError, match=r"paged_cache is 1\.5"):
        decoder_of(opened, settings)
    with pytest.raises(InputError, match=r"paged_cache=0\.5 needs a decoder with `paged`"):
        paged_rows(opened.policy.decoder._replace(paged=None), opened.mesh, 8, 64, 0.5)
