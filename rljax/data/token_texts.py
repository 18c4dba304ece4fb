"""The text of each token in a sequence, for displaying sampled tokens one by one."""

import re
from collections.abc import Sequence
from os.path import commonprefix

from rljax.data.tokenizer import UNKNOWN, ByteTokenizer, HuggingFaceTokenizer, Tokenizer

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
_PRINTABLE = (*range(33, 127), *range(161, 173), *range(174, 256))
_OTHER = [byte for byte in range(256) if byte not in _PRINTABLE]
BYTE_LETTERS = {chr(byte): byte for byte in _PRINTABLE} | {chr(256 + index): byte for index, byte in enumerate(_OTHER)}
"""Letter that represents a byte in GPT-2's vocabulary -> the byte's value."""
MAX_TOKENS_PER_CHARACTER = 4
"""Maximum number of tokens that one UTF-8 character may be split into."""


def token_texts(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """Return the text of each token. Joined, they are the full text with special tokens, unless it has a replacement character.

    A token that contains part of a character gets an empty string; the token that completes the character gets the character.

    Args:
        tokenizer: the policy's tokenizer.
        ids: token ids, in order.

    Example:
        >>> from rljax.data.tokenizer import ByteTokenizer
        >>> token_texts(ByteTokenizer(), [*ByteTokenizer().encode("aé"), 2])
        ['a', '', 'é', '<eos>']
    """
    special, texts = special_texts(tokenizer), list[str]()
    start = done = 0  # tokens before `done` are in `texts`; those from `start` to `done` are decoded again as context
    for index, token in enumerate(ids):
        if token in special:
            texts.append(special[token])
            start = done = index + 1
            continue
        known = full_text(tokenizer, ids[start:done])
        text = full_text(tokenizer, ids[start : index + 1])
        continues = index + 1 < len(ids) and ids[index + 1] not in special
        if text.endswith(UNKNOWN) and index + 1 - done < MAX_TOKENS_PER_CHARACTER and continues:
            texts.append("")
            continue
        # After invalid bytes, `known` may end in half of a character.
        texts.append(text[len(commonprefix([known, text])) :])  # noqa: RUF071 - texts, not paths
        start, done = done, index + 1
    return texts


def special_texts(tokenizer: Tokenizer) -> dict[int, str]:
    """Return the text of each special token, by id.

    Example:
        >>> from rljax.data.tokenizer import CharacterTokenizer
        >>> special_texts(CharacterTokenizer("01"))
        {0: '<pad>', 1: '<eos>'}
    """
    if isinstance(tokenizer, HuggingFaceTokenizer):
        ids = sorted({*tokenizer.inner.added_tokens_decoder, *tokenizer.inner.all_special_ids})
        return dict(zip(ids, map(str, tokenizer.inner.convert_ids_to_tokens(ids)), strict=True))
    names = {tokenizer.pad_token_id: "<pad>", tokenizer.bos_token_id: "<bos>", tokenizer.eos_token_id: "<eos>"}
    return {token: name for token, name in names.items() if token is not None}


def full_text(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """Decode tokens, including special tokens if the tokenizer supports it."""
    if isinstance(tokenizer, HuggingFaceTokenizer):
        return tokenizer.inner.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
    return tokenizer.decode(ids)


def token_bytes(tokenizer: Tokenizer, token: int) -> bytes:
    """Return the bytes that a token contributes when it follows other text, even if the token contains only part of a character.

    Example:
        >>> from rljax.data.tokenizer import ByteTokenizer
        >>> [token_bytes(ByteTokenizer(), token) for token in ByteTokenizer().encode("aé")]
        [b'a', b'\\xc3', b'\\xa9']
        >>> from rljax.data.tokenizer import CharacterTokenizer
        >>> token_bytes(CharacterTokenizer("01"), 3)
        b'1'
    """
    if token in (special := special_texts(tokenizer)):
        return special[token].encode()
    # Some Hugging Face decoders remove the first token's space, so the token is decoded after the letter "a", which other
    # tokenizers may not have in their vocabulary.
    before = tokenizer.encode("a") if isinstance(tokenizer, HuggingFaceTokenizer) else []
    text = full_text(tokenizer, [*before, token])[len(full_text(tokenizer, before)) :]
    if UNKNOWN not in text:
        return text.encode()
    if not isinstance(tokenizer, HuggingFaceTokenizer):
        return (
            bytes([token - 3]) if isinstance(tokenizer, ByteTokenizer) and token < tokenizer.vocab_size else text.encode()
        )
    name = str(tokenizer.inner.convert_ids_to_tokens(token))
    if (found := _BYTE.fullmatch(name)) is not None:
        return bytes([int(found[1], 16)])
    return bytes(BYTE_LETTERS[letter] for letter in name) if set(name) <= BYTE_LETTERS.keys() else text.encode()


def token_name(content: bytes) -> str:
    """Write the bytes of a token as text, or as escapes if they are not UTF-8 (as in OpenAI's API).

    Example:
        >>> token_name(b" the"), token_name(bytes([226, 130]))
        (' the', 'bytes:\\\\xe2\\\\x82')
    """
    try:
        return content.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in content)
