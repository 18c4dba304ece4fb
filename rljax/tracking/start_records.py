"""`starts.jsonl` of a run folder: one row for the first start and one for each resume, with what is needed to repeat the run.

A row contains digests of everything that the run reads in addition to its settings: rows, rewards, environment, chat template,
tokenizer. The settings contain only the path or name of an input, but a file can be edited, and another folder may have a file of
the same name. If a run were resumed with different inputs, its results would no longer be comparable.
"""

import hashlib
import inspect
import json
import os
import platform
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import datetime
from functools import partial
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from pathlib import Path
from types import FunctionType, MappingProxyType
from typing import Any, NamedTuple

import jax

import rljax
from rljax.data.problem import Problem
from rljax.data.tokenizer import HuggingFaceTokenizer, Tokenizer
from rljax.errors import InputError
from rljax.importing import is_custom, sources_of
from rljax.models.huggingface import locate
from rljax.package_metadata import NAME
from rljax.rewards import REWARD_FAMILIES
from rljax.rewards.reward_scores import Weighted
from rljax.rollout.environment import ENVIRONMENTS, functions_in, texts_in
from rljax.tracking.rows import json_safe, read_rows
from rljax.tracking.run_folder import RunFolder, append_rows

NOTHING: Mapping[str, str] = MappingProxyType({})
TRAIN_ROWS, HELDOUT_ROWS, REWARD = "training rows", "held-out rows", "reward"
TOKENIZER, TEMPLATE = "tokenizer", "chat template"
ENVIRONMENT, ENVIRONMENT_FILES = "environment", "environment's files"
EVALUATION_INPUTS = (HELDOUT_ROWS, REWARD, ENVIRONMENT, ENVIRONMENT_FILES, TOKENIZER, TEMPLATE)
"""Inputs that determine a run's held-out accuracy."""
MODEL = "model:"
"""Prefix of the name of a reward that is a model folder."""
END_BYTES = 1 << 20
"""Number of bytes at the beginning and at the end of each file that a model's digest covers."""

Inputs = Mapping[str, str]
"""Name of an input -> its digest. Inputs without a digest, such as functions without source code, are absent."""


class Change(NamedTuple):
    """A setting or input that has changed since the run was last started or resumed."""

    name: str
    """Flat name of the setting, or name of the input."""
    before: Any
    """Value in the run's config.json, or digest at the run's last start."""
    after: Any
    """New value, or digest now."""

    def __str__(self) -> str:
        """Format the change as `steps: 100 -> 200`."""
        return f"{self.name}: {self.before} -> {self.after}"


def read_versions() -> dict[str, str]:
    """Return the versions of rljax, Python, and every installed package that rljax requires.

    Example:
        >>> read_versions()["python"] == platform.python_version(), "optax" in read_versions()
        (True, True)
    """
    found = {"rljax": rljax.__version__, "python": platform.python_version()}
    try:
        required = requires(NAME) or []
    except PackageNotFoundError:  # a clone on the path, not installed
        required = []
    for requirement in ["jax", "jaxlib", "numpy", "optax", "flax", "orbax-checkpoint", "transformers", *required]:
        name = re.split(r"[^\w.-]", requirement, maxsplit=1)[0]  # without its extras and versions
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # the package belongs to an extra that is not installed
            continue
    return found


def describe_devices() -> str:
    """Describe the devices of this process."""
    kinds = sorted({device.device_kind for device in jax.devices()})
    return f"{jax.device_count()} x {', '.join(kinds)} ({jax.default_backend()})"


def record_start(
    folder: RunFolder,
    step: int,
    changes: Sequence[Change] = (),
    inputs: Inputs = NOTHING,
    input_changes: Sequence[Change] = (),
) -> None:
    """Append a row about this start.

    Args:
        folder: the run.
        step: number of RL steps done.
        changes: settings that were changed on resume.
        inputs: digests of everything that the run reads in addition to its settings, by name.
        input_changes: inputs whose changes were accepted on resume.
    """
    row = {
        "at": datetime.now().isoformat(timespec="seconds"),
        "step": step,
        "command": sys.argv,
        "folder": str(Path.cwd()),
        "devices": describe_devices(),
        "system": platform.platform(),
        "versions": read_versions(),
        "changes": json_safe([change._asdict() for change in changes], "changes"),
        "inputs": dict(inputs),
        "input_changes": [change._asdict() for change in input_changes],
    }
    append_rows(folder.starts, [row])


