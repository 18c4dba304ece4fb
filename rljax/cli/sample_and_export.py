"""`rljax sample` and `rljax export`: sample from a trained model, or write the model as a Hugging Face folder."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from rljax.cli.hosts import join_hosts
from rljax.errors import InputError
from rljax.programs.answer_settings import ChatSwitch, Quantization


@dataclass(frozen=True)
class Sample:
    """Continue prompts with a trained model."""

    target: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN_OR_MODEL")]
    """Folder of a run or of its checkpoint (RUN/checkpoints/last), Hugging Face folder, or hub id."""
    prompt: tuple[str, ...] = ()
    """One or more prompts."""
    prompt_ids: tuple[int, ...] = ()
    """One prompt as token ids. If the model has no tokenizer, ids are printed, including the end token."""
    count: int = 1
    """Number of continuations per prompt."""
    temperature: float = 0.0
    """Sampling temperature; 0 always takes the most likely token."""
    top_k: int | None = None
    """Sample only from the k most likely tokens."""
    top_p: float | None = None
    """Sample only from the smallest set of most likely tokens whose total probability is at least this."""
    stop: tuple[str, ...] | None = None
    """Texts that end a continuation and are included in it; by default the run's stop texts."""
    stop_ids: tuple[int, ...] = ()
    """Ids of tokens that end a continuation, in addition to the model's and the run's own."""
    max_response_tokens: int | None = None
    """Maximum number of tokens in a continuation; by default the run's."""
    least_tokens: int | None = None
    """Minimum number of tokens (budget forcing): if sampling ends earlier, the text of --continuation replaces the end token."""
    continuation: str = "Wait"
    """With --least-tokens: the text that replaces the end token."""
    environment: str | None = None
    """Environment that responds to the model's turns, as for `rljax train`; by default the run's."""
    environment_options: str | None = None
    """Arguments of the environment's class, as a JSON object."""
    trust: bool = False
    """Execute the environment that the run's config.json names, if it is code (file.py:Class or module:Class)."""
    accept_changes: bool = False
    """Open a run even if its chat template or tokenizer has changed since the run was last started."""
    chat: ChatSwitch = None
    """Format each prompt as a user's turn with the tokenizer's chat template (--no-chat: do not); by default as in the run."""
    tokenizer: str | None = None
    """Tokenizer for a model folder without one: 'bytes', 'characters', 'ids' (ids as text), a folder or a hub id."""
    checkpoint: Literal["best", "last"] = "best"
    """Which checkpoint of the run to use."""
    quantize: Quantization = None
    """Sample with weights quantized to 8 bits (int8) or 4 bits (nf4)."""
    seed: int = 0
    """Random seed for sampling."""


@dataclass(frozen=True)
class Export:
    """Write the model of a run, or the model in a folder, as a Hugging Face folder.

    The folder contains config.json, safetensors, generation_config.json, and the tokenizer of the run with its chat template.
    AutoTokenizer, AutoModelForCausalLM, `rljax sample` and `rljax train --model` can open it.
    """

    target: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN_OR_MODEL")]
    """Folder of a run, of its checkpoint (RUN/checkpoints/last), or of a model."""
    folder: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="FOLDER")]
    """Folder to write; it must not exist yet."""
    checkpoint: Literal["best", "last"] = "best"
    """Which checkpoint of the run to use."""
    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    """Type of the weights; by default their type in the model that the run started from, or float32."""
    max_shard_size: str = "50GB"
    """Maximum size of a weights file, such as 5GB; a larger model is split into several files with an index."""
    quantize: Literal["int8", "int4"] | None = None
    """Store the layers' weight matrices as integers, which rljax, vLLM and transformers (with compressed-tensors) can open."""
    prune: str | None = None
    """Set the smallest weights in each of the layers' matrices to zero: a fraction such as 0.5, or N:M, such as 2:4, to keep N of
    every M adjacent inputs. The folder does not become smaller; hardware that skips zeros needs the N:M pattern."""
    adapter: bool = False
    """For a run with --lora-rank: write only the low-rank adapter, as a folder that `peft` can open; by default, the adapter
    is merged into the model."""
    push: str | None = None
    """Repository on the Hugging Face hub, OWNER/NAME, to upload the folder to; needs `hf auth login`."""
    private: bool = False
    """Make the repository private if it does not exist yet."""
    coordinator: str | None = None
    """Export on several hosts that share a file system, with the same command on each: ADDRESS:PORT of the first host, or `auto`;
    see `rljax train --help-all`."""
    hosts: int | None = None
    """Number of hosts, if the coordinator is an address."""
    host: int | None = None
    """Index of this host, counted from 0, if the coordinator is an address."""


