"""Text of each token of a sequence, for people who read sampled tokens one by one."""

from collections.abc import Sequence

from rljax.data.tokenizer import UNKNOWN, HuggingFaceTokenizer, Tokenizer

LONGEST_CHARACTER = 4
"""Largest number of tokens that may share one character of UTF-8."""


def token_texts(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """Return the text of each token; joined, these are the text of the sequence with its special tokens.

    A token that holds a part of a character gets an empty text, and the token that completes the character gets all of it.

    Args:
        tokenizer: of the policy.
        ids: token ids, in order.

    Example:
        >>> from rljax.data.tokenizer import ByteTokenizer
        >>> token_texts(ByteTokenizer(), [*ByteTokenizer().encode("aé"), 2])
        ['a', '', 'é', '<eos>']
    """
    texts: list[str] = []
    begin = read = 0  # tokens before `read` have their text; those from `begin` on are decoded again as its context
    for place, token in enumerate(ids):
        special = special_text(tokenizer, token)
        if special is not None:
            texts.append(special)
            begin = read = place + 1
            continue
        known = _decode(tokenizer, ids[begin:read])
        text = _decode(tokenizer, ids[begin : place + 1])
        is_open = text.endswith(UNKNOWN) and place + 1 - read < LONGEST_CHARACTER and place + 1 < len(ids)
        if is_open:
            texts.append("")
            continue
        texts.append(text[len(known) :])
        begin, read = read, place + 1
    return texts


def special_text(tokenizer: Tokenizer, token: int) -> str | None:
    """Return the name of a special token; None for any other token.

    Example:
        >>> from rljax.data.tokenizer import CharacterTokenizer
        >>> special_text(CharacterTokenizer("01"), 1), special_text(CharacterTokenizer("01"), 2)
        ('<eos>', None)
    """
    if isinstance(tokenizer, HuggingFaceTokenizer):
        special = token in tokenizer.inner.added_tokens_decoder or token in tokenizer.inner.all_special_ids
        return str(tokenizer.inner.convert_ids_to_tokens(int(token))) if special else None
    names = {tokenizer.pad_token_id: "<pad>", tokenizer.bos_token_id: "<bos>", tokenizer.eos_token_id: "<eos>"}
    return names.get(int(token))


def _decode(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    if isinstance(tokenizer, HuggingFaceTokenizer):
        return tokenizer.inner.decode(
            [int(token) for token in ids], skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
    return tokenizer.decode(ids)
