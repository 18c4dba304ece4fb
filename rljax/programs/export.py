"""Write the model of a run as a folder that other programs can open, and upload it."""

from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from jax.sharding import Mesh

from rljax.data.tokenizer_files import save_tokenizer_files
from rljax.errors import InputError
from rljax.files import check_local
from rljax.models import Policy
from rljax.models.adapters import Adapter
from rljax.models.huggingface import locate, read_config
from rljax.models.model_folder import MAX_SHARD_SIZE, byte_count
from rljax.models.peft_folder import save_adapter
from rljax.models.pruning import ZeroPattern, prune_contents, read_pattern
from rljax.parallel import agree, fetch, mesh_of, run_on_first, run_together
from rljax.parallel.memory import device_bytes
from rljax.programs.model_memory import check_model_fits
from rljax.programs.trained_policy import Which, find_run, fit_devices, open_adapter, parameters_of
from rljax.records import required
from rljax.text import one_line
from rljax.tracking.run_folder import RunFolder
from rljax.training.config import TrainConfig
from rljax.training.parts.custom_parts import CustomParts, check_parts, read_saved_settings, refuse_missing
from rljax.training.parts.model_folder import Companions, companions, save_model, write_atomically
from rljax.training.parts.policy import make_policy
from rljax.training.parts.tokenizer import make_tokenizer


@runtime_checkable
class Client(Protocol):
    """The methods of `huggingface_hub.HfApi` that an upload needs."""

    def whoami(self) -> Any:
        """Return the owner of the token; raise if there is no token."""
        ...

    def create_repo(self, repo_id: str, *, private: bool, exist_ok: bool) -> Any:
        """Create a repository."""
        ...

    def upload_folder(self, *, repo_id: str, folder_path: Path, commit_message: str) -> Any:
        """Upload the files of a folder in one commit."""
        ...


def export(
    target: str | Path,
    folder: str | Path,
    *,
    which: Which = "best",
    policy: Policy | None = None,
    dtype: str | None = None,
    max_shard_size: str = MAX_SHARD_SIZE,
    adapter: bool = False,
    quantize: str | None = None,
    prune: str | None = None,
    push: str | None = None,
    private: bool = False,
    client: Client | None = None,
) -> Path:
    """Write a model to a folder that `AutoTokenizer`, `AutoModelForCausalLM` and `rljax.load` can open.

    The folder contains config.json, safetensors, generation_config.json, and the run's tokenizer with its chat template. The
    weights pass through the host one tensor at a time. A model that was trained from a checkpoint keeps its config.json and
    weight dtypes: bfloat16 stays bfloat16. A custom policy is written by its `save`, unless it has `contents`. If there are
    several hosts, all processes call this together, and the first one writes.

    Args:
        target: folder of a run, of one of its checkpoints (`RUN/checkpoints/last`), or of a model.
        folder: folder to write, which must not exist yet; it appears only when it is complete.
        which: "best" or "last" checkpoint of a run.
        policy: the custom policy that was passed to `train`; None means the built-in one.
        dtype: dtype of the weights: float32, bfloat16, float16 or float64; None means their dtype in the model that the run
            started from, or float32.
        max_shard_size: size limit of a weights file, such as "5GB".
        adapter: write only the low-rank adapter, as a folder that `peft` can open on top of the base; otherwise the adapter is
            merged into the exported model.
        quantize: "int8" or "int4" stores the matrices of the layers as integers, which `transformers` (with the package
            compressed-tensors), vLLM and rljax open.
        prune: "0.5" sets this fraction of the weights in each matrix of the layers, the smallest ones, to zero; "N:M" keeps N of
            M adjacent inputs.
        push: repository on the Hugging Face hub, OWNER/NAME, to upload the folder to.
        private: whether a repository that does not exist yet is created as private.
        client: uploads the folder, instead of `huggingface_hub.HfApi()`.

    Returns:
        The folder.

    Raises:
        InputError: the folder exists, the target is neither a run with checkpoints nor a model folder, the policy is missing or
            cannot be saved, an option has an unknown value, there is no adapter or its base has changed, or the hub cannot be
            reached.
    """
    folder, limit = Path(folder), byte_count(max_shard_size)
    agree("arguments of the export", repr((str(target), str(folder), which, dtype, limit, adapter, quantize, prune, push)))
    run_together(lambda: check_new(folder))
    pattern = None if prune is None else read_pattern(prune)
    uploads: list[Client] = []
    if push is not None:
        run_on_first(lambda: uploads.append(check_push(push, client)))
    config, run, place, policy, mesh, extra = run_together(lambda: model_of(target, which, policy))
    if adapter:
        check_adapter_export(config, dtype, quantize, prune)
        factors = open_adapter(config, policy, mesh, required(run, "run"), place).params
        write_atomically(folder, lambda part: write_adapter(part, config, factors, extra))
    else:
        params = parameters_of(config, policy, mesh, run, place)
        if pattern is not None:
            policy = pruned_policy(policy, pattern)
        form = {"dtype": dtype, "quantize": quantize, "max_shard_bytes": limit}
        write_atomically(folder, lambda part: save_model(part, policy, params, extra, **form))
    if push is not None:
        run_on_first(lambda: push_folder(uploads[0], folder, push, private=private))
    return folder