def run_sample(command: Sample) -> int:
    """Sample continuations of the prompts, and print them."""
    from rljax.data.problem import Problem  # noqa: PLC0415  --help need not wait for JAX
    from rljax.data.tokenizer import IDS, IdTokenizer  # noqa: PLC0415
    from rljax.programs.trained_policy import find_run, load  # noqa: PLC0415
    from rljax.training.parts.tokenizer import has_tokenizer  # noqa: PLC0415

    if not command.prompt and not command.prompt_ids:
        raise InputError("there is no prompt; give --prompt TEXT, or --prompt-ids 1 2 3.")
    if command.chat and not command.prompt:
        raise InputError("--chat formats the texts of --prompt, but --prompt-ids are used unchanged; leave --chat out.")
    is_model = find_run(command.target, command.checkpoint)[0] is None
    ids_alone = is_model and command.tokenizer is None and not command.prompt and not has_tokenizer(command.target)
    opened = load(
        command.target,
        which=command.checkpoint,
        tokenizer=IDS if ids_alone else command.tokenizer,
        problems=[Problem(prompt, "") for prompt in command.prompt] or [Problem("", "")],
        max_response_tokens=command.max_response_tokens,
        chat=command.chat,
        environment=command.environment,
        environment_options=command.environment_options,
        trust=command.trust,
        accept_changes=command.accept_changes,
        quantize=command.quantize,
    )
    if command.least_tokens is not None:
        from rljax.rollout.budget_forcing import force_budget  # noqa: PLC0415

        opened = opened._replace(worker=force_budget(opened.worker, command.least_tokens, command.continuation))
    if opened.skipped is not None:
        print(
            f"note: the run's config.json names code as the environment, {opened.skipped}. Without --trust it is not executed, and "
            "the model answers each prompt with one turn; read the code, then add --trust.",
            file=sys.stderr,
        )
    opened.print_unused_settings(temperature=command.temperature, top_k=command.top_k, top_p=command.top_p)
    names = ("count", "temperature", "top_k", "top_p", "stop", "stop_ids", "seed")
    options = {name: getattr(command, name) for name in names}
    sampled = opened.sample(command.prompt, **options) if command.prompt else []
    for prompt, texts in zip(command.prompt, sampled, strict=True):
        for text in texts:
            print(f"{prompt}\n{text}" if opened.config.model.chat else f"{prompt}{text}")
    if command.prompt_ids:
        continuations = opened.sample_ids([command.prompt_ids], **options)[0]
        if ids_alone:
            print(
                f"note: {command.target} has no tokenizer, so ids are printed; name one with --tokenizer.", file=sys.stderr
            )
        is_text = not isinstance(opened.tokenizer, IdTokenizer)
        for continuation in continuations:
            ids = [*command.prompt_ids, *continuation]
            print(opened.tokenizer.decode(ids) if is_text else " ".join(map(str, ids)))
    return 0


def run_export(command: Export) -> int:
    """Write the Hugging Face folder; on several hosts, join them first."""
    join_hosts(command.coordinator, command.hosts, command.host)
    from rljax.data.tokenizer import has_tokenizer_files  # noqa: PLC0415  --help need not wait for JAX
    from rljax.parallel import is_first  # noqa: PLC0415
    from rljax.programs.export import export  # noqa: PLC0415

    names = ("dtype", "max_shard_size", "adapter", "quantize", "prune", "push", "private")
    options = {name: getattr(command, name) for name in names}
    folder = export(command.target, command.folder, which=command.checkpoint, **options)
    if is_first():
        print(f"Model: {folder}")
        if not has_tokenizer_files(folder):
            print(
                f"note: no tokenizer was written, so AutoTokenizer would make an empty one; copy a tokenizer into {folder}."
            )
        if command.push is not None:
            print(f"Pushed to https://huggingface.co/{command.push}")
    return 0
