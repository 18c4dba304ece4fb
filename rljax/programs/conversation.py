"""A conversation with a trained policy, whose replies are streamed."""

import sys
from collections.abc import Iterator, Mapping, Sequence

import jax
import numpy as np

from rljax.data.problem import Problem
from rljax.data.prompts import EncodedPrompts
from rljax.data.tokenizer import HuggingFaceTokenizer, completion_text
from rljax.errors import InputError
from rljax.models.huggingface import check_length, locate
from rljax.models.model_folder import read_json
from rljax.programs.trained_policy import OpenPolicy, check_plan_ends
from rljax.rollout.engine import DecodingEngine
from rljax.rollout.engine_protocols import Request
from rljax.rollout.stop_strings import stop_end
from rljax.rollout.token_stream import stream_tokens
from rljax.rollout.worker import RolloutWorker
from rljax.settings.checks import check_seed
from rljax.text import counted

UNFINISHED = "\N{REPLACEMENT CHARACTER}"
"""The character that a decoder returns for incomplete bytes."""


def parts_for_chat(opened: OpenPolicy) -> tuple[HuggingFaceTokenizer, DecodingEngine]:
    """Return the tokenizer and the engine of a policy that can reply to messages.

    Raises:
        InputError: the tokenizer has no chat template, the engine is not the built-in one, or there are several hosts.
    """
    tokenizer, engine = opened.tokenizer, opened.worker.engine
    if not isinstance(tokenizer, HuggingFaceTokenizer) or not tokenizer.inner.chat_template:
        raise InputError(
            "the tokenizer has no chat template, so it cannot format a conversation; use `rljax sample --prompt` to continue text."
        )
    if not isinstance(engine, DecodingEngine) or jax.process_count() > 1:
        raise InputError(
            "a conversation needs the built-in engine in one process; with your own engine, use `rljax sample`."
        )
    return tokenizer, engine


def check_context(opened: OpenPolicy, count: int) -> None:
    """Reject a conversation that leaves the model's context no room for a reply.

    Raises:
        InputError: the model has fewer than `count` positions.
    """
    path = opened.config.model.path
    if path is not None:
        check_length(locate(path), count)
    positions = None if path is None else read_json(locate(path) / "config.json").get("max_position_embeddings")
    if isinstance(positions, int) and count > positions:
        raise InputError(
            f"the conversation and a reply have up to {count} tokens, and the model has {positions} positions; begin a new "
            "conversation, or lower --max-response-tokens."
        )


def stream_reply(
    opened: OpenPolicy,
    worker: RolloutWorker,
    messages: Sequence[Mapping[str, str]],
    *,
    seed: int,
) -> Iterator[str]:
    """Sample a reply to a conversation, and yield its text in pieces. If the token limit ends the reply, print a note to stderr.

    Args:
        opened: the policy.
        worker: the result of `opened.sampler`, with the sampling settings.
        messages: `role` and `content` of each turn so far; the last one is the user's.
        seed: random seed of the reply.

    Yields:
        Pieces of the reply, without special tokens, up to a stop string; joined, they are the text that
        `opened.sample` returns for these tokens.

    Raises:
        InputError: the policy cannot chat, the conversation has the text that ends a plan, or the conversation and a reply are
            longer than the model's context.
    """
    tokenizer, engine = parts_for_chat(opened)
    prompt = tuple(tokenizer.apply_chat_template(messages))
    written = "\n".join(message["content"] for message in messages)
    check_plan_ends(opened.config, EncodedPrompts((Problem(written, ""),), (list(prompt),), dropped=0), tokenizer)
    check_context(opened, len(prompt) + worker.sampling.max_tokens)
    check_seed(seed)
    request = Request(prompt, 0, 0, worker.sampling, seed)
    tokens: list[int] = []
    shown = ""
    stop = worker.sampling.stop
    for new in stream_tokens(engine, opened.params, request):
        tokens += new
        end = stop_end(np.array(tokens), stop, lambda ids: completion_text(tokenizer, ids))
        if end is not None:
            del tokens[end:]
            break
        text = completion_text(tokenizer, tokens)
        if not text.endswith(UNFINISHED):
            yield text[len(shown) :]
            shown = text
    else:
        if tokens[-1] not in worker.sampling.eos_ids:
            print(
                f"note: the reply ends at its limit of {counted(worker.sampling.max_tokens, 'token')}; --max-response-tokens "
                "raises the limit.",
                file=sys.stderr,
            )
    yield completion_text(tokenizer, tokens)[len(shown) :]
