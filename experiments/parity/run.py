"""Check that rljax computes the same outputs as `transformers` and `peft` from the same model folders.

    pip install -e '.[parity]'
    python experiments/parity/run.py        (takes a minute)

Weights, tokens and adapters are random. A model is exchanged in three ways:

| way | written by | read by |
| --- | --- | --- |
| loaded | `transformers` | rljax |
| exported | rljax, from its own model | `transformers` |
| trained | rljax, from a model that it loaded and changed, with that model's config.json | `transformers` |

An adapter is exchanged in a fourth way: rljax writes it, `peft` loads it on top of the base model, and rljax merges it into its
own copy. Every comparison is in float32 on a CPU, of the logits at every token and the log-probabilities of the response tokens.

Writes results.json and results.md next to this file, and exits with code 1 if a difference exceeds the bound.
"""

import argparse
import importlib.metadata
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch
import transformers

sys.path.append(str(Path(__file__).resolve().parents[1]))  # experiments/, which contains lab

from lab.rows import made_on, write_rows
from rljax.models import Model, TransformerConfig, init_params, transformer_policy
from rljax.models.adapters import init_adapter, merge
from rljax.models.huggingface import load_params, model_contents, read_config
from rljax.models.language_model import logits
from rljax.models.model_folder import write_model
from rljax.models.peft_folder import save_adapter
from rljax.rollout import Sequences, pack_one_per_row

BOUND = 1e-4
"""Largest allowed difference between two logits or log-probabilities."""
ROWS, TOKENS, PROMPT, WINDOW = 4, 48, 8, 8
VOCABULARY, WIDTH, LAYERS, HEADS, KV_HEADS, HEAD_DIM, HIDDEN = 512, 128, 4, 8, 2, 16, 320
COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "intermediate_size": HIDDEN,
    "max_position_embeddings": 256,
}
STRETCH = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
FAMILIES: dict[str, transformers.PretrainedConfig] = {
    "Llama": transformers.LlamaConfig(**COMMON, tie_word_embeddings=False),
    "Llama, stretched rotations": transformers.LlamaConfig(**COMMON, rope_parameters=STRETCH),
    "Mistral": transformers.MistralConfig(**COMMON, sliding_window=None),
    "Mistral, sliding window": transformers.MistralConfig(**COMMON, sliding_window=WINDOW),
    "Qwen2": transformers.Qwen2Config(**COMMON, tie_word_embeddings=True),
    "Qwen2, sliding window": transformers.Qwen2Config(
        **COMMON, tie_word_embeddings=True, use_sliding_window=True, sliding_window=WINDOW, max_window_layers=1
    ),
    "Qwen3": transformers.Qwen3Config(**COMMON, head_dim=2 * HEAD_DIM, tie_word_embeddings=True),
}
TARGETS = {"every matrix": ("attention", "feed_forward"), "some": ("layers/[12]/attention/query", "value", "down")}
"""Name of an adapter -> patterns of the matrices that it changes."""


class Outputs(NamedTuple):
    """Outputs of one library: the next-token logits at every token, and the log-probability of each response token."""

    logits: np.ndarray
    logp: np.ndarray


def generate_tokens() -> np.ndarray:
    """Generate the token sequences that all models read."""
    return np.random.default_rng(0).integers(0, VOCABULARY, (ROWS, TOKENS)).astype(np.int32)


def outputs_of_transformers(model: torch.nn.Module) -> Outputs:
    """Compute the outputs of a PyTorch model."""
    tokens = torch.from_numpy(generate_tokens()).long()
    with torch.no_grad():
        out = model.eval()(tokens).logits
    logp = torch.log_softmax(out[:, PROMPT - 1 : -1], -1).gather(-1, tokens[:, PROMPT:, None])[..., 0]
    return Outputs(out.numpy(), logp.numpy())


def outputs_of_rljax(config: TransformerConfig, params: Any) -> Outputs:
    """Compute the outputs of rljax: logits as in evaluation, and log-probabilities as in training."""
    tokens = generate_tokens()
    slots = jnp.broadcast_to(jnp.arange(TOKENS), tokens.shape)
    out = logits(Model(config), params, jnp.asarray(tokens), slots, jnp.ones_like(slots))
    prompts, rest = tokens[:, :PROMPT], tokens[:, PROMPT:]
    packed = pack_one_per_row(Sequences(prompts, np.ones_like(prompts, bool), rest, np.ones_like(rest, bool)))
    scores = transformer_policy(config, eos=1).score(params, jax.tree.map(jnp.asarray, packed), 1.0)
    return Outputs(np.asarray(out), np.asarray(scores.logp))


def add_noise(params: Any, seed: int) -> Any:
    """Add noise to every tensor, including biases and norms."""
    leaves, tree = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.key(seed), len(leaves))
    return tree.unflatten(
        [leaf + 0.05 * jax.random.normal(key, leaf.shape) for leaf, key in zip(leaves, keys, strict=True)]
    )