def text_inputs(tokenizer: Tokenizer, *, chat: bool) -> dict[str, str | None]:
    """Compute the digests of a tokenizer, and of its chat template if it is used."""
    inner = tokenizer.inner if isinstance(tokenizer, HuggingFaceTokenizer) else None
    template = None if inner is None or not chat else inner.chat_template
    return {TOKENIZER: digest_of(tokenizer_facts(tokenizer)), TEMPLATE: None if template is None else digest_of(template)}


def evaluation_inputs(problems: Iterable[Problem] | None, reward: str | None) -> dict[str, str | None]:
    """Compute the digests of the inputs that determine a run's held-out accuracy.

    Args:
        problems: the held-out problems; None if the evaluation uses other problems.
        reward: digest of the reward; None if it has no digest, or if something other than a reward judges.
    """
    return {HELDOUT_ROWS: None if problems is None else digest_of_rows(problems), REWARD: reward}


def inputs_of_judge(reward: str | None, environment: object, config: Any) -> dict[str, str | None]:
    """Compute the digests of what judges a run's responses: the environment, with the files that its options name, or the rewards.

    Args:
        reward: digest of the rewards.
        environment: the environment; None if the rewards judge.
        config: settings of the run, which may name the environment.
    """
    named, options = config.reward.environment, config.reward.environment_options
    return {
        REWARD: reward if environment is None else None,
        ENVIRONMENT: digest_of_name(named, ENVIRONMENTS) if named else digest_of_object(environment),
        ENVIRONMENT_FILES: digest_of_options(options),
    }


def digest_of_parts(parts: Sequence[Callable | str], built_in: Iterable[str]) -> str | None:
    """Compute a digest of the source code of rewards, except rljax's own, since its version is recorded; None if none remain.

    Args:
        parts: the rewards, or their names.
        built_in: names of rljax's own rewards.
    """
    digests = [digest_of_name(part, built_in) if isinstance(part, str) else digest_of_object(part) for part in parts]
    known = [digest for digest in digests if digest is not None]
    return digest_of(known) if known else None


def list_input_changes(folder: RunFolder, now: Mapping[str, str | None]) -> tuple[Change, ...]:
    """List the inputs that have changed since the run's last start, except those whose earlier or present digest is unknown."""
    before = read_recorded_inputs(folder)
    pairs = [(name, before.get(name), digest) for name, digest in now.items()]
    return tuple(Change(name, old, new) for name, old, new in pairs if old is not None and new is not None and old != new)


def check_inputs(folder: RunFolder, now: Mapping[str, str | None], *, accepts: bool) -> tuple[Change, ...]:
    """Refuse inputs that have changed since the run's last start.

    Args:
        folder: the run.
        now: the inputs in use.
        accepts: whether the user accepts changes.

    Returns:
        The changes that were accepted.

    Raises:
        InputError: inputs have changed, and the user does not accept this; the message names the inputs.
    """
    changes = list_input_changes(folder, now)
    if changes and not accepts:
        names = " and the ".join(change.name for change in changes)
        raise InputError(
            f"The {names} of the run {str(folder.path)!r} changed since it was last started, so results before and after "
            "would not be comparable. Restore what the run read, or add --accept-changes (accept_changes=True)."
        )
    return changes


def read_recorded_inputs(folder: RunFolder) -> Inputs:
    """Return the inputs that the run recorded last; empty if only earlier versions of rljax started it.

    Raises:
        InputError: a row of `starts.jsonl` cannot be read; the message names the file and the line.
    """
    return next((row["inputs"] for row in reversed(_read_starts(folder)) if row.get("inputs")), {})


def lacks_recorded_inputs(folder: RunFolder) -> bool:
    """True if the run was started by a version of rljax that did not record inputs: 0.3.0 or earlier.

    Raises:
        InputError: a row of `starts.jsonl` cannot be read; the message names the file and the line.
    """
    rows = _read_starts(folder)
    return bool(rows) and "inputs" not in rows[0]


