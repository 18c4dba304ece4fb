"""Tokenizers, which convert text to token ids and back, behind one small interface."""

import inspect
import json
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int

from rljax.data.arithmetic import ALPHABET
from rljax.data.bad_rows import short_repr
from rljax.data.chat import PLAIN, ChatFormat, render_chat, unclosed_thought
from rljax.errors import InputError
from rljax.files import check_local
from rljax.text import one_line

UNKNOWN = "�"
"""Text of an id outside the vocabulary. Such ids occur because a model may have more logits than its tokenizer has ids."""

_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "spiece.model",
    "vocab.json",
    "vocab.txt",
    "tekken.json",
)

CONTEXT_CHARACTERS = 256
"""Number of characters before a text that are encoded with it; more than the longest token has."""
IDS = "ids"
"""Value of `--tokenizer` for prompts and responses that are written as token ids."""
OWN_NAME = "rljax_tokenizer"
"""Key in tokenizer_config.json whose value is that of `--tokenizer`, if rljax wrote the folder with a built-in tokenizer."""


@runtime_checkable
class Tokenizer(Protocol):
    """The interface of a tokenizer."""

    @property
    def pad_token_id(self) -> int:
        """The padding token."""
        ...

    @property
    def eos_token_id(self) -> int:
        """The token that ends a response."""
        ...

    @property
    def bos_token_id(self) -> int | None:
        """The token that starts every prompt; None if the tokenizer does not add one."""
        ...

    @property
    def vocab_size(self) -> int:
        """Exclusive upper bound on token ids."""
        ...

    def encode(self, text: str) -> list[int]:
        """Turn text into ids, without special tokens."""
        ...

    def decode(self, ids: Sequence[int] | Int[np.ndarray, "T"]) -> str:
        """Turn ids into text, without special tokens."""
        ...


@runtime_checkable
class ChatTokenizer(Tokenizer, Protocol):
    """A tokenizer that supports chat templates; `apply_chat_template` raises `InputError` if there is no template."""

    def apply_chat_template(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Turn a chat into the ids of a prompt, up to the start of the assistant's turn.

        The columns `tools` and `chat_template_kwargs` of a row, if it has them, are passed as keyword arguments.
        """
        ...


class CharacterTokenizer:
    """A tokenizer with one token per character of a fixed alphabet. Id 0 pads, 1 ends a response, and the characters follow.

    Args:
        alphabet: all characters that may occur, each listed once.

    Raises:
        InputError: the alphabet is empty, or contains a character twice.

    Example:
        >>> tokenizer = CharacterTokenizer("0123456789+=")
        >>> tokenizer.encode("7+5=")
        [9, 12, 7, 13]
        >>> tokenizer.decode([9, 12, 7, 13, tokenizer.eos_token_id])
        '7+5='
    """

    pad_token_id = 0
    eos_token_id = 1
    bos_token_id = None

    def __init__(self, alphabet: str = ALPHABET):
        if not alphabet:
            raise InputError("the alphabet of the character tokenizer is empty; list its characters: 'characters:01+='.")
        repeated = sorted({character for character in alphabet if alphabet.count(character) > 1})
        if repeated:
            raise InputError(
                f"the alphabet {alphabet!r} contains {''.join(repeated)!r} more than once; list each character once."
            )
        self.alphabet = alphabet
        self.vocab_size = len(alphabet) + 2
        self._ids = {character: position + 2 for position, character in enumerate(alphabet)}

    def encode(self, text: str) -> list[int]:
        """Turn text into ids; a character outside the alphabet raises `InputError`."""
        unknown = next((character for character in text if character not in self._ids), None)
        if unknown is not None:
            raise InputError(
                f"the character {unknown!r} in {short_repr(text)} is not in the tokenizer's alphabet {self.alphabet!r}; "
                f"use `--tokenizer bytes`, or give a larger alphabet after `characters:`."
            )
        return [self._ids[character] for character in text]

    def decode(self, ids: Sequence[int] | Int[np.ndarray, "T"]) -> str:
        """Turn ids into text; an id outside the alphabet becomes the replacement character."""
        return "".join(self.alphabet[i - 2] if i < self.vocab_size else UNKNOWN for i in ids if i >= 2)


def _check_utf8(text: str) -> None:
    """Refuse text that UTF-8 cannot encode; Python reads bytes that are not UTF-8 as lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"the text {short_repr(text)} has bytes that are not UTF-8, at character {error.start}; give text in UTF-8."
        ) from error


