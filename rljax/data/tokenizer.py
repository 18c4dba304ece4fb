"""Tokenizers: from text to token ids and back, behind one small interface."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int

from rljax.data.arithmetic import ALPHABET
from rljax.errors import InputError
from rljax.text import one_line

UNKNOWN = "�"
"""The text of an id outside the vocabulary: a model may have more logits than its tokenizer has ids."""

_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "spiece.model",
    "vocab.json",
    "vocab.txt",
    "tekken.json",
)


IDS = "ids"
"""Value of `--tokenizer` for token ids as text."""
OWN_NAME = "rljax_tokenizer"
"""Key of tokenizer_config.json under which a folder with one of rljax's own tokenizers holds the value of `--tokenizer`."""


@runtime_checkable
class Tokenizer(Protocol):
    """The interface of a tokenizer.

    `bos_token_id` is the token that starts every prompt, or None if the tokenizer does not add one.
    """

    @property
    def pad_token_id(self) -> int:
        """The token that pads."""
        ...

    @property
    def eos_token_id(self) -> int:
        """The token that ends a response."""
        ...

    @property
    def bos_token_id(self) -> int | None:
        """The token that starts every prompt, if there is one."""
        ...

    @property
    def vocab_size(self) -> int:
        """The number of token ids."""
        ...

    def encode(self, text: str) -> list[int]:
        """Turn text into ids, without special tokens."""
        ...

    def decode(self, ids: Sequence[int] | Int[np.ndarray, "T"]) -> str:
        """Turn ids into text, without special tokens."""
        ...


