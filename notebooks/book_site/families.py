"""Pages of the families of models that load from a Hugging Face folder."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from book_site.docstrings import escape_text, table
from rljax.models.families import FAMILIES, USUAL
from rljax.models.families import Family as Record

RESULTS = Path(__file__).resolve().parents[2] / "experiments" / "parity" / "results.md"


class Family(NamedTuple):
    """Contents of a family's page, as phrases in Markdown."""

    models: str
    """Models of the family by name, for those who search for one."""
    example: str
    """A hub id for the command."""
    layers: str
    """How its layers differ from those of other families."""
    refused: str
    """Entries of config.json that are refused, because `transformers` would compute something else."""
    weights: str = "none yet; its layers have been compared with random weights, below"
    """Published weights that have been trained here."""


EXPERTS = (
    "Every token passes through the experts that its router finds most probable. The mesh axis `tensor` splits the experts, so it "
    "must divide their number. With `--lora-rank`, each expert has its own factors, unless `--lora-targets attention` leaves the "
    "experts out. `--quantize` refuses the matrices of experts. No loss that balances the experts is added, and `transformers` "
    "does not add one by default either. Each RL step logs how the "
    "routers divide the tokens (`router_balance`, `router_entropy`, `router_largest_share`, `router_unused_share`), and `--freeze "
    "router` keeps the routers unchanged."
)
PAGES: Mapping[str, Family] = MappingProxyType(
    {
        "llama": Family(
            "Llama 2, 3, 3.1 and 3.2 (text), TinyLlama, SmolLM and SmolLM2, DeepSeek-R1-Distill-Llama",
            "HuggingFaceTB/SmolLM2-135M-Instruct",
            "Grouped-query attention without biases, or with biases at all four projections (`attention_bias`) and in the "
            "feed-forward layers (`mlp_bias`); rotary positions, stretched if `rope_type` is `llama3`, `linear` or `yarn`. With "
            "`dynamic`, prompt and response together may have `max_position_embeddings` tokens.",
            "a sliding window, and stretched rotary positions of another type",
            "SmolLM2-135M-Instruct ([benchmarks](../../benchmarks.md))",
        ),
        "mistral": Family(
            "Mistral 7B, Mistral Nemo, Zephyr, and others with `model_type` mistral",
            "mistralai/Mistral-7B-Instruct-v0.3",
            "Grouped-query attention without biases; with `sliding_window`, each token sees that many tokens, in all layers.",
            "a window in some of the layers only",
        ),
        "qwen2": Family(
            "Qwen2, Qwen2.5, Qwen2.5-Math, Qwen2.5-Coder, DeepSeek-R1-Distill-Qwen",
            "Qwen/Qwen2.5-0.5B-Instruct",
            "Biases at queries, keys and values; if `use_sliding_window` is true, a window in the layers of `layer_types`, or "
            "from `max_window_layers` on.",
            "the mixture-of-experts and vision models, which are other families",
        ),
        "qwen3": Family(
            "Qwen3 0.6B to 32B (dense)",
            "Qwen/Qwen3-0.6B",
            "Every query and key head is normalized (RMSNorm); heads have `head_dim` features, whatever the width."
            " With `attention_bias`, all four projections have biases.",
            "rotary positions of a type that is not listed above",
        ),
        "gemma": Family(
            "Gemma 2B and 7B, CodeGemma",
            "google/gemma-2b-it",
            "As Llama, with norms whose scales are stored minus 1, GELU in place of SiLU, and embeddings times the root of the "
            "width.",
            "activation functions other than GELU with the tanh approximation",
        ),
        "gemma2": Family(
            "Gemma 2 2B, 9B and 27B",
            "google/gemma-2-2b-it",
            "As Gemma, with norms before and after attention and feed-forward layer, a window in every other layer, and bounds on "
            "attention scores and logits (`attn_logit_softcapping`, `final_logit_softcapping`), which the programs `blockwise`, "
            "`dense` and `splash` compute.",
            "attention in both directions, and `--attention cudnn`, which cannot bound scores",
        ),
        "gemma3_text": Family(
            "Gemma 3 270M and 1B (text)",
            "google/gemma-3-270m-it",
            "Norms before and after attention and feed-forward layer, whose scales are stored minus 1; GELU in place of SiLU; five "
            "layers with a window and a rotary base of their own to each layer without; embeddings times the root of the width.",
            "the models that read images (`gemma3`), and a bound on attention scores, which `transformers` ignores",
            weights="none; the greedy tokens of Gemma 3 270M, from 4-bit weights, are those of `transformers` for 20 prompts "
            "(`tests/models/test_real_greedy.py`)",
        ),
        "olmo2": Family(
            "OLMo 2 1B to 32B",
            "allenai/OLMo-2-0425-1B-Instruct",
            "Norms after attention and feed-forward layer instead of before them; queries and keys are normalized over all heads.",
            "a sliding window",
        ),
        "olmo3": Family(
            "OLMo 3 7B and 32B",
            "allenai/Olmo-3-7B-Instruct",
            "As OLMo 2, with a window in three layers of four; YaRN, if it is set, stretches only the others.",
            "stretched rotary positions in layers with a window",
        ),
        "smollm3": Family(
            "SmolLM3 3B",
            "HuggingFaceTB/SmolLM3-3B",
            "As Llama, but every fourth layer has no rotary positions (`no_rope_layers`).",
            "a sliding window",
        ),
        "granite": Family(
            "Granite 3.0 to 3.3 (dense)",
            "ibm-granite/granite-3.3-2b-instruct",
            "As Llama, with factors for embeddings, scores, logits, and what each layer adds.",
            "the mixture-of-experts and hybrid models, which are other families",
        ),
        "phi3": Family(
            "Phi-3 mini and medium, Phi-4-mini (3.8B), Phi-4 (14B)",
            "microsoft/phi-4",
            "As Llama, with queries, keys and values stored as one matrix, and gate and up as another; with `sliding_window`, each "
            "token sees that many tokens, in all layers. Its low-rank adapters are exported merged, not as a folder for peft. "
            "Rotary positions of type `longrope` have the factors for sequences up to `original_max_position_embeddings` "
            "(4,096 tokens). If `short_factor` and `long_factor` in `config.json` are equal, the length is not limited: for long "
            "responses, copy the folder and write the long list in place of the short one. Sampler, learner, `transformers` and "
            "vLLM then use the long factors at every length, also with the exported model.",
            "with `longrope` and two lists, a prompt and a response that together are longer than that: `transformers` uses the "
            "long list for all tokens of a longer sequence, so a response that crosses the limit has probabilities under both",
        ),
        "qwen3_moe": Family(
            "Qwen3-30B-A3B, Qwen3-235B-A22B and Qwen3-Coder with experts",
            "Qwen/Qwen3-30B-A3B",
            f"As Qwen 3, with experts in place of each feed-forward layer. {EXPERTS}",
            "layers without experts (`mlp_only_layers`, `decoder_sparse_step`) and a sliding window",
        ),
        "mixtral": Family(
            "Mixtral 8x7B and 8x22B",
            "mistralai/Mixtral-8x7B-Instruct-v0.1",
            f"As Mistral, with experts in place of each feed-forward layer. {EXPERTS}",
            "noise in the router (`router_jitter_noise`)",
        ),
        "gpt_oss": Family(
            "gpt-oss-20b, gpt-oss-120b, and copies of them in bfloat16",
            "openai/gpt-oss-20b",
            "A sink in the softmax of each head, a window in every other layer, YaRN, and experts with biases and clamped gates. "
            "Experts that are stored in MXFP4 are read as the numbers that they represent, trained as floats, and exported in "
            f"bfloat16. {EXPERTS}",
            "`--attention cudnn` and `splash`, which have no sinks",
        ),
        "olmoe": Family(
            "OLMoE 1B-7B",
            "allenai/OLMoE-1B-7B-0125-Instruct",
            "Experts in place of each feed-forward layer, and queries and keys that are normalized over all heads. "
            + EXPERTS,
            "clipped queries, keys and values (`clip_qkv`)",
        ),
    }
)