def _read_starts(folder: RunFolder) -> list[dict[str, Any]]:
    return read_rows(folder.starts, lambda row: None)


def digest_of_rows(problems: Iterable[Problem]) -> str:
    """Compute a digest of problems in their order; it covers everything that prompts, demonstrations and rewards depend on.

    Example:
        >>> one, two = Problem("1+1=", "2"), Problem("1+1=", "3")
        >>> digest_of_rows([one]) == digest_of_rows([one]), digest_of_rows([one]) == digest_of_rows([two])
        (True, False)
    """
    digest = hashlib.sha256()
    for problem in problems:
        digest.update(json.dumps(_to_plain(vars(problem))).encode())
    return digest.hexdigest()[:16]


def _to_plain(value: object) -> object:
    """Convert a value to JSON. An unsupported object becomes the name of its type, because its repr may contain an address."""
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, Mapping):
        return [[_to_plain(name), _to_plain(entry)] for name, entry in value.items()]
    if isinstance(value, list | tuple | set | frozenset):
        entries = [_to_plain(entry) for entry in value]
        return sorted(entries, key=repr) if isinstance(value, set | frozenset) else entries
    if hasattr(value, "tolist"):
        return _to_plain(value.tolist())  # pyright: ignore[reportAttributeAccessIssue]
    if callable(value):
        return [_code_of(value).__qualname__, digest_of_object(value)]
    is_data = isinstance(value, Path) or type(value).__module__ in ("builtins", "datetime", "decimal")
    return repr(value) if is_data and type(value) is not object else type(value).__qualname__


def digest_of(content: object) -> str:
    """Compute a digest of plain data."""
    return hashlib.sha256(json.dumps(_to_plain(content)).encode()).hexdigest()[:16]


def tokenizer_facts(tokenizer: Tokenizer) -> list[object]:
    """Collect everything that determines how text becomes ids and ids become text."""
    own: list[object] = [type(tokenizer).__qualname__, tokenizer.vocab_size, tokenizer.eos_token_id]
    if not isinstance(tokenizer, HuggingFaceTokenizer):
        return own
    inner = tokenizer.inner
    backend = getattr(inner, "backend_tokenizer", None)
    model = sorted(inner.get_vocab().items()) if backend is None else json.loads(backend.to_str())
    if isinstance(model, dict):  # padding and truncation depend on the last call, not on the tokenizer
        model = {name: part for name, part in model.items() if name not in ("padding", "truncation")}
    return [*own, model]


def digest_of_name(name: str, built_in: Iterable[str]) -> str | None:
    """Compute a digest of the file behind a name in the settings; None for a name defined by rljax."""
    if not name or name in built_in:
        return None
    family, _, source = name.partition(":")
    if family == "brier":
        return digest_of_name(source, built_in)
    if name.startswith(MODEL):
        return digest_of_model(name.removeprefix(MODEL))
    if family in REWARD_FAMILIES:
        return _digest_of_file(Path(source).expanduser())
    return _digest_of_code(name.rpartition(":")[0]) if is_custom(name) else None


def digest_of_options(options: str | None) -> str | None:
    """Compute a digest of the code and the files that the options of an environment name; None if there are none."""
    if options is None:
        return None
    code = [digest_of_name(name, ()) for name in functions_in(options)]
    files = [Path(text).expanduser() for text in texts_in(options)]
    # os.path.isfile, unlike Path.is_file, returns False for any text that cannot be a path.
    data = [_digest_of_file(file) for file in files if os.path.isfile(file)]
    known = [digest for digest in (*code, *data) if digest is not None]
    return digest_of(known) if known else None


def _digest_of_code(source: str) -> str | None:
    """Compute a digest of a Python file or module, including the user's files that it imports."""
    if source.endswith(".py"):
        file = Path(source).expanduser()
    else:
        spec = find_spec(source)
        file = None if spec is None or spec.origin is None else Path(spec.origin)
    if file is None or not file.is_file():
        return None
    own, *imported = [_digest_of_file(path) for path in sources_of(file)]
    return digest_of([own, *imported]) if imported else own


def _digest_of_file(path: Path) -> str | None:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16] if path.is_file() else None