def model_of(
    target: str | Path, which: Which, policy: Policy | None
) -> tuple[TrainConfig, RunFolder | None, str, Policy, Mesh, Companions]:
    """Return settings, folder, checkpoint, policy and mesh of the model to export, and the files that accompany its weights."""
    run, place = find_run(target, which)
    if run is None and not (Path(target) / "config.json").is_file():
        raise InputError(
            f"{str(target)!r} is not the folder of a run with checkpoints, nor of a model; name a folder that `rljax train` "
            "wrote."
        )
    folder = None if run is None else RunFolder.open(run)
    config, needed = (TrainConfig.flat(model=str(target)), ()) if folder is None else read_saved_settings(folder.config)
    config = config.replace(attention="blockwise")  # the devices may differ from those of the run
    check_parts(CustomParts(policy))
    if policy is None:
        refuse_missing([name for name in needed if name == "policy"])
    devices = fit_devices(config.devices)
    mesh = mesh_of(devices)
    tokenizer = make_tokenizer(config)
    if policy is None:
        policy = make_policy(config.model, tokenizer, mesh)
    check_model_fits(config, policy, mesh, device_bytes(mesh))
    extra = companions(config, tokenizer)
    return config, folder, place, policy, mesh, extra if folder is not None else extra._replace(sampling=None)


def pruned_policy(policy: Policy, pattern: ZeroPattern) -> Policy:
    """Return the policy, changed so that its weights are pruned when it is written as a model folder.

    Raises:
        InputError: the policy writes its own folder.
    """
    contents = policy.contents
    if contents is None:
        raise InputError("prune cannot be used with a policy that writes its own folder; leave it out.")
    return policy._replace(contents=lambda params: prune_contents(contents(params), pattern))


def check_new(folder: Path) -> None:
    """Reject a folder that exists, or that is not on this machine."""
    check_local(folder, "folder")
    if folder.exists():
        raise InputError(f"{str(folder)!r} already exists; choose another folder.")


def check_push(repository: str, client: Client | None = None) -> Client:
    """Check whether an upload can succeed. This is called before any model is read.

    Args:
        repository: OWNER/NAME.
        client: replaces `huggingface_hub.HfApi()`.

    Returns:
        The client.

    Raises:
        InputError: the name is not OWNER/NAME, huggingface-hub is not installed, there is no token, or the hub rejects the token.
    """
    parts = repository.split("/")
    if len(parts) != 2 or not all(parts):
        raise InputError(
            f"the repository {repository!r} must be OWNER/NAME, where the owner is you or one of your organizations."
        )
    if client is None:
        try:
            from huggingface_hub import HfApi, get_token  # noqa: PLC0415  only a push needs it
        except ImportError as error:
            raise InputError("--push needs the package huggingface-hub; run `pip install huggingface-hub`.") from error
        if get_token() is None:
            raise InputError(
                f"there is no token for the Hugging Face hub, so nothing can be pushed to {repository!r}; run `hf auth login`, or "
                "set HF_TOKEN to a token with write access."
            )
        client = HfApi()
    try:
        client.whoami()
    except Exception as error:  # from the network, or from the hub
        raise InputError(
            f"the Hugging Face hub does not accept the token ({one_line(error)}); check the token and the network."
        ) from error
    return client


def push_folder(client: Client, folder: Path, repository: str, *, private: bool) -> None:
    """Upload a model's folder; create the repository if it does not exist yet.

    Raises:
        InputError: the hub rejects the upload; the folder is kept.
    """
    try:
        client.create_repo(repository, private=private, exist_ok=True)
        client.upload_folder(repo_id=repository, folder_path=folder, commit_message="Upload model from rljax")
    except Exception as error:  # from the network, or from the hub
        raise InputError(
            f"{str(folder)!r} could not be pushed to {repository!r} ({one_line(error)}); the folder is complete, so push it again "
            f"with `hf upload {repository} {folder}`."
        ) from error


def check_adapter_export(
    config: TrainConfig, dtype: str | None, quantize: str | None = None, prune: str | None = None
) -> None:
    """Refuse to write an adapter alone if there is none, if its base is in no folder, or if options would change its weights.

    Args:
        config: settings of the run.
        dtype: requested dtype of the weights, or None.
        quantize: requested integer type, or None.
        prune: requested pruning pattern, or None.

    Raises:
        InputError: an adapter cannot be written.
    """
    if config.adapter.rank is None:
        raise InputError("this run trained the full model, so it has no adapter; leave --adapter out.")
    if config.model.path is None:
        raise InputError(
            "this run's adapter changes a model that began with random weights, which are in no folder that `peft` could open; "
            "leave --adapter out, to merge the adapter into the model."
        )
    for name, value in {"dtype": dtype, "quantize": quantize, "prune": prune}.items():
        if value is not None:
            raise InputError(f"{name}={value!r} cannot be used with an adapter, which is float32; leave it out.")


def write_adapter(folder: Path, config: TrainConfig, adapter: Adapter, companions: Companions) -> None:
    """Write only an adapter and the tokenizer; all processes call this together, and the first one writes.

    Args:
        folder: folder of the adapter.
        config: settings of its run.
        adapter: factors of the adapter, on the mesh.
        companions: files and settings that accompany the weights.
    """
    host, path = fetch(adapter), required(config.model.path, "model")
    shape = read_config(locate(path))

    def write() -> None:
        save_adapter(folder, shape, host, alpha=config.adapter.alpha, base=path)
        save_tokenizer_files(companions.tokenizer, folder)

    run_on_first(write)
