"""The tokenizer of a run, the tokens that end a response, and settings of the model's folder that the run does not follow."""

from collections.abc import Sequence

from rljax.data.tokenizer import (
    IDS,
    HuggingFaceTokenizer,
    IdTokenizer,
    Tokenizer,
    has_tokenizer_files,
    load_tokenizer,
    turn_end,
)
from rljax.data.tokenizer_note import folder_tokenizer, read_note
from rljax.errors import InputError
from rljax.models.folder_notes import unused_generation_settings
from rljax.models.huggingface import locate, read_config
from rljax.models.model_folder import end_tokens, read_json
from rljax.training.config import ModelConfig, TrainConfig


def make_tokenizer(config: TrainConfig) -> Tokenizer:
    """Load the tokenizer that is set, or else the model's, or else the generated task's, or else the byte tokenizer.

    Raises:
        InputError: the tokenizer cannot be found or read, or 'ids' is chosen for a model whose folder names no end token.
    """
    return configure_tokenizer(_load(config), config.model)


def with_chat(config: TrainConfig, *, is_used: bool) -> TrainConfig:
    """Return settings with chat on or off; when off, the other chat settings are reset to their defaults."""
    others = {} if is_used else {"chat_template_kwargs": None, "chat_date": None, "prefill": None}
    return config.replace(chat=is_used, **others)


def configure_tokenizer(tokenizer: Tokenizer, model: ModelConfig) -> Tokenizer:
    """Apply the settings of chats and special tokens to a tokenizer.

    Raises:
        InputError: the settings keep special tokens, but the tokenizer has none.
    """
    if isinstance(tokenizer, HuggingFaceTokenizer):
        return tokenizer.with_settings(model.chat_format(), keeps_special=model.keep_special_tokens)
    if model.keep_special_tokens:
        raise InputError(
            f"keep_special_tokens: a {type(tokenizer).__name__} has no special tokens to keep; leave keep_special_tokens out, or "
            "use a model's tokenizer."
        )
    return tokenizer


def _load(config: TrainConfig) -> Tokenizer:
    if config.model.tokenizer == IDS:
        return _id_tokenizer(config.model)
    if config.model.tokenizer is not None:
        return load_tokenizer(config.model.tokenizer)
    if config.model.path is not None:
        return folder_tokenizer(locate(config.model.path))
    return load_tokenizer("bytes" if config.generated_task is None else config.generated_task.tokenizer)


def _id_tokenizer(config: ModelConfig) -> IdTokenizer:
    """Make the tokenizer that writes token ids as text, for a model folder."""
    if config.path is None:
        raise InputError(
            "the tokenizer 'ids' is for a model without a tokenizer; set the model, or choose 'bytes' or 'characters'."
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
    """Return True if a model folder or hub id comes with a tokenizer."""
    folder = locate(model)
    return read_note(folder) is not None or has_tokenizer_files(folder)


def check_stop_ids(stop_ids: Sequence[int], tokenizer: Tokenizer) -> None:
    """Reject stop ids outside the vocabulary.

    Raises:
        InputError: an id does not exist; the message names it.
    """
    wrong = next((token for token in stop_ids if not 0 <= token < tokenizer.vocab_size), None)
    if wrong is not None:
        raise InputError(f"stop_ids has {wrong}, but there is no such token; ids are 0 to {tokenizer.vocab_size - 1}.")


def all_end_tokens(model: ModelConfig, tokenizer: Tokenizer, stop_ids: Sequence[int] = ()) -> tuple[int, ...]:
    """Return the tokens that end a response, each once.

    These are the tokenizer's end token; with chat on, the token with which the template ends a turn; the end tokens of the model's
    folder, unless a tokenizer from elsewhere is used whose end token is not among them; and `stop_ids`.

    Args:
        model: settings of the model.
        tokenizer: tokenizer of prompts and responses.
        stop_ids: further ids.

    Raises:
        InputError: one of the `stop_ids` is outside the vocabulary.
    """
    check_stop_ids(stop_ids, tokenizer)
    stored = () if model.path is None else end_tokens(locate(model.path))
    if model.tokenizer not in (None, IDS) and tokenizer.eos_token_id not in stored:
        stored = ()
    turn = turn_end(tokenizer) if model.chat else None
    return tuple(dict.fromkeys([tokenizer.eos_token_id, *([] if turn is None else [turn]), *stored, *stop_ids]))


def unused_folder_settings(config: TrainConfig, tokenizer: Tokenizer) -> list[str]:
    """List settings of the model's folder that the run does not follow: sampling, penalties, and the context length.

    Args:
        config: the settings.
        tokenizer: tokenizer of prompts and responses.
    """
    if config.model.path is None:
        return []
    folder, sampling = locate(config.model.path), config.sampling
    notes = unused_generation_settings(folder, temperature=sampling.temperature, top_k=sampling.top_k, top_p=sampling.top_p)
    context = [read_json(folder / "config.json").get("max_position_embeddings")]
    context += [tokenizer.inner.model_max_length] if isinstance(tokenizer, HuggingFaceTokenizer) else []
    positions = min((length for length in context if isinstance(length, int)), default=None)
    longest = config.data.max_prompt_tokens + sampling.max_response_tokens
    if positions is not None and longest > positions:
        notes.append(
            f"max_prompt_tokens + max_response_tokens = {longest} is more than the {positions} positions of the model"
        )
    return notes
