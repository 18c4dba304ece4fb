"""Responses in OpenAI's format, complete or streamed: text, log-probabilities, tool calls and token counts."""

import json
import secrets
import time
from codecs import getincrementaldecoder
from collections.abc import Sequence
from typing import Any, Literal

from rljax.data.token_texts import special_texts, token_bytes, token_name
from rljax.data.tokenizer import Tokenizer, completion_text
from rljax.data.tool_calls import read_turn
from rljax.serving.batching import Piece

UNFINISHED = "\N{REPLACEMENT CHARACTER}"
"""What a decoder writes in place of bytes that are not a complete character yet."""
Kind = Literal["chat.completion", "text_completion"]


def possible_stop_length(text: str, stop: Sequence[str]) -> int:
    """Return how many characters at the end of a text could be the beginning of a stop string.

    Example:
        >>> possible_stop_length("one </", ["</b>"]), possible_stop_length("one", ["</b>"])
        (2, 0)
    """
    most = max((len(string) - 1 for string in stop), default=0)
    ends = (text[-length:] for length in range(min(most, len(text)), 0, -1))
    return next((len(end) for end in ends if any(string.startswith(end) for string in stop)), 0)


def cut_at_stop(text: str, stop: Sequence[str]) -> str:
    """Return the text before the first stop string.

    Example:
        >>> cut_at_stop("one two", ["two", "e t"])
        'on'
    """
    return text[: min((index for index in map(text.find, stop) if index >= 0), default=len(text))]


