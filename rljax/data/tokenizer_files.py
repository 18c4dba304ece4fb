"""Writing a tokenizer into a model's folder, as files that `AutoTokenizer` and other programs read."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rljax.data.tokenizer import (
    OWN_NAME,
    ByteTokenizer,
    CharacterTokenizer,
    HuggingFaceTokenizer,
    IdTokenizer,
    Tokenizer,
)
from rljax.errors import InputError
from rljax.text import one_line

PATTERNS = (
    *("tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab.json", "vocab.txt", "merges.txt"),
    *("spiece.model", "sentencepiece*.model", "tekken.json", "chat_template*", "additional_chat_templates/*"),
)
"""Name patterns of a tokenizer's files in a model's folder, chat templates included."""

PAD, BOS, EOS = "<pad>", "<bos>", "<eos>"
"""Texts of the special tokens in the files of rljax's own tokenizers."""


def save_tokenizer_files(tokenizer: Tokenizer, folder: Path) -> list[str]:
    """Write a tokenizer, so that `AutoTokenizer.from_pretrained(folder)` loads one with the same ids.

    The files of a Hugging Face tokenizer, with its chat templates, are copied unchanged. rljax's own tokenizers become a
    tokenizer.json and a tokenizer_config.json; loaded from these, a character tokenizer still refuses unknown characters.

    Args:
        tokenizer: the tokenizer that the model was trained with.
        folder: the model's folder; it must exist.

    Returns:
        Names of the files; empty for `IdTokenizer`, which has no files.

    Raises:
        InputError: the tokenizer is of another kind, or its files no longer exist.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_tokenizer_files(CharacterTokenizer("01+"), Path(folder))
        ['tokenizer.json', 'tokenizer_config.json']
    """
    if isinstance(tokenizer, HuggingFaceTokenizer):
        return _copy_files(tokenizer, folder)
    if isinstance(tokenizer, IdTokenizer):
        return []
    _backend(tokenizer).save(str(folder / "tokenizer.json"))
    text = json.dumps(_config(tokenizer), indent=2, ensure_ascii=False)
    (folder / "tokenizer_config.json").write_text(text + "\n", encoding="utf-8")
    return ["tokenizer.json", "tokenizer_config.json"]


def tokenizer_name(tokenizer: Tokenizer) -> str:
    """Return the value of `--tokenizer` for a tokenizer; "." if its files are in the model's folder.

    Raises:
        InputError: the tokenizer is of another kind.

    Example:
        >>> tokenizer_name(CharacterTokenizer("01"))
        'characters:01'
    """
    if isinstance(tokenizer, CharacterTokenizer):
        return f"characters:{tokenizer.alphabet}"
    if isinstance(tokenizer, ByteTokenizer):
        return "bytes"
    if isinstance(tokenizer, HuggingFaceTokenizer):
        return "."
    raise InputError(
        f"a {type(tokenizer).__name__} cannot be named in a model's folder; use 'characters', 'bytes' or a model's tokenizer."
    )


def _specials(tokenizer: Tokenizer) -> dict[str, str]:
    """Return the tokenizer's special tokens, under their names in tokenizer_config.json."""
    bos = {} if tokenizer.bos_token_id is None else {"bos_token": BOS}
    return bos | {"eos_token": EOS, "pad_token": PAD}


def _config(tokenizer: Tokenizer) -> Mapping[str, Any]:
    """Contents of tokenizer_config.json."""
    return _specials(tokenizer) | {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": True,  # "<eos>" in a text is five characters, as in rljax
        OWN_NAME: tokenizer_name(tokenizer),
    }


def _backend(tokenizer: Tokenizer) -> Any:
    """Build the same tokenizer with the `tokenizers` library."""
    from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers, processors  # noqa: PLC0415  only a save needs it
    from tokenizers import Tokenizer as Backend  # noqa: PLC0415

    from rljax.data.token_texts import BYTE_LETTERS  # noqa: PLC0415

    if isinstance(tokenizer, CharacterTokenizer):
        letters = {letter: index for index, letter in enumerate(tokenizer.alphabet, 2)}
        # <unk> is not in the vocabulary, so a character outside the alphabet is an error.
        backend = Backend(models.WordLevel({PAD: 0, EOS: 1} | letters, unk_token="<unk>"))
        backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
        backend.decoder = decoders.Fuse()
    elif isinstance(tokenizer, ByteTokenizer):
        letters = {letter: byte + 3 for letter, byte in BYTE_LETTERS.items()}
        backend = Backend(models.BPE({PAD: 0, BOS: 1, EOS: 2} | letters, []))
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        backend.decoder = decoders.ByteLevel()
        backend.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, 1)])
    else:
        raise InputError(
            f"a {type(tokenizer).__name__} cannot be written as tokenizer.json; use 'characters', 'bytes' or a model's tokenizer."
        )
    specials = _specials(tokenizer).values()
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in specials])
    return backend


def _copy_files(tokenizer: HuggingFaceTokenizer, folder: Path) -> list[str]:
    """Copy the files that the tokenizer was loaded from; a tokenizer built in Python has no files, so it writes new ones."""
    source = tokenizer.inner.name_or_path
    if not source:
        return sorted(Path(file).name for file in tokenizer.inner.save_pretrained(folder) if Path(file).is_file())
    origin = _origin(source)
    files = sorted({file.relative_to(origin) for pattern in PATTERNS for file in origin.glob(pattern) if file.is_file()})
    if not files:
        raise InputError(f"the files of the tokenizer {tokenizer.name!r} are no longer in {str(origin)!r}; restore them.")
    for file in files:
        (folder / file).parent.mkdir(exist_ok=True)
        shutil.copyfile(origin / file, folder / file)  # only the content, not the source's file mode
    return [str(file) for file in files]


def _origin(source: str) -> Path:
    """Return the folder that a tokenizer was read from: a local one, or one in the hub's cache."""
    folder = Path(source).expanduser()
    if folder.is_dir():
        return folder
    from huggingface_hub import snapshot_download  # noqa: PLC0415  a local folder needs no network code
    from huggingface_hub.errors import HfHubHTTPError  # noqa: PLC0415

    try:
        return Path(snapshot_download(source, allow_patterns=list(PATTERNS)))
    except (HfHubHTTPError, OSError, ValueError) as error:
        raise InputError(
            f"the files of the tokenizer {source!r} cannot be found again ({one_line(error)}); check the folder or the network."
        ) from error
