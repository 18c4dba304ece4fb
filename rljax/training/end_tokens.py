"""Tokens that end a response: of the tokenizer, of the model's folder, and of the settings."""

from collections.abc import Sequence

from rljax.data.tokenizer import IDS, Tokenizer
from rljax.errors import InputError
from rljax.models.huggingface import locate
from rljax.models.model_folder import end_tokens
from rljax.training.config import ModelConfig


def check_stop_ids(stop_ids: Sequence[int], tokenizer: Tokenizer) -> None:
    """Refuse ids that no token has.

    Raises:
        InputError: names the id.
    """
    wrong = next((token for token in stop_ids if not 0 <= token < tokenizer.vocab_size), None)
    if wrong is not None:
        raise InputError(f"stop_ids has {wrong}, and there is no such token; ids are 0 to {tokenizer.vocab_size - 1}.")


def all_ends(model: ModelConfig, tokenizer: Tokenizer, stop_ids: Sequence[int] = ()) -> tuple[int, ...]:
    """Tokens that end a response, each once: the tokenizer's end token first, then those of the model's folder, then `stop_ids`.

    The folder's ids are tokens of its own tokenizer. Where another one is chosen, they count if its end token is among them.

    Args:
        model: settings of the model.
        tokenizer: of prompts and responses.
        stop_ids: further ids.

    Raises:
        InputError: an id of `stop_ids` is not that of a token.
    """
    check_stop_ids(stop_ids, tokenizer)
    stored = () if model.path is None else end_tokens(locate(model.path))
    if model.tokenizer not in (None, IDS) and tokenizer.eos_token_id not in stored:
        stored = ()
    return tuple(dict.fromkeys([tokenizer.eos_token_id, *stored, *stop_ids]))