class ByteTokenizer:
    """A tokenizer with one token per UTF-8 byte; it can encode any text.

    Id 0 pads, 1 starts a prompt, 2 ends a response, and byte b has id b + 3.

    Example:
        >>> tokenizer = ByteTokenizer()
        >>> tokenizer.encode("aé")
        [100, 198, 172]
        >>> tokenizer.decode([100, 198, 172, tokenizer.eos_token_id])
        'aé'
    """

    pad_token_id = 0
    bos_token_id = 1
    eos_token_id = 2
    vocab_size = 259

    def encode(self, text: str) -> list[int]:
        """Turn text into ids; a lone surrogate raises `InputError`."""
        _check_utf8(text)
        return [byte + 3 for byte in text.encode()]

    def decode(self, ids: Sequence[int] | Int[np.ndarray, "T"]) -> str:
        """Turn ids into text; invalid UTF-8 and ids above 258 become the replacement character."""
        not_utf8 = 0xFF
        return bytes(i - 3 if i < self.vocab_size else not_utf8 for i in ids if i >= 3).decode(errors="replace")


class IdTokenizer:
    """A tokenizer whose texts are token ids, such as "12 7 3", for models whose own tokenizer is not available.

    Args:
        vocab_size: number of the model's token ids.
        eos: the token that ends a response.

    Example:
        >>> tokenizer = IdTokenizer(20, eos=2)
        >>> tokenizer.encode("12 7 3")
        [12, 7, 3]
        >>> tokenizer.decode([12, 7, 3, 2])
        '12 7 3'
    """

    bos_token_id = None

    def __init__(self, vocab_size: int, *, eos: int):
        self.vocab_size = vocab_size
        self.eos_token_id = eos
        self.pad_token_id = eos

    def encode(self, text: str) -> list[int]:
        """Read ids; a word that is not a token id raises `InputError`."""
        words = text.split()
        wrong = next(
            (word for word in words if not (word.isdecimal() and len(word) <= 18 and int(word) < self.vocab_size)), None
        )
        if wrong is not None:
            raise InputError(
                f"{short_repr(wrong)} in {short_repr(text)} is not a token id from 0 to {self.vocab_size - 1}; separate ids with "
                "spaces, or choose a tokenizer with --tokenizer."
            )
        return [int(word) for word in words]

    def decode(self, ids: Sequence[int] | Int[np.ndarray, "T"]) -> str:
        """Write ids with spaces between them, without the end token."""
        return " ".join(str(int(i)) for i in ids if i != self.eos_token_id)