def digest_of_model(model: str | None) -> str | None:
    """Compute a digest of a model folder: its small files, and the sizes and both ends of its large files."""
    if model is None or model == "self":  # a model that is its own teacher
        return None
    digest = hashlib.sha256()
    for path in sorted(path for path in locate(model).iterdir() if path.is_file() and not path.name.startswith(".")):
        size = path.stat().st_size
        digest.update(f"{path.name} {size}\n".encode())
        with path.open("rb") as file:
            digest.update(file.read(END_BYTES))
            file.seek(max(size - END_BYTES, 0))
            digest.update(file.read(END_BYTES))
    return digest.hexdigest()[:16]


def digest_of_object(part: Any) -> str | None:
    """Compute a digest of a function's source and bound arguments, or of the source of an object's class.

    The fields of a frozen dataclass or a named tuple count; attributes of other objects do not, because they may change in a run.

    Returns:
        The digest; None if there is no object or no source, or if the code is rljax's own, since its version is recorded, and calls
        no function of the user.
    """
    if isinstance(part, Weighted):
        return digest_of([part.rewards, part.weights, part.total])
    if isinstance(part, partial):
        own, bound = digest_of_object(part.func), [part.args, sorted(part.keywords.items())]
        return digest_of([own, bound]) if any(bound) else own
    own = _code_of(part)
    if part is None:
        return None
    if own.__module__.partition(".")[0] == "rljax":
        return digest_of_parts(_wrapped_functions(part), ())
    try:
        source, state = inspect.getsource(own), _fixed_state(part)
        return digest_of(source if state is None else [source, state])
    except (OSError, TypeError):  # the code was typed into a console, or is written in C
        return None


def _wrapped_functions(part: Any) -> list[Callable]:
    """Return the functions that one of rljax's functions was made from, as `each(function)` is, or that one of its objects has."""
    if inspect.isroutine(part) or inspect.isclass(part):
        values = [cell.cell_contents for cell in getattr(inspect.unwrap(part), "__closure__", None) or ()]
    else:
        values = [*getattr(part, "__dict__", {}).values()]
    entries = [entry for value in values for entry in (value if isinstance(value, list | tuple) else [value])]
    kinds = (FunctionType, partial, Weighted)
    return [entry for entry in entries if isinstance(entry, kinds) and entry is not part]


def _fixed_state(part: Any) -> Mapping[str, Any] | None:
    """Return the fields of an object whose fields cannot be assigned: a frozen dataclass or a named tuple; None for others."""
    if isinstance(part, tuple) and hasattr(part, "_asdict"):
        return part._asdict()  # pyright: ignore[reportAttributeAccessIssue]
    is_frozen = is_dataclass(part) and not isinstance(part, type) and part.__dataclass_params__.frozen  # pyright: ignore[reportAttributeAccessIssue]
    return {field.name: getattr(part, field.name) for field in fields(part)} if is_frozen else None  # pyright: ignore[reportArgumentType]


def _code_of(part: Any) -> Any:
    """Return the function or class whose source code defines an object."""
    return part if inspect.isroutine(part) or inspect.isclass(part) else type(part)


def digest_of_files(folder: Path, names: Sequence[str]) -> str:
    """Compute a digest of the named files in a folder; a file may be absent."""
    return digest_of([_digest_of_file(folder / name) for name in names])


def list_accepted_changes(folder: RunFolder) -> list[str]:
    """Return the names of the inputs whose changes were accepted after the run's first start, without duplicates."""
    changed = [change["name"] for row in _read_starts(folder) for change in row.get("input_changes", ())]
    return list(dict.fromkeys(changed))


def explain_changed_inputs(names: Sequence[str]) -> list[str]:
    """Explain which changed inputs make the evaluations before and after a change incomparable; empty if there are none.

    Args:
        names: inputs that changed during the run.

    Example:
        >>> explain_changed_inputs(["reward"]), explain_changed_inputs(["training rows"])
        (['The reward changed during the run, so held-out results before and after it are not comparable.'], [])
    """
    changed = [name for name in names if name in EVALUATION_INPUTS]
    if not changed:
        return []
    return [
        f"The {' and the '.join(changed)} changed during the run, so held-out results before and after it are not comparable."
    ]