class Choice:
    """One response, built up as its tokens arrive.

    Args:
        tokenizer: tokenizer of the model.
        kind: whether the response is a chat turn or a text completion.
        index: the response's index in the request.
        prompt: token ids of the prompt.
        stop: strings that end the response; they are not part of the returned text.
        has_tools: whether the text may contain tool calls, which are parsed once the response has ended.
    """

    def __init__(
        self, tokenizer: Tokenizer, kind: Kind, index: int, prompt: tuple[int, ...], stop: Sequence[str], *, has_tools: bool
    ):
        self.tokenizer, self.index, self.prompt, self.stop = tokenizer, index, prompt, stop
        self.kind: Kind = kind
        self.has_tools = has_tools
        self.tokens: list[int] = []
        self.logp: list[float] = []
        self.behaviour_logp: list[float] = []
        self.top: list[list[tuple[int, float]]] = []
        self.finish: str | None = None
        self.version = -1
        self.versions: list[int] = []
        self.notes: dict[str, Any] = {}
        self.sent_text = ""
        self.sent_tokens = 0
        self.bytes_of: dict[int, bytes] = {}

    def add(self, piece: Piece) -> None:
        """Add new tokens."""
        self.tokens += piece.tokens
        self.logp += piece.logp
        self.behaviour_logp += piece.behaviour_logp
        self.top += piece.top
        self.versions += [piece.version] * len(piece.tokens)
        self.finish, self.version = piece.finish, piece.version

    @property
    def text(self) -> str:
        """The text so far, up to the first stop string."""
        is_chat = self.kind == "chat.completion"
        text = completion_text(self.tokenizer, self.tokens) if is_chat else self.tokenizer.decode(self.tokens)
        return cut_at_stop(text, self.stop)

    def without_content(self) -> "Choice":
        """Return the response without its content, with OpenAI's finish reason for filtered content."""
        empty = Choice(self.tokenizer, self.kind, self.index, self.prompt, self.stop, has_tools=False)
        empty.finish, empty.version = "content_filter", self.version
        return empty

    def new_text(self) -> str:
        """Return the text that can be sent and has not been sent yet, and mark it as sent."""
        if self.has_tools and self.finish is None:
            return ""
        text = self.text
        if self.finish is None:
            text = text[: len(text) - possible_stop_length(text, self.stop)]
            if text.endswith(UNFINISHED):
                return ""
        new, self.sent_text = text[len(self.sent_text) :], text
        return new

    def message(self) -> dict[str, Any]:
        """Return the complete turn, with its tool calls. If a call cannot be read, all calls stay part of the text."""
        if not self.has_tools:
            return {"role": "assistant", "content": self.text}
        turn = read_turn(self.tokenizer, self.tokens, is_first=True)
        if not turn.calls or turn.malformed:
            return {"role": "assistant", "content": self.text}
        calls = [
            {
                "index": index,
                "id": f"call_{secrets.token_hex(8)}",
                "type": "function",
                "function": {"name": call.name, "arguments": json.dumps(dict(call.arguments), ensure_ascii=False)},
            }
            for index, call in enumerate(turn.calls)
        ]
        return {"role": "assistant", "content": cut_at_stop(turn.content, self.stop) or None, "tool_calls": calls}

    def to_json(self, *, has_logprobs: bool, has_token_ids: bool) -> dict[str, Any]:
        """Return the complete response as an entry of `choices`."""
        body = {"message": self.message()} if self.kind == "chat.completion" else {"text": self.text}
        return self._entry(body, 0, has_logprobs=has_logprobs, has_token_ids=has_token_ids)

    def chunk(self, *, has_logprobs: bool, has_token_ids: bool) -> dict[str, Any] | None:
        """Return what has not been sent yet, as an entry of `choices` in a stream; None if there is nothing to send."""
        if self.has_tools:
            if self.finish is None:
                return None
            body: dict[str, Any] = {"delta": self.message()}
        else:
            text = self.new_text()
            if not (text or self.finish or has_token_ids):
                return None
            delta = {"content": text} if self.sent_tokens else {"role": "assistant", "content": text}
            body = {"delta": delta} if self.kind == "chat.completion" else {"text": text}
        entry = self._entry(body, self.sent_tokens, has_logprobs=has_logprobs, has_token_ids=has_token_ids)
        self.sent_tokens = len(self.tokens)
        return entry

    def _entry(self, body: dict[str, Any], start: int, *, has_logprobs: bool, has_token_ids: bool) -> dict[str, Any]:
        calls = body.get("message", body.get("delta", {})).get("tool_calls")
        entry = {
            "index": self.index,
            **body,
            "finish_reason": "tool_calls" if calls and self.finish == "stop" else self.finish,
            "logprobs": self._logprobs(start) if has_logprobs else None,
            "weights_version": self.version,
            **self.notes,
        }
        if has_token_ids:
            entry |= {"token_ids": self.tokens[start:], "sampler_logprobs": self.behaviour_logp[start:]}
            entry |= {"token_versions": self.versions[start:]}
            entry |= {} if start else {"prompt_token_ids": list(self.prompt)}
        return entry

    def _logprobs(self, start: int) -> dict[str, Any]:
        tops = [[(self._bytes(token), value) for token, value in row] for row in self.top[start:]]
        contents, values = [self._bytes(token) for token in self.tokens[start:]], self.logp[start:]
        if self.kind == "text_completion":
            # Reversed, because later entries replace earlier ones, and among tokens with the same text the most likely must remain.
            top = [{token_name(content): value for content, value in reversed(row)} for row in tops] if any(tops) else None
            names = [*map(token_name, contents)]
            return {"tokens": names, "token_logprobs": values, "top_logprobs": top, "text_offset": self._offsets()[start:]}
        rows = [[_token_entry(content, value) for content, value in row] for row in tops]
        triples = zip(contents, values, rows, strict=True)
        entries = [_token_entry(content, value) | {"top_logprobs": row} for content, value, row in triples]
        return {"content": entries, "refusal": None}

    def _offsets(self) -> list[int]:
        """Return the number of characters in the text before each token."""
        decoder, special, count, offsets = getincrementaldecoder("utf-8")("replace"), special_texts(self.tokenizer), 0, []
        for token in self.tokens:
            offsets.append(count)
            count += len(decoder.decode(b"" if token in special else self._bytes(token)))
        return offsets

    def _bytes(self, token: int) -> bytes:
        if token not in self.bytes_of:
            self.bytes_of[token] = token_bytes(self.tokenizer, token)
        return self.bytes_of[token]


def _token_entry(content: bytes, value: float) -> dict[str, Any]:
    return {"token": token_name(content), "logprob": value, "bytes": list(content)}


def new_id(kind: Kind) -> str:
    """Generate an identifier for a response."""
    return ("chatcmpl-" if kind == "chat.completion" else "cmpl-") + secrets.token_hex(12)


def envelope(
    kind: Kind, response_id: str, model: str, choices: Sequence[dict[str, Any]], *, is_chunk: bool
) -> dict[str, Any]:
    """Wrap choices in the body of a response.

    Args:
        kind: kind of the response.
        response_id: identifier of the response.
        model: name of the model.
        choices: entries of `choices`.
        is_chunk: whether the body is part of a stream.
    """
    versions = [choice["weights_version"] for choice in choices]
    kind_name = "chat.completion.chunk" if is_chunk and kind == "chat.completion" else kind
    body = {"id": response_id, "object": kind_name, "created": int(time.time()), "model": model, "choices": list(choices)}
    return body | ({"weights_version": min(versions)} if versions else {})


def usage_of(choices: Sequence[Choice]) -> dict[str, int]:
    """Count the tokens of prompts and responses; a prompt with several samples is counted once."""
    prompts = {id(choice.prompt): len(choice.prompt) for choice in choices}
    prompt, sampled = sum(prompts.values()), sum(len(choice.tokens) for choice in choices)
    return {"prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled}