def load_model(folder: Path) -> torch.nn.Module:
    """Load a `transformers` model from its folder, in float32."""
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def model_rows(family: str, folder: Path) -> Iterator[dict[str, Any]]:
    """Compare a family's model in the three ways of the module's docstring."""
    torch.manual_seed(0)
    theirs = transformers.AutoModelForCausalLM.from_config(FAMILIES[family], dtype=torch.float32)
    with torch.no_grad():
        for tensor in theirs.parameters():
            tensor.add_(0.05 * torch.randn_like(tensor))
    theirs.save_pretrained(folder / "theirs")
    config = read_config(folder / "theirs")
    params = load_params(folder / "theirs", config)
    yield comparison_row(
        "transformers", family, "loaded", outputs_of_rljax(config, params), outputs_of_transformers(theirs)
    )
    if not family.startswith("Mistral"):  # without a source checkpoint, a Mistral model is exported as another family
        own = add_noise(init_params(config, jax.random.key(0)), 1)
        write_model(folder / "own", model_contents(config, own, bos=None, eos=1))
        yield comparison_row(
            "transformers",
            family,
            "exported",
            outputs_of_rljax(config, own),
            outputs_of_transformers(load_model(folder / "own")),
        )
    params = add_noise(params, 2)
    write_model(folder / "trained", model_contents(config, params, bos=None, eos=1, source=folder / "theirs"))
    ours, theirs = outputs_of_rljax(config, params), outputs_of_transformers(load_model(folder / "trained"))
    yield comparison_row("transformers", family, "trained", ours, theirs)


def adapter_rows(family: str, folder: Path) -> Iterator[dict[str, Any]]:
    """Compare adapters on a family's model; `change_by_adapter` shows that an adapter changes the base model's outputs."""
    import peft  # noqa: PLC0415  only adapters need it

    config = read_config(folder / "theirs")
    params = load_params(folder / "theirs", config)
    plain = outputs_of_rljax(config, params).logits
    for name, targets in TARGETS.items():
        adapter = add_noise(init_adapter(jax.random.key(2), params, rank=4, targets=targets), 3)
        adapter_folder = folder / name.replace(" ", "_")
        save_adapter(adapter_folder, config, adapter, alpha=8.0, base=str(folder / "theirs"))
        ours = outputs_of_rljax(config, merge(params, adapter, jnp.float32(2.0)))
        theirs = outputs_of_transformers(peft.PeftModel.from_pretrained(load_model(folder / "theirs"), str(adapter_folder)))
        row = comparison_row("peft", family, f"adapter of {name}", ours, theirs)
        yield row | {"change_by_adapter": float(np.abs(ours.logits - plain).max())}


def comparison_row(library: str, family: str, way: str, ours: Outputs, theirs: Outputs) -> dict[str, Any]:
    """Compute the largest differences between the outputs of two libraries."""
    return {
        "library": library,
        "family": family,
        "way": way,
        "largest_logit": float(np.abs(theirs.logits).max()),
        "logit_difference": float(np.abs(ours.logits - theirs.logits).max()),
        "logp_difference": float(np.abs(ours.logp - theirs.logp).max()),
        "same_likeliest_token": float((ours.logits.argmax(-1) == theirs.logits.argmax(-1)).mean()),
    }


def all_rows() -> Iterator[dict[str, Any]]:
    """Compare every family in every way."""
    for family in FAMILIES:
        with tempfile.TemporaryDirectory() as scratch:
            yield from model_rows(family, Path(scratch))
            yield from adapter_rows(family, Path(scratch))


def is_equal(row: dict[str, Any]) -> bool:
    """Return whether both libraries agree up to the bound; an adapter must also change the model's outputs."""
    close = max(row["logit_difference"], row["logp_difference"]) <= BOUND
    return close and row.get("change_by_adapter", 1.0) > 1000 * BOUND


def package_versions() -> str:
    """Format the versions of the compared libraries."""
    return ", ".join(
        f"{name} {importlib.metadata.version(name)}" for name in ("transformers", "peft", "torch", "safetensors")
    )


def format_table(rows: list[dict[str, Any]]) -> str:
    """Format the results in Markdown."""
    lines = [
        "# The same numbers as transformers and peft",
        "",
        f"{made_on()}, {package_versions()}. `python experiments/parity/run.py` writes this page and explains the ways.",
        "",
        f"Random weights, {LAYERS} layers of width {WIDTH}, {VOCABULARY} tokens, {ROWS} rows of {TOKENS}; float32 on a CPU. No",
        f"logit and no log-probability may differ by more than {BOUND:g}.",
        "",
        "| library | family | way | largest logit | difference of logits | of log-probabilities | same likeliest token | equal |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: | --- |",
    ]
    for row in rows:
        lines.append(
            f"| {row['library']} | {row['family']} | {row['way']} | {row['largest_logit']:.1f} | {row['logit_difference']:.1e} "
            f"| {row['logp_difference']:.1e} | {row['same_likeliest_token']:.1%} | {'yes' if is_equal(row) else 'no'} |"
        )
    return "\n".join([*lines, ""])


def main() -> int:
    """Compare all families in all ways, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parent)
    out = parser.parse_args().out
    rows = []
    for row in all_rows():
        rows.append(row | {"made_on": made_on(), "versions": package_versions()})
        print(f"{row['family']}, {row['way']}: {row['logit_difference']:.1e}, {row['logp_difference']:.1e}", flush=True)
    write_rows(out / "results.json", rows)
    (out / "results.md").write_text(format_table(rows), encoding="utf-8")
    return 0 if all(map(is_equal, rows)) else 1


if __name__ == "__main__":
    sys.exit(main())
