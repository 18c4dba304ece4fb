"""Notes on what is not used in a model folder: entries of config.json, weight files, and generation settings."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from rljax.models.config_json import ROPE, entries_that_are_read, rope_entry
from rljax.models.families import FAMILIES
from rljax.models.model_folder import GENERATION, INDEX, WEIGHTS, read_json

CONFIG_WITHOUT_NOTE = frozenset(
    {
        *("architectures", "model_type", "transformers_version", "_name_or_path", "_model_name_or_path"),
        *("_sliding_window_pattern", "unk_token_id", "unsloth_version", "unsloth_fixed", "auto_map", "use_return_dict"),
        *("dtype", "torch_dtype", "initializer_range", "use_cache", "pretraining_tp", "chunk_size_feed_forward"),
        *("bos_token_id", "eos_token_id", "pad_token_id", "problem_type", "id2label", "label2id", "num_labels"),
        *("return_dict", "output_attentions", "output_hidden_states", "_attn_implementation", "transformers.js_config"),
        *("is_llama_config", "cache_implementation", "output_router_logits", "router_aux_loss_coef"),
    }
)
"""Entries of config.json that are read elsewhere, or that do not change what any family of `transformers` computes."""
WEIGHT_FILES = (".safetensors", ".safetensors.index.json", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".ckpt")
"""Suffixes of files that may contain weights."""
GENERATION_WITHOUT_NOTE = frozenset(
    {
        *("transformers_version", "_from_model_config", "cache_implementation", "use_cache", "pad_token_id"),
        *("bos_token_id", "eos_token_id", "do_sample", "max_length", "max_new_tokens", "return_dict_in_generate"),
        *("output_attentions", "output_hidden_states", "output_scores", "output_logits", "trust_remote_code"),
        "disable_compile",
    }
)
"""Entries of generation_config.json that are read elsewhere, or that do not change any token."""


def notes_on_folder(folder: Path, used: Collection[Path]) -> list[str]:
    """List the entries of a model's config.json that have no effect, and the weight files that are not read.

    An entry has no effect if no model of the family reads it, or if another entry overrides it.

    Args:
        folder: the model's folder.
        used: the weight files that are read.
    """
    raw = read_json(folder / "config.json")
    family = FAMILIES[raw.get("model_type") or "llama"]
    known = entries_that_are_read(family) | CONFIG_WITHOUT_NOTE
    unknown = {name: value for name, value in raw.items() if name not in known and value not in (None, False)}
    own = f"{family.class_prefix}ForCausalLM"
    named = [name for name in raw.get("architectures") or () if name.endswith("ForCausalLM") and name != own]
    unread = sorted(
        {file.name for file in folder.iterdir() if file.name.endswith(WEIGHT_FILES)} - {file.name for file in used}
    )
    if folder / WEIGHTS not in used:
        unread = [name for name in unread if name != INDEX]  # the index is in use, because it names the files that are read
    notes = [f"config.json of {folder} has {entry}" for entry in _overridden_rope(raw)]
    if unknown:
        effect = "that, so it has" if len(unknown) == 1 else "these, so they have"
        notes.append(
            f"config.json of {folder} has {_list_entries(unknown)}; no {family.class_prefix} model reads {effect} no effect"
        )
    if named:
        notes.append(
            f"config.json of {folder} has the architecture {named[0]}; it is read as {own} because of its model_type"
        )
    if unread:
        read = ", ".join(sorted(file.name for file in used))
        notes.append(f"{folder} also has {', '.join(unread)}; only {read} {'is' if len(used) == 1 else 'are'} read")
    return notes


def _overridden_rope(raw: Mapping[str, Any]) -> list[str]:
    """List entries for rotary positions that another entry overrides with a different value."""
    old, new = (raw.get(name) for name in ROPE)
    rope = rope_entry(raw)
    kinds = [rope, *(kind for kind in rope.values() if isinstance(kind, dict))]
    older = [kind for kind in kinds if kind.get("type") not in (None, kind.get("rope_type", kind.get("type")))]
    thetas = [kind["rope_theta"] for kind in kinds if kind.get("rope_theta") is not None]
    found = [f"{ROPE[0]} and a different {ROPE[1]}; {ROPE[0]} is read"] if old and new and old != new else []
    found += [
        f"the rotary type {kind['type']!r:.40} and rope_type {kind['rope_type']!r:.40}; the latter is read"
        for kind in older
    ]
    if thetas and raw.get("rope_theta") not in (None, *thetas):
        entry = ROPE[0] if old else ROPE[1]
        found.append(f"rope_theta={raw['rope_theta']!r:.40}; {thetas[0]!r:.40} in {entry} is read")
    return found


def unused_generation_settings(folder: Path, *, temperature: float, top_k: int | None, top_p: float | None) -> list[str]:
    """List the settings of generation_config.json that sampling ignores, because it uses the settings that are passed here.

    Args:
        folder: the model's folder.
        temperature: sampling temperature; 0 selects the most likely token.
        top_k: number of most likely tokens that are sampled from; None: all tokens.
        top_p: probability mass of the most likely tokens that are sampled from; None: all tokens.
    """
    file = folder / GENERATION
    raw = read_json(file) if file.is_file() else {}
    passed = {"temperature": temperature, "top_k": top_k or 0, "top_p": top_p or 1.0}
    defaults = {"temperature": 1.0, "top_p": 1.0, "repetition_penalty": 1.0, "num_beams": 1}
    unused = {
        name: value
        for name, value in raw.items()
        if name not in GENERATION_WITHOUT_NOTE
        and value is not None
        and value not in (defaults.get(name), passed.get(name))
        and (value or name in passed)
    }
    if not unused:
        return []
    return [f"the model's {GENERATION} sets {_list_entries(unused)}; tokens are sampled without these settings"]


def _list_entries(entries: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r:.40}" for name, value in sorted(entries.items()))
