"""The tokenizer of a run, and the tokens that end a response: of the tokenizer, of the model's folder, and of the settings."""

from collections.abc import Sequence

from rljax.data.tokenizer import IDS, IdTokenizer, Tokenizer, holds_tokenizer, load_tokenizer
from rljax.errors import InputError
from rljax.models.huggingface import locate, read_config
from rljax.models.model_folder import end_tokens, read_json
from rljax.preference.note import folder_tokenizer, read_note
from rljax.training.config import ModelConfig, TrainConfig


def make_tokenizer(config: TrainConfig) -> Tokenizer:
    """Load the tokenizer of the settings, else the model's own, else that of the generated task, or bytes for a dataset.

    Raises:
        InputError: it cannot be found or read, or 'ids' is chosen for a model whose folder names no end token.
    """
    if config.model.tokenizer == IDS:
        return _id_tokenizer(config.model)
    if config.model.tokenizer is not None:
        return load_tokenizer(config.model.tokenizer)
    if config.model.path is not None:
        return folder_tokenizer(locate(config.model.path))
    return load_tokenizer("bytes" if config.generated_task is None else config.generated_task.tokenizer)


def _id_tokenizer(config: ModelConfig) -> IdTokenizer:
    """Token ids as text, for a model folder."""
    if config.path is None:
        raise InputError(
            "the tokenizer 'ids' is for a model without tokenizer; give the model, or choose 'bytes' or 'characters'."
        )
    folder = locate(config.path)
    file = folder / "config.json"
    ends = end_tokens(folder)
    if not ends:
        raise InputError(
            f"{file} has eos_token_id={read_json(file).get('eos_token_id')!r}, so a response could never end; set it to the "
            "model's end token."
        )
    return IdTokenizer(read_config(folder).vocab_size, eos=ends[0])


def has_tokenizer(model: str) -> bool:
    """True if a model folder or hub id comes with a tokenizer."""
    folder = locate(model)
    return read_note(folder) is not None or holds_tokenizer(folder)


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
