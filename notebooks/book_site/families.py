"""Documentation pages for the model families that can be loaded from a Hugging Face folder."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from book_site.docstrings import escape_text, table
from rljax.models.families import COMMON_DEFAULTS, FAMILIES, Family

RESULTS = Path(__file__).resolve().parents[2] / "experiments" / "parity" / "results.md"


class FamilyPage(NamedTuple):
    """Contents of a family's page, as phrases in Markdown."""

    models: str
    """Models of the family by name, for those who search for one."""
    example: str
    """A hub id for the command."""
    layers: str
    """How its layers differ from those of other families."""
    refused: str
    """What is refused, because `transformers` would compute something else."""
    weights: str = "none yet; its layers have been checked against `transformers` with random weights, see below"
    """Published weights that have been trained here."""


EXPERTS = (
    "Every token passes through the experts that its router finds most probable. The mesh axis `tensor` splits the experts, so it "
    "must divide their number. With `--lora-rank`, each expert has its own factors, unless `--lora-targets attention` leaves the "
    "experts out. `--quantize` refuses the matrices of experts. No loss that balances the experts is added, and `transformers` "
    "does not add one by default either. Each RL step logs how the "
    "routers divide the tokens (`router_balance`, `router_entropy`, `router_largest_share`, `router_unused_share`), and `--freeze "
    "router` keeps the routers unchanged."
)
PAGES: Mapping[str, FamilyPage] = MappingProxyType(
    {
        "llama": FamilyPage(
            "Llama 2, 3, 3.1 and 3.2 (text), TinyLlama, SmolLM and SmolLM2, DeepSeek-R1-Distill-Llama",
            "HuggingFaceTB/SmolLM2-135M-Instruct",
            "Grouped-query attention without biases, or with biases at all four projections (`attention_bias`) and in the "
            "feed-forward layers (`mlp_bias`); rotary positions (RoPE), scaled if `rope_type` is `llama3`, `linear` or `yarn`. "
            "With `dynamic`, prompt and response together may have at most `max_position_embeddings` tokens.",
            "a sliding window, and RoPE scaling of another type",
            "SmolLM2-135M-Instruct ([benchmarks](../../benchmarks.md))",
        ),
        "mistral": FamilyPage(
            "Mistral 7B, Mistral Nemo, Zephyr, and others with `model_type` mistral",
            "mistralai/Mistral-7B-Instruct-v0.3",
            "Grouped-query attention without biases; with `sliding_window`, each token sees that many tokens, in all layers.",
            "a window in some of the layers only",
        ),
        "qwen2": FamilyPage(
            "Qwen2, Qwen2.5, Qwen2.5-Math, Qwen2.5-Coder, DeepSeek-R1-Distill-Qwen",
            "Qwen/Qwen2.5-0.5B-Instruct",
            "Biases at queries, keys and values; if `use_sliding_window` is true, a window in the layers of `layer_types`, or "
            "from `max_window_layers` on.",
            "the mixture-of-experts and vision models, which are other families",
        ),
        "qwen3": FamilyPage(
            "Qwen3 0.6B to 32B (dense)",
            "Qwen/Qwen3-0.6B",
            "Every query and key head is normalized (RMSNorm); heads have `head_dim` features, whatever the width."
            " With `attention_bias`, all four projections have biases.",
            "RoPE scaling of a type that [Llama](#model-llama) refuses, too",
        ),
        "gemma": FamilyPage(
            "Gemma 2B and 7B, CodeGemma",
            "google/gemma-2b-it",
            "As Llama, with norms that store their scale minus 1, GELU in place of SiLU, and embeddings times the root of the "
            "width.",
            "activation functions other than GELU with the tanh approximation",
        ),
        "gemma2": FamilyPage(
            "Gemma 2 2B, 9B and 27B",
            "google/gemma-2-2b-it",
            "As Gemma, with norms before and after attention and feed-forward layer, a window in every other layer, and bounds on "
            "attention scores and logits (`attn_logit_softcapping`, `final_logit_softcapping`), which `--attention blockwise`, "
            "`dense` and `splash` support.",
            "attention in both directions, and `--attention cudnn`, which cannot bound scores",
        ),
        "gemma3_text": FamilyPage(
            "Gemma 3 270M and 1B (text)",
            "google/gemma-3-270m-it",
            "Norms before and after attention and feed-forward layer, which store their scale minus 1; GELU in place of SiLU; for "
            "each layer with full attention, five with a sliding window and another rotary base; embeddings times the root of the "
            "width.",
            "the models that read images (`gemma3`), and a bound on attention scores, which `transformers` ignores",
            weights="none; with 4-bit weights, greedy decoding of Gemma 3 270M matches `transformers` on 20 prompts "
            "(`tests/models/test_real_greedy.py`)",
        ),
        "olmo2": FamilyPage(
            "OLMo 2 1B to 32B",
            "allenai/OLMo-2-0425-1B-Instruct",
            "Norms after attention and feed-forward layer instead of before them; queries and keys are normalized over all heads.",
            "a sliding window",
        ),
        "olmo3": FamilyPage(
            "OLMo 3 7B and 32B",
            "allenai/Olmo-3-7B-Instruct",
            "As OLMo 2, with a window in three layers of four; YaRN, if it is set, scales RoPE only in the others.",
            "RoPE scaling in layers with a window",
        ),
        "smollm3": FamilyPage(
            "SmolLM3 3B",
            "HuggingFaceTB/SmolLM3-3B",
            "As Llama, but every fourth layer has no rotary positions (`no_rope_layers`).",
            "a sliding window",
        ),
        "granite": FamilyPage(
            "Granite 3.0 to 3.3 (dense)",
            "ibm-granite/granite-3.3-2b-instruct",
            "As Llama, with factors for embeddings, scores, logits, and what each layer adds.",
            "the mixture-of-experts and hybrid models, which are other families",
        ),
        "phi3": FamilyPage(
            "Phi-3 mini and medium, Phi-4-mini (3.8B), Phi-4 (14B)",
            "microsoft/phi-4",
            "As Llama, with queries, keys and values stored as one matrix, and gate and up as another; with `sliding_window`, each "
            "token sees that many tokens, in all layers. Its low-rank adapters are exported merged, not as a folder for peft. "
            "RoPE of type `longrope` uses the short factors, for sequences of up to `original_max_position_embeddings` tokens "
            "(4,096). If `short_factor` and `long_factor` in `config.json` are equal, the length is not limited: for long "
            "responses, copy the folder and write the long list in place of the short one. Sampler, learner, `transformers` and "
            "vLLM then use the long factors at every length, also with the exported model.",
            "with `longrope` and two different lists, a prompt and a response that together exceed "
            "`original_max_position_embeddings`: `transformers` uses the long list for all tokens of a longer sequence, so the "
            "probabilities of the tokens before the limit would change once a response crosses it",
        ),
        "qwen3_moe": FamilyPage(
            "Qwen3-30B-A3B, Qwen3-235B-A22B and Qwen3-Coder with experts",
            "Qwen/Qwen3-30B-A3B",
            f"As Qwen 3, with experts in place of each feed-forward layer. {EXPERTS}",
            "layers without experts (`mlp_only_layers`, `decoder_sparse_step`) and a sliding window",
        ),
        "mixtral": FamilyPage(
            "Mixtral 8x7B and 8x22B",
            "mistralai/Mixtral-8x7B-Instruct-v0.1",
            f"As Mistral, with experts in place of each feed-forward layer. {EXPERTS}",
            "noise in the router (`router_jitter_noise`)",
        ),
        "gpt_oss": FamilyPage(
            "gpt-oss-20b, gpt-oss-120b, and copies of them in bfloat16",
            "openai/gpt-oss-20b",
            "A sink in the softmax of each head, a window in every other layer, YaRN, and experts with biases and clamped gates. "
            "Experts that are stored in MXFP4 are read as the numbers that they represent, trained as floats, and exported in "
            f"bfloat16. {EXPERTS}",
            "`--attention cudnn` and `splash`, which have no sinks",
        ),
        "olmoe": FamilyPage(
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
        (f"[`{name}`](#model-{name})", page.models, f"`{page.example}`", _attention_and_experts(FAMILIES[name]))
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


def _attention_and_experts(family: Family) -> str:
    """Describe which layers have a sliding window, and whether there are experts."""
    windows = {"never": "full attention", "always": "a window, if set", "switch": "a window, if switched on"}
    window = windows.get(family.window, f"a window, except in one of {family.full_every} layers")
    return window + ("; experts" if "num_experts_per_tok" in family.defaults else "")


def _page(family: str, page: FamilyPage) -> str:
    name = FAMILIES[family].class_prefix
    has_experts = "num_experts_per_tok" in FAMILIES[family].defaults
    condition = ", if `lora_targets` is `attention`" if has_experts else ""
    adapter = "" if family == "phi3" else f"; `--adapter` writes a folder for peft{condition}"
    defaults = [(f"`{entry}`", f"`{value}`") for entry, value in (COMMON_DEFAULTS | FAMILIES[family].defaults).items()]
    return f"""(model-{family})=
# Model family: {name}

A folder or hub id whose `config.json` has `"model_type": "{family}"` loads, with safetensors: {page.models}.

    rljax train --model {page.example} --chat --dataset my_problems.jsonl \\
        --reward math --algorithm dapo --max-response-tokens 1024 \\
        --microbatch-rows 8 --dtype bfloat16 --remat full

`rljax plan` with the same flags says whether it fits your devices; see also [your model](../../your_model_and_data.md).

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
    """The family's rows of the recorded comparison with `transformers`."""
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
    titles = ("compared with", "model", "case", "largest difference of logits", "equal")
    return f"{escape_text(how)}\n\n{table(titles, [tuple(row[at] for at in columns) for row in own])}"