@runtime_checkable
class ChatTokenizer(Tokenizer, Protocol):
    """A tokenizer with a method for chat templates. The method raises `InputError` if the tokenizer has no template."""

    def apply_chat_template(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Turn a chat into the ids of a prompt, up to the start of the assistant's turn."""
        ...


class CharacterTokenizer:
    """One token per character of a fixed alphabet: 0 pads, 1 ends, and the characters follow in order.

    Args:
        alphabet: every character that may occur, each once.

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
        """Turn text into ids; a character outside the alphabet is an `InputError`."""
        unknown = next((character for character in text if character not in self._ids), None)
        if unknown is not None:
            raise InputError(
                f"the character {unknown!r} in {_shortened(text)} is not in the tokenizer's alphabet {self.alphabet!r}; "
                f"use `--tokenizer bytes`, or give a larger alphabet after `characters:`."
            )
        return [self._ids[character] for character in text]

    def decode(self, ids: Sequence[int] | Int[np.ndarray, "T"]) -> str:
        """Turn ids into text; an id above the alphabet becomes the replacement character."""
        return "".join(self.alphabet[i - 2] if i < self.vocab_size else UNKNOWN for i in ids if i >= 2)


class ByteTokenizer:
    """One token per byte of UTF-8, so that any text can be encoded: 0 pads, 1 starts, 2 ends, and byte b is b + 3.

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
        """Turn text into ids."""
        return [byte + 3 for byte in text.encode()]

    def decode(self, ids: Sequence[int] | Int[np.ndarray, "T"]) -> str:
        """Turn ids into text; invalid UTF-8 and ids above the bytes become the replacement character."""
        not_utf8 = 0xFF
        return bytes(i - 3 if i < self.vocab_size else not_utf8 for i in ids if i >= 3).decode(errors="replace")


class IdTokenizer:
    """Token ids as text, "12 7 3", for models whose tokenizer is not at hand.

    Args:
        vocab_size: number of token ids of the model.
        eos: token that ends a response.

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
        """Read ids; a word that is not the id of a token is an `InputError`."""
        words = text.split()
        wrong = next((word for word in words if not (word.isdecimal() and int(word) < self.vocab_size)), None)
        if wrong is not None:
            raise InputError(
                f"{wrong!r} in {_shortened(text)} is not a token id from 0 to {self.vocab_size - 1}; write ids with spaces "
                "between them, or give a tokenizer with --tokenizer."
            )
        return [int(word) for word in words]

    def decode(self, ids: Sequence[int] | Int[np.ndarray, "T"]) -> str:
        """Write ids with spaces between them, without the end token."""
        return " ".join(str(int(i)) for i in ids if i != self.eos_token_id)


class HuggingFaceTokenizer:
    """A tokenizer of `transformers` behind the trainer's interface.

    Args:
        inner: the tokenizer of `transformers`; its files are written beside exported weights.
        name: its folder or hub id, for messages.

    Raises:
        InputError: it has no end-of-sequence token, so a response could never end.
    """

    def __init__(self, inner: Any, name: str):
        if inner.eos_token_id is None:
            raise InputError(
                f"the tokenizer {name!r} has no end-of-sequence token, so a response could never end; "
                f"set `eos_token` in its tokenizer_config.json."
            )
        self.inner = inner
        self.name = name
        self.eos_token_id = inner.eos_token_id
        # Padding is masked everywhere, so the end token can replace a missing pad token.
        self.pad_token_id = inner.eos_token_id if inner.pad_token_id is None else inner.pad_token_id
        # Many tokenizers define a bos token that their models never saw; encode a text to find out whether it is added.
        opening = inner("", add_special_tokens=True)["input_ids"][:1]
        self.bos_token_id = inner.bos_token_id if opening == [inner.bos_token_id] else None
        self.vocab_size = len(inner)

    @property
    def special_texts(self) -> set[str]:
        """Names of the special tokens, which decoded text never has."""
        added = self.inner.added_tokens_decoder.values()
        return {*self.inner.all_special_tokens, *(token.content for token in added if token.special)}

    def encode(self, text: str) -> list[int]:
        """Turn text into ids, without special tokens."""
        return self.inner.encode(text, add_special_tokens=False)

    def decode(self, ids: Sequence[int] | Int[np.ndarray, "T"]) -> str:
        """Turn ids into text, without special tokens."""
        return self.inner.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def apply_chat_template(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Turn a chat into the ids of a prompt, up to the start of the assistant's turn.

        Args:
            messages: the messages, `{"role": ..., "content": ...}` each.

        Returns:
            Token ids, with the special tokens of the template.

        Raises:
            InputError: the tokenizer has no chat template, the template rejects the messages, or jinja2 is missing.
        """
        if not self.inner.chat_template:
            raise InputError(
                f"the tokenizer {self.name!r} has no chat template; turn chat off, or use the tokenizer of an "
                f"instruction-tuned model."
            )
        try:
            ids = self.inner.apply_chat_template(list(messages), add_generation_prompt=True, return_dict=False)
        except ImportError as error:
            raise InputError(
                f"the chat template cannot be rendered ({one_line(error)}); run `pip install jinja2`, or turn chat off."
            ) from error
        except Exception as error:  # a template is a program and may raise anything
            roles = [message["role"] for message in messages]
            raise InputError(
                f"the chat template of {self.name!r} rejects messages with the roles {roles} ({one_line(error)}); "
                f"change the messages."
            ) from error
        return list(ids)


def check_no_special_token(tokenizer: Tokenizer, stop: Iterable[str]) -> None:
    """Refuse stop strings with a special token: they are looked for in decoded text, which has none.

    Raises:
        InputError: the message names the token.
    """
    special = tokenizer.special_texts if isinstance(tokenizer, HuggingFaceTokenizer) else set()
    found = next(((text, name) for text in stop for name in sorted(special) if name in text), None)
    if found is not None:
        raise InputError(
            f"stop has {found[0]!r}, and {found[1]!r} is a special token of the tokenizer: text never contains it, so no "
            "response would stop there. Give its id with stop_ids; the end token, which is the `eos_token` of "
            "tokenizer_config.json, ends a response anyway."
        )


def holds_tokenizer(folder: Path) -> bool:
    """True if a folder has a file of a tokenizer."""
    return any((folder / file).is_file() for file in _TOKENIZER_FILES)


def load_tokenizer(name: str) -> Tokenizer:
    """Load a tokenizer by the value of `--tokenizer`.

    Args:
        name: `bytes`; `characters` for the alphabet of the arithmetic task; `characters:ALPHABET` for another one; a folder
            with tokenizer files; or the id of a model on the Hugging Face hub.

    Returns:
        A tokenizer; one of rljax's own for the folder of a model that was trained with it.

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
        raise InputError(
            "the tokenizer 'ids' belongs to a model folder and cannot be loaded here; choose 'bytes' or 'characters'."
        )
    kind, colon, alphabet = name.partition(":")
    if kind == "characters":
        return CharacterTokenizer(alphabet if colon else ALPHABET)
    folder = Path(name).expanduser()
    if folder.is_dir():
        if not holds_tokenizer(folder):
            raise InputError(
                f"the folder {name!r} holds no tokenizer (none of {', '.join(_TOKENIZER_FILES)}); copy the files of its model into "
                f"it, or give another folder, or `--tokenizer bytes` for one token per byte."
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
    """Value of `--tokenizer` for a folder that was written with one of rljax's own tokenizers, and not changed since."""
    files = folder / "tokenizer_config.json", folder / "tokenizer.json"
    if not all(file.is_file() for file in files):
        return None
    try:
        config, tokens = (json.loads(file.read_text(encoding="utf-8")) for file in files)
        name = config.get(OWN_NAME)
        ids = {*tokens["model"]["vocab"].values(), *(token["id"] for token in tokens["added_tokens"])}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None  # another program's files: `transformers` says what is wrong with them
    is_own = isinstance(name, str) and (name == "bytes" or name.startswith("characters:"))
    return name if is_own and load_tokenizer(name).vocab_size == len(ids) else None


def _from_transformers(source: str, name: str, remedy: str) -> HuggingFaceTokenizer:
    from transformers import AutoTokenizer  # noqa: PLC0415  (importing it takes a second, and the built-in tokenizers do not need it)

    try:
        inner = AutoTokenizer.from_pretrained(source)
    except Exception as error:  # the parsers of the many file formats can raise anything
        raise InputError(f"the tokenizer {name!r} cannot be loaded ({one_line(error)}); {remedy}.") from error
    return HuggingFaceTokenizer(inner, name)


def _shortened(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:60] + "…")