class HuggingFaceTokenizer:
    """A `transformers` tokenizer behind the `Tokenizer` interface.

    Args:
        inner: the `transformers` tokenizer; its files are written next to exported weights.
        name: folder or hub id of the tokenizer, for messages.
        chat: how chats become text.
        keeps_special: whether decoded text includes special tokens, except padding and end tokens at the end of the text.

    Raises:
        InputError: `inner` has no end-of-sequence token, so a response could never end.
    """

    def __init__(self, inner: Any, name: str, *, chat: ChatFormat = PLAIN, keeps_special: bool = False):
        if inner.eos_token_id is None:
            raise InputError(
                f"the tokenizer {name!r} has no end-of-sequence token, so a response could never end; "
                f"set `eos_token` in its tokenizer_config.json."
            )
        self.inner = inner
        self.name = name
        self.chat = chat
        self.keeps_special = keeps_special
        self.eos_token_id = inner.eos_token_id
        # Padding is masked everywhere, so the end token can replace a missing pad token.
        self.pad_token_id = inner.eos_token_id if inner.pad_token_id is None else inner.pad_token_id
        # Many tokenizers define a bos token that their models never saw, so encode a text to find the ids that are really added.
        self.prefix_ids = _prefix(inner)
        self.bos_token_id = inner.bos_token_id if self.prefix_ids == [inner.bos_token_id] else None
        # The ids may have gaps, so the largest id may exceed the number of tokens.
        self.vocab_size = max(len(inner), 1 + max(inner.get_vocab().values(), default=0))

    def with_settings(self, chat: ChatFormat, *, keeps_special: bool) -> "HuggingFaceTokenizer":
        """Return the same tokenizer with the settings of a run."""
        return HuggingFaceTokenizer(self.inner, self.name, chat=chat, keeps_special=keeps_special)

    @property
    def special_texts(self) -> set[str]:
        """Special-token strings that never appear in decoded text."""
        added = self.inner.added_tokens_decoder.values()
        texts = {*self.inner.all_special_tokens, *(token.content for token in added if token.special)}
        return texts & set(self.inner.convert_ids_to_tokens(sorted(self._end_ids))) if self.keeps_special else texts

    @property
    def _end_ids(self) -> set[int]:
        return {self.eos_token_id, self.pad_token_id, *([] if self.turn_end is None else [self.turn_end])}

    def encode(self, text: str) -> list[int]:
        """Turn text into ids, without special tokens; a lone surrogate raises `InputError`."""
        _check_utf8(text)
        return self.inner.encode(text, add_special_tokens=False)

    def encode_after(self, prefix: str, text: str) -> list[int]:
        """Turn text that follows a prefix into the ids that it has in the joint text, if the prefix keeps its ids there.

        SentencePiece tokenizers begin a text with a space, which a text within another text does not have.
        """
        near = prefix[-CONTEXT_CHARACTERS:]
        before, joint = self.encode(near), self.encode(near + text)
        return joint[len(before) :] if joint[: len(before)] == before else self.encode(text)

    def decode(self, ids: Sequence[int] | Int[np.ndarray, "T"]) -> str:
        """Turn ids into text without special tokens, or, with `keeps_special`, without the trailing end and padding tokens."""
        ids = [int(i) for i in ids]
        while self.keeps_special and ids and ids[-1] in self._end_ids:
            ids.pop()
        return self.inner.decode(ids, skip_special_tokens=not self.keeps_special, clean_up_tokenization_spaces=False)

    def render(self, messages: Sequence[Mapping[str, Any]], *, opens_turn: bool, **columns: Any) -> str:
        """Turn a chat into text; see `rljax.data.chat.render_chat`."""
        if self.inner.split_special_tokens:
            raise InputError(
                f"the tokenizer_config.json of {self.name!r} sets split_special_tokens, so the special tokens of its chat template "
                "would be encoded as ordinary text; set it to false, or leave out --chat."
            )
        return render_chat(self.inner, messages, self.chat, name=self.name, opens_turn=opens_turn, **columns)

    def apply_chat_template(self, messages: Sequence[Mapping[str, Any]], **columns: Any) -> list[int]:
        """Turn a chat into the ids of a prompt, which ends with the start of the assistant's turn and the prefill.

        Args:
            messages: the messages, with every entry that the template reads: `role`, `content`, `tool_calls`, ...
            columns: `tools` and `chat_template_kwargs` of the row.

        Returns:
            Token ids, with the special tokens of the template.

        Raises:
            InputError: the tokenizer has no chat template, the template rejects the messages, or jinja2 is missing.
        """
        return self.encode(self.render(messages, opens_turn=True, **columns) + self.chat.prefill)

    @cached_property
    def turn_end(self) -> int | None:
        """The token with which the template ends the assistant's turn; None if there is none."""
        if not self.inner.chat_template:
            return None
        mark = "4711"
        messages = [{"role": "user", "content": "1"}, {"role": "assistant", "content": mark}]
        _, found, after = self.render(messages, opens_turn=False).rpartition(mark)
        ids = self.encode(after) if found else []
        special = {*self.inner.all_special_ids, *self.inner.added_tokens_decoder}
        return next((token for token in ids if token in special), None)

    @cached_property
    def opening(self) -> str:
        """The part of the answer that the prompt already contains: a reasoning tag that the template opens, and the prefill."""
        if not self.chat.is_used or not self.inner.chat_template:
            return ""
        return unclosed_thought(self.render([{"role": "user", "content": "1"}], opens_turn=True)) + self.chat.prefill

    @cached_property
    def turn_opening(self) -> str:
        """The text with which the template begins a user's turn; empty if ordinary text could contain it."""
        messages = [{"role": role, "content": "4711"} for role in ("user", "assistant", "user")]
        try:
            ended, continued = (self.render(messages[:count], opens_turn=False).split("4711") for count in (2, 3))
        except InputError:
            return ""
        opening = continued[-2:][0].removeprefix(ended[-1]).strip().removeprefix(self.inner.bos_token or "").strip()
        return "" if opening.isalnum() else opening

    def encode_turns(
        self, messages: Sequence[Mapping[str, Any]], turns: Sequence[Mapping[str, Any]], **columns: Any
    ) -> list[tuple[list[int], bool]]:
        """Turn the messages that follow a prompt into ids, as the template writes them.

        Args:
            messages: the prompt.
            turns: the messages after the prompt: the assistant's turns, and other messages between them.
            columns: `tools` and `chat_template_kwargs` of the row.

        Returns:
            Pieces in order, each with its ids and whether it is trained on. The assistant's turns are trained on unless their
            message has a `weight` of 0, and end with the token that ends a turn.

        Raises:
            InputError: the template writes a turn differently once a later turn follows.
        """
        end = self.inner.convert_ids_to_tokens(self.eos_token_id if self.turn_end is None else self.turn_end)
        turns = [self._clean(turn, end, is_first=not index) for index, turn in enumerate(turns)]
        indices = [index for index, turn in enumerate(turns) if turn["role"] == "assistant"]
        learned = [turns[index].get("weight", 1) != 0 for index in indices]
        prefixes = [self.render([*messages, *turns[:index]], opens_turn=True, **columns) for index in indices]
        prefixes[0] += self.chat.prefill
        full = self.render([*messages, *turns], opens_turn=False, **columns)
        if len(turns) == 1 and not full.startswith(prefixes[0]):
            # The prompt opens a thought, but the template omits the thoughts of completed turns.
            content = turns[0]["content"].removeprefix(self.opening).removeprefix(self.chat.prefill)
            return [(self._encode_turn(prefixes[0], content + end), learned[0])]
        pieces: list[tuple[list[int], bool]] = []
        for prefix, next_prefix, is_learned in zip(prefixes, [*prefixes[1:], None], learned, strict=True):
            region = full[len(prefix) : None if next_prefix is None else len(next_prefix)]
            own, found_end, rest = region.rpartition(end) if next_prefix is None else region.partition(end)
            if not full.startswith(prefix) or not (found_end or next_prefix is None):
                raise InputError(
                    f"the chat template of {self.name!r} writes the turns of a completion differently once they have ended, so "
                    "training would see a different text from sampling; make a separate row for each assistant turn."
                )
            pieces.append((self._encode_turn(prefix, own + found_end if found_end else rest), is_learned))
            pieces += [] if next_prefix is None else [(self.encode_after(prefix + own + end, rest), False)]
        return pieces

    def _clean(self, turn: Mapping[str, Any], end: str, *, is_first: bool) -> Mapping[str, Any]:
        """Remove end tokens from an assistant's turn, because the template adds them; add a missing prefill to the first turn."""
        content = turn["content"]
        while turn["role"] == "assistant" and content.rstrip().endswith(end):
            content = content.rstrip().removesuffix(end)
        if is_first and not content.startswith((self.chat.prefill, self.opening)):
            content = self.chat.prefill + content
        return {**turn, "content": content}

    def list_ignored_parts(self, messages: Sequence[Mapping[str, Any]], **columns: Any) -> set[str]:
        """Name what the template ignores: message fields, the content of messages with some role, and columns."""
        text = self.render(messages, opens_turn=True, **columns)
        names = {name for message in messages for name in message} - {"role", "content", "weight"}
        without = {
            name: [{key: value for key, value in message.items() if key != name} for message in messages] for name in names
        }
        ignored = {name for name, chat in without.items() if self.render(chat, opens_turn=True, **columns) == text}
        by_role: dict[str, list[int]] = {}
        for index, message in enumerate(messages):
            by_role.setdefault(message["role"], []).append(index)
        # Try at most three messages per role, because a dialogue may be long.
        for index in sorted({index for indices in by_role.values() for index in (*indices[:2], indices[-1])}):
            message = messages[index]
            changed = [*messages[:index], {**message, "content": message["content"] + UNKNOWN}, *messages[index + 1 :]]
            if message["content"].strip() and self.render(changed, opens_turn=True, **columns) == text:
                ignored.add(f"content (of a message with role {message['role']!r})")
        return ignored | {
            name for name in columns if self.render(messages, opens_turn=True, **{**columns, name: None}) == text
        }

    def list_unread_options(self) -> list[str]:
        """Name the run's template options that neither the chat template nor `transformers` reads."""
        found = self.inner.chat_template or ""
        template = found if isinstance(found, str) else " ".join(found.values())
        words = {*re.findall(r"\w+", template), *inspect.signature(self.inner.apply_chat_template).parameters}
        return sorted(set(self.chat.options) - words)

    def _encode_turn(self, prefix: str, text: str) -> list[int]:
        """Encode a turn after a prefix, and append the end token if the ids do not end with one."""
        ids = self.encode_after(prefix, text)
        return ids if ids and ids[-1] in self._end_ids else [*ids, self.eos_token_id]


