"""Two tokenizers in the formats of real models: byte-level BPE, as in GPT-2 and Qwen, and BPE with byte fallback, as in Llama 2."""

from pathlib import Path

import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

CORPUS = [
    "the theory of the thing they thought",
    "12 + 30 = 42, 7 + 5 = 12",
    "naïve café, café",
    "and a line and a thing",
] * 3
SPECIALS = ["<pad>", "<end>"]


def _save(inner: Tokenizer, folder: Path) -> Path:
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<end>", pad_token="<pad>")
    fast.save_pretrained(folder)
    return folder


def byte_level(folder: Path) -> Path:
    """Write a byte-level BPE tokenizer."""
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=290, initial_alphabet=sorted(alphabet), special_tokens=SPECIALS, show_progress=False
    )
    inner.train_from_iterator(CORPUS, trainer)
    return _save(inner, folder)


def byte_fallback(folder: Path) -> Path:
    """Write a BPE tokenizer of characters that writes spaces as ▁ and unknown characters as bytes."""
    pieces = sorted({character for line in CORPUS for character in line.replace(" ", "▁")} - {"ï"})
    merges = [
        ("t", "h"),
        ("th", "e"),
        ("▁", "the"),
        ("a", "n"),
        ("an", "d"),
        ("i", "n"),
        ("o", "f"),
        ("▁", "of"),
        ("▁", "▁"),
    ]
    vocabulary = dict.fromkeys([*SPECIALS, *(f"<0x{n:02X}>" for n in range(256)), *pieces, *("".join(m) for m in merges)])
    ids = {piece: index for index, piece in enumerate(vocabulary)}
    inner = Tokenizer(models.BPE(ids, merges, byte_fallback=True, fuse_unk=True))
    inner.normalizer = normalizers.Replace(" ", "▁")
    inner.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    inner.add_special_tokens(SPECIALS)
    return _save(inner, folder)
