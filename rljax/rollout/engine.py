"""The built-in engine: pads requests, decodes them in one jitted program on the mesh, and cuts responses to their lengths."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import PRNGKeyArray, PyTree, UInt32, UInt64

from rljax.data.prompts import left_pad
from rljax.errors import InputError
from rljax.models import Decoder, Params
from rljax.parallel import fetch, put_rows
from rljax.rollout.request import Request, Response, Sampling
from rljax.rollout.sampling import Samples, sample
from rljax.text import one_line


@dataclass(frozen=True)
class DecodingEngine:
    """Samples the responses to all requests of a call together, with the decoder's model.

    Args:
        decoder: how the model reads prompts and tokens.
        mesh: devices that share the rows.
        prompt_length: slots that every prompt is padded to, in tokens; a call with a longer one is padded to a power of two.
    """

    decoder: Decoder
    mesh: Mesh
    prompt_length: int

    def generate(self, params: Params, requests: Sequence[Request]) -> list[Response]:
        """Draw a response to each request; requests with the same sampling settings are decoded together."""
        responses: dict[int, Response] = {}
        for sampling in dict.fromkeys(request.sampling for request in requests):
            places = [place for place, request in enumerate(requests) if request.sampling == sampling]
            drawn = self._draw(params, [requests[place] for place in places], sampling)
            responses |= {place: _response(requests[place], drawn, row) for row, place in enumerate(places)}
        return [responses[place] for place in range(len(requests))]

    def _draw(self, params: Params, requests: Sequence[Request], sampling: Sampling) -> Samples:
        """Sample the requests, as host arrays. Rows are added, so that few batch sizes occur and few programs are compiled."""
        rows = compiled_rows(len(requests), self.mesh.size)
        filled = [*requests, *[requests[0]] * (rows - len(requests))]
        longest = max(len(request.tokens) for request in requests)
        length = self.prompt_length if longest <= self.prompt_length else 1 << (longest - 1).bit_length()
        prompts = left_pad([request.tokens for request in filled], length, pad_id=0)
        placed = put_rows(self.mesh, (*prompts, seed_words([request.seed for request in filled])))
        return fetch(sample(self.decoder, params, *placed, sampling=sampling))


def check_decoder(decoder: Decoder, params: Params, vocab_size: int, *, rows: int, prompt_length: int, budget: int) -> None:
    """Refuse a decoder that cannot be sampled from, without computing anything.

    Raises:
        InputError: `begin` or `advance` cannot be traced, returns logits of another shape, or a state whose shapes change.
    """
    prompts, attention = (jax.ShapeDtypeStruct((rows, prompt_length), kind) for kind in (np.int32, np.bool_))
    token = jax.ShapeDtypeStruct((rows,), np.int32)

    def begin(params: Params, tokens: jax.Array, attention: jax.Array) -> tuple:
        return decoder.begin(params, tokens, attention, budget)

    def advance(params: Params, token: jax.Array, state: PyTree) -> tuple:
        return decoder.advance(params, token, state)

    begun = _traced("begin", begin, params, prompts, attention)
    _check_logits("begin", begun[0], (rows, vocab_size))
    advanced = _traced("advance", advance, params, token, begun[1])
    _check_logits("advance", advanced[0], (rows, vocab_size))
    before, after = (jax.tree.map(lambda leaf: f"{leaf.dtype}{list(leaf.shape)}", state) for _, state in (begun, advanced))
    if before != after:
        raise InputError(
            f"policy.decoder.advance: the new state must have the shapes and dtypes of the old one, {before!s:.200}; got "
            f"{after!s:.200}."
        )


def _traced(name: str, function: Callable, *arguments: PyTree) -> tuple:
    """Shapes of the logits and the state that a decoder's function returns."""
    try:
        logits, state = jax.eval_shape(function, *arguments)
    except Exception as error:  # a decoder is user code and may raise anything
        raise InputError(
            f"policy.decoder.{name}: the decoder needs a function that JAX can trace and that returns logits and a state; got "
            f"{one_line(error):.200}"
        ) from error
    return logits, state


def _check_logits(name: str, logits: jax.ShapeDtypeStruct, expected: tuple[int, int]) -> None:
    if logits.shape != expected:
        raise InputError(
            f"policy.decoder.{name}: the logits must have the shape [B, V] = {list(expected)}; got {list(logits.shape)}."
        )


def compiled_rows(rows: int, devices: int) -> int:
    """Round a number of rows up to a batch size that the devices can share: eight sizes for each doubling.

    Example:
        >>> [compiled_rows(rows, 1) for rows in (7, 64, 100, 384)], compiled_rows(6, 4)
        ([7, 64, 104, 384], 8)
    """
    unit = max(1, (1 << (rows.bit_length() - 1)) // 8)
    rows = -(-rows // unit) * unit
    return -(-rows // devices) * devices


def seed_words(seeds: Sequence[int]) -> UInt32[np.ndarray, "B 2"]:
    """Split 64-bit seeds into their high and low words.

    Example:
        >>> seed_words([3 + (5 << 32)]).tolist()
        [[5, 3]]
    """
    whole = np.asarray(seeds, np.uint64)
    return np.stack([whole >> np.uint64(32), whole & np.uint64(0xFFFFFFFF)], axis=-1).astype(np.uint32)


def draw_seeds(key: PRNGKeyArray, count: int) -> UInt64[np.ndarray, "count"]:
    """Draw `count` 64-bit seeds from a key."""
    words = np.asarray(jax.random.bits(key, (count, 2), np.uint32)).astype(np.uint64)
    return (words[:, 0] << np.uint64(32)) | words[:, 1]


def _response(request: Request, drawn: Samples, row: int) -> Response:
    """Response of one row, without its padding."""
    length = int(drawn.mask[row].sum())
    return Response(
        prompt_id=request.prompt_id,
        group=request.group,
        tokens=np.asarray(drawn.tokens[row, :length]),
        mask=np.asarray(drawn.mask[row, :length]),
        behaviour_logp=np.asarray(drawn.behaviour_logp[row, :length]),
        policy_logp=np.asarray(drawn.policy_logp[row, :length]),
        finish="length" if drawn.truncated[row] else "stop",
    )
