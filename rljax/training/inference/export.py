"""Write the model of a run as a folder that other programs open, and upload it."""

from pathlib import Path

from jax.sharding import Mesh

from rljax.errors import InputError
from rljax.models import Policy
from rljax.models.model_folder import MAX_SHARD_SIZE, byte_count
from rljax.parallel import agree, make_mesh, on_first, together
from rljax.parallel.memory import device_bytes
from rljax.tracking.run_folder import RunFolder
from rljax.training.config import TrainConfig
from rljax.training.inference.hub import Client, check_push, push_folder
from rljax.training.inference.trained_policy import Which, find_run, fit_devices, parameters_of
from rljax.training.memory.memory_check import check_loaded
from rljax.training.parts.adapter import check_alone, open_adapter, write_adapter
from rljax.training.parts.model_folder import Companions, atomically, companions, save_model
from rljax.training.parts.policy import make_policy
from rljax.training.parts.seams import Seams, check_parts, refuse_missing, saved_settings
from rljax.training.parts.tokenizer import make_tokenizer


def export(
    target: str | Path,
    folder: str | Path,
    *,
    which: Which = "best",
    policy: Policy | None = None,
    dtype: str | None = None,
    max_shard_size: str = MAX_SHARD_SIZE,
    adapter: bool = False,
    push: str | None = None,
    private: bool = False,
    client: Client | None = None,
) -> Path:
    """Write a run's model to a folder that `AutoTokenizer`, `AutoModelForCausalLM` and `rljax.load` open.

    The folder holds config.json, safetensors, generation_config.json, and the run's tokenizer with its chat template. The weights
    pass through the host one tensor at a time. A model that was trained from a checkpoint has its config.json and its types of
    weights: bfloat16 stays bfloat16. A policy of your own is written by its `save`, unless it has `contents`. On several hosts all
    processes call this together, and the first one writes.

    Args:
        target: folder of a run, or of one of its checkpoints (`RUN/checkpoints/last`).
        folder: where to write; it must not exist yet, and appears when it is complete.
        which: "best" or "last" checkpoint of a run.
        policy: the policy that was passed to `train`, if any.
        dtype: type of the weights: float32, bfloat16, float16 or float64; None: the checkpoint's, or float32.
        max_shard_size: largest file of weights, such as "5GB".
        adapter: write the low-rank adapter alone, as a folder that `peft` opens on top of the base; without this, a run with an
            adapter gives a model like any other, with the adapter merged in.
        push: repository on the Hugging Face hub, OWNER/NAME, to which the folder is uploaded too.
        private: whether a repository that does not exist yet is made private.
        client: uploads, in place of `huggingface_hub.HfApi()`.

    Returns:
        The folder.

    Raises:
        InputError: the folder exists, the target is not a run with checkpoints, the policy is missing or cannot be saved, a value
            is unknown, there is no adapter or its base is another model now, or the hub cannot be reached.
    """
    folder, limit = Path(folder), byte_count(max_shard_size)
    agree("arguments of the export", repr((str(target), str(folder), which, dtype, limit, adapter, push)))
    together(lambda: check_new(folder))
    uploads: list[Client] = []
    if push is not None:
        on_first(lambda: uploads.append(check_push(push, client)))
    config, run, place, policy, mesh, beside = together(lambda: model_of(target, which, policy))
    if adapter:
        check_alone(config, dtype)
        factors = open_adapter(config, policy, mesh, run, place).params
        atomically(folder, lambda part: write_adapter(part, config, factors, beside))
    else:
        params = parameters_of(config, policy, mesh, run, place)
        atomically(folder, lambda part: save_model(part, policy, params, beside, dtype=dtype, max_shard_bytes=limit))
    if push is not None:
        on_first(lambda: push_folder(uploads[0], folder, push, private=private))
    return folder


def model_of(
    target: str | Path, which: Which, policy: Policy | None
) -> tuple[TrainConfig, RunFolder, str, Policy, Mesh, Companions]:
    """Settings, folder, checkpoint, policy and mesh of a run whose model is exported, and what stands beside the weights."""
    run, place = find_run(target, which)
    if run is None:
        raise InputError(f"{str(target)!r} is not the folder of a run with checkpoints; give one that `rljax train` made.")
    folder = RunFolder.open(run)
    config, needed = saved_settings(folder.config)
    config = config.replace(attention="blockwise")  # the devices may be others than those of the run
    check_parts(Seams(policy))
    if policy is None:
        refuse_missing([name for name in needed if name == "policy"])
    devices = fit_devices(config.devices)
    mesh = make_mesh(devices.replicas, devices.fsdp, devices.tensor)
    tokenizer = make_tokenizer(config)
    if policy is None:
        policy = make_policy(config.model, tokenizer, mesh)
    check_loaded(config, policy, mesh, device_bytes(mesh))
    return config, folder, place, policy, mesh, companions(config, tokenizer)


def check_new(folder: Path) -> None:
    """Refuse a folder that exists."""
    if folder.exists():
        raise InputError(f"{str(folder)!r} already exists; choose another folder.")