def _prefix(inner: Any) -> list[int]:
    """Return the ids that a tokenizer adds before a text, without those that it adds after the text."""
    if not inner("", add_special_tokens=True)["input_ids"]:
        return []
    plain, full = (inner("a", add_special_tokens=special)["input_ids"] for special in (False, True))
    return next((full[:start] for start in range(len(full)) if full[start : start + len(plain)] == plain), [])


def prefix_ids(tokenizer: Tokenizer) -> list[int]:
    """Return the ids that begin every prompt that is not a chat."""
    if isinstance(tokenizer, HuggingFaceTokenizer):
        return list(tokenizer.prefix_ids)
    return [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]


def turn_end(tokenizer: Tokenizer) -> int | None:
    """Return the token with which the tokenizer's chat template ends a turn; None if there is none."""
    return tokenizer.turn_end if isinstance(tokenizer, HuggingFaceTokenizer) else None


def completion_text(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """Return a response's text as rewards and environments read it; its beginning may be part of the prompt."""
    opening = tokenizer.opening if isinstance(tokenizer, HuggingFaceTokenizer) else ""
    return opening + tokenizer.decode(ids)


def check_vocab_size(tokenizer: Tokenizer, size: int) -> None:
    """Reject a tokenizer that has more tokens than a model.

    Args:
        tokenizer: the tokenizer.
        size: number of the model's tokens.

    Raises:
        InputError: the tokenizer has more tokens than the model.
    """
    if tokenizer.vocab_size > size:
        raise InputError(
            f"The tokenizer has ids up to {tokenizer.vocab_size - 1}, but the model has only {size} tokens; use the tokenizer that "
            "belongs to the model."
        )


def check_no_special_token(tokenizer: Tokenizer, stop: Iterable[str], *, ids: str = "stop_ids") -> None:
    """Reject stop strings that contain a special token, because responses are searched as decoded text, which has none.

    Args:
        tokenizer: the tokenizer.
        stop: the stop strings.
        ids: name of the setting for token ids that end a response.

    Raises:
        InputError: a stop string contains a special token; the message names both.
    """
    special = tokenizer.special_texts if isinstance(tokenizer, HuggingFaceTokenizer) else set()
    found = next(((text, name) for text in stop for name in sorted(special) if name in text), None)
    if found is not None:
        raise InputError(
            f"the option stop contains {found[0]!r}, which includes the special token {found[1]!r}: text never contains it, so no "
            f"response would stop there. Give its id with {ids}; the end token, which is the `eos_token` of "
            "tokenizer_config.json, ends a response anyway."
        )


def has_tokenizer_files(folder: Path) -> bool:
    """Return True if a folder contains a tokenizer file."""
    return any((folder / file).is_file() for file in _TOKENIZER_FILES)


def load_tokenizer(name: str) -> Tokenizer:
    """Load a tokenizer by the value of `--tokenizer`.

    Args:
        name: `bytes`; `characters` for the alphabet of the arithmetic task; `characters:ALPHABET` for another alphabet; a folder
            with tokenizer files; or the id of a model on the Hugging Face hub.

    Returns:
        The tokenizer. If a model was trained with a built-in tokenizer, its folder yields that tokenizer.

    Raises:
        InputError: the folder has no tokenizer files, the files cannot be read, or the id cannot be fetched.

    Example:
        >>> load_tokenizer("characters:01").encode("10")
        [3, 2]
    """
    if not name:
        raise InputError("the name of the tokenizer is empty; give a folder, a model's id, `bytes` or `characters`.")
    if name == "bytes":
        return ByteTokenizer()
    if name == IDS:
        raise InputError("the tokenizer 'ids' is valid only together with a model folder; choose 'bytes' or 'characters'.")
    kind, colon, alphabet = name.partition(":")
    if kind == "characters":
        return CharacterTokenizer(alphabet if colon else ALPHABET)
    check_local(name, "tokenizer")
    folder = Path(name).expanduser()
    if folder.is_dir():
        if not has_tokenizer_files(folder):
            raise InputError(
                f"the folder {name!r} contains no tokenizer (none of {', '.join(_TOKENIZER_FILES)}); copy the model's tokenizer "
                f"files into it, or give another folder, or `--tokenizer bytes` for one token per byte."
            )
        own = _own_name(folder)
        if own is not None:
            return load_tokenizer(own)
        return _from_transformers(str(folder), name, "repair the folder's tokenizer files")
    if folder.is_file():
        raise InputError(f"the tokenizer {name!r} is a file; give the folder that contains it.")
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise InputError(
            f"the tokenizer folder {name!r} does not exist; give a folder, the id of a model on the Hugging Face hub, "
            f"`bytes` or `characters`."
        )
    return _from_transformers(name, name, "check the id and the network, or give a folder, `bytes` or `characters`")


def _own_name(folder: Path) -> str | None:
    """Return the value of `--tokenizer` stored in a folder that rljax wrote with a built-in tokenizer, if unmodified; else None."""
    files = folder / "tokenizer_config.json", folder / "tokenizer.json"
    if not all(file.is_file() for file in files):
        return None
    try:
        config, tokens = (json.loads(file.read_text(encoding="utf-8")) for file in files)
        name = config.get(OWN_NAME)
        ids = {*tokens["model"]["vocab"].values(), *(token["id"] for token in tokens["added_tokens"])}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None  # another program wrote the files; `transformers` reports what is wrong with them
    is_own = isinstance(name, str) and (name == "bytes" or name.startswith("characters:"))
    return name if is_own and load_tokenizer(name).vocab_size == len(ids) else None


def _from_transformers(source: str, name: str, remedy: str) -> HuggingFaceTokenizer:
    logging.getLogger("transformers").addFilter(_is_relevant)
    from transformers import AutoTokenizer  # noqa: PLC0415  (importing it takes a second, and the built-in tokenizers do not need it)

    try:
        inner = AutoTokenizer.from_pretrained(source)
    except Exception as error:  # the parsers of the many file formats can raise anything
        raise InputError(f"the tokenizer {name!r} cannot be loaded ({one_line(error)}); {remedy}.") from error
    _check_end_is_stored(inner, source, name)
    return HuggingFaceTokenizer(inner, name)


def _check_end_is_stored(inner: Any, source: str, name: str) -> None:
    """Refuse an end token outside the vocabulary: `transformers` would give it the next free id, which no model has learned."""
    file, added = Path(source) / "tokenizer.json", Path(source) / "added_tokens.json"
    if inner.eos_token_id is None or inner.eos_token_id < len(inner) - 1 or not file.is_file() or added.is_file():
        return  # a token that `transformers` added would have the largest id
    content = json.loads(file.read_text(encoding="utf-8"))
    config = Path(source) / "tokenizer_config.json"
    declared = json.loads(config.read_text(encoding="utf-8")) if config.is_file() else {}
    tokens = [*content.get("added_tokens", ()), *declared.get("added_tokens_decoder", {}).values()]
    vocabulary = content["model"].get("vocab", ())
    stored = {
        *(entry if isinstance(entry, str) else entry[0] for entry in vocabulary),
        *(token["content"] for token in tokens),
    }
    if inner.eos_token not in stored:
        raise InputError(
            f"the tokenizer {name!r} has eos_token {inner.eos_token!r}, which is not in its vocabulary, so no model has learned to "
            "end a response with it; correct eos_token in tokenizer_config.json."
        )


def _is_relevant(record: logging.LogRecord) -> bool:
    """Return False for the warning of transformers that PyTorch is missing, because rljax never needs it."""
    return not record.getMessage().startswith("PyTorch was not found")


def has_chat_template(tokenizer: Tokenizer) -> bool:
    """Return True if a tokenizer can format conversations.

    Example:
        >>> has_chat_template(ByteTokenizer())
        False
    """
    if isinstance(tokenizer, HuggingFaceTokenizer):
        return bool(tokenizer.inner.chat_template)
    return isinstance(tokenizer, ChatTokenizer)