def family_pages() -> dict[str, str]:
    """A page for each family: what loads, how to train it, and how it compares with `transformers`; and a table of all."""
    return {"models/index": _index(), **{f"models/{family}": _page(family, page) for family, page in PAGES.items()}}


def _index() -> str:
    rows = [
        (f"[`{name}`](#model-{name})", page.models, f"`{page.example}`", _marks(FAMILIES[name]))
        for name, page in PAGES.items()
    ]
    pages = "\n".join(PAGES)
    return f"""(page-models)=
# Supported models

A Hugging Face folder or hub id loads if the `model_type` in its `config.json` is in this table, which is made from the code that
reads it. Each family has been compared with `transformers`; its page says how, and what is refused.

{table(("model_type", "models", "for example", "attention and experts"), rows)}

```{{toctree}}
:hidden:

{pages}
```
"""


def _marks(record: Record) -> str:
    """The kinds of attention windows and of feed-forward layers."""
    windows = {"never": "full attention", "always": "a window, if set", "switch": "a window, if switched on"}
    window = windows.get(record.window, f"a window, except in one of {record.full_every} layers")
    return window + ("; experts" if "num_experts_per_tok" in record.defaults else "")


def _page(family: str, page: Family) -> str:
    name = FAMILIES[family].class_prefix
    has_experts = "num_experts_per_tok" in FAMILIES[family].defaults
    condition = ", if `lora_targets` is `attention`" if has_experts else ""
    adapter = "" if family == "phi3" else f"; `--adapter` writes a folder for peft{condition}"
    defaults = [(f"`{entry}`", f"`{value}`") for entry, value in (USUAL | FAMILIES[family].defaults).items()]
    return f"""(model-{family})=
# Model family: {name}

A folder or hub id whose `config.json` has `"model_type": "{family}"` loads, with safetensors: {page.models}.

    rljax train --model {page.example} --chat --dataset my_problems.jsonl \\
        --reward math --algorithm dapo --max-response-tokens 1024 \\
        --microbatch-rows 8 --dtype bfloat16 --remat full

`rljax plan` with the same flags says whether it fits your devices; [your model](../../your_model_and_data.md) has the rest.

**Layers.** {page.layers}

**Refused**, with a message that names the entry: {page.refused}.

**Trained here with published weights**: {page.weights}.

**Export.** `rljax export` writes the checkpoint's own `config.json`, tokenizer and tensor types, so `transformers` opens it as
it opens the original{adapter}.

## Entries that config.json may leave out

{table(("entry", "value that is used then"), defaults)}

## Compared with transformers

{_parity(name)}
"""


def _parity(name: str) -> str:
    """The family's rows of the committed comparison."""
    text = RESULTS.read_text(encoding="utf-8")
    how = text.split("\n\n")[2].replace("\n", " ")
    rows = [[cell.strip() for cell in line.strip("| ").split("|")] for line in text.splitlines() if line.startswith("| ")]
    head, own = rows[0], [row for row in rows if row[1].partition(",")[0] == name]
    if not own:
        return (
            "Small models with random weights match the logits and the gradients of `transformers` to 2e-5 in float32, and decode "
            "the same with a cache as without one: `tests/models/test_families.py`."
        )
    columns = [head.index(title) for title in ("library", "family", "way", "difference of logits", "equal")]
    titles = ("compared with", "model", "way", "largest difference of logits", "equal")
    return f"{escape_text(how)}\n\n{table(titles, [tuple(row[at] for at in columns) for row in own])}"
