"""The folder that `rljax preprocess` writes: rows, dropped rows, a report, and a manifest with hashes."""

import hashlib
import json
import platform
from collections.abc import Iterable, Sequence
from importlib.metadata import version

from rich.console import Console
from rich.progress import track
from rich.table import Table
from rich.text import Text

import rljax
from rljax.data.preprocess import REASONS, Prepared, Verify, prepare_rows
from rljax.data.preprocess_options import Preprocess
from rljax.data.problem import Problem
from rljax.data.problem_datasets import LoadedProblems, read_problems
from rljax.data.reading import locate
from rljax.data.tokenizer import HuggingFaceTokenizer, load_tokenizer
from rljax.errors import InputError
from rljax.files import atomic_write

MANIFEST, REPORT, DROPPED = "manifest.json", "report.json", "dropped.jsonl"


def preprocess(recipe: Preprocess, verify: Verify) -> Prepared:
    """Read a dataset, prepare it and write the folder.

    The same recipe on the same input gives the same bytes, so a folder that already contains the result may be overwritten.

    Args:
        recipe: the options of the command.
        verify: the function that judges the answers; see `rljax.data.preprocess.Verify`.

    Returns:
        The rows, the dropped rows and the report, as written.

    Raises:
        InputError: a dataset, tokenizer or held-out file cannot be read, no row is left, or the output folder has other files.
    """
    tokenizer = load_tokenizer(recipe.tokenizer)
    loaded = read_problems(
        recipe.input,
        split=recipe.split,
        prompt_column=recipe.prompt_column,
        answer_column=recipe.answer_column,
        demonstration_column=recipe.demonstration_column,
        on_error=recipe.on_error,
    )
    # Keep held-out questions with bad answers, because they must not leak either.
    heldout = [read_problems(name, split="test", on_error="keep") for name in recipe.heldout]
    source = _identity(recipe.input, recipe.split, loaded)
    _refuse_foreign_folder(recipe, source)
    heldout_problems = [problem for part in heldout for problem in part.problems]
    prepared = prepare_rows(loaded, recipe, tokenizer, verify, heldout_problems, watch=progress_bar)
    outputs = {
        f"{recipe.split}.jsonl": _lines(prepared.rows),
        DROPPED: _lines(item._asdict() for item in prepared.dropped),
        REPORT: _document(prepared.report),
    }
    needed = ("numpy", "jax", *(["transformers"] if isinstance(tokenizer, HuggingFaceTokenizer) else []))
    manifest = {
        "made_by": "rljax preprocess",
        "versions": {
            "python": platform.python_version(),
            "rljax": rljax.__version__,
            **{name: version(name) for name in needed},
        },
        "options": recipe.to_json(),
        "input": source,
        "heldout": [_identity(name, "test", part) for name, part in zip(recipe.heldout, heldout, strict=True)],
        "outputs": {name: {"bytes": len(data), "sha256": _sha256(data)} for name, data in outputs.items()},
        "counts": {
            "rows_in": loaded.rows,
            "rows_out": len(prepared.rows),
            "dropped": {reason: counted["rows"] for reason, counted in prepared.report["dropped"].items()},
        },
    }
    recipe.output.mkdir(parents=True, exist_ok=True)
    # The manifest is written last: a folder with a manifest is complete.
    for name, data in {**outputs, MANIFEST: _document(manifest)}.items():
        atomic_write(recipe.output / name, data)
    return prepared


def progress_bar(items: Sequence, what: str) -> Iterable:
    """Iterate over items with a progress bar, which disappears at the end; without a terminal there is no bar."""
    console = Console(stderr=True)
    return track(items, what, console=console, transient=True, disable=not console.is_terminal)


def report_table(report: dict) -> Table:
    """Make a table of row counts: rows read, dropped for each reason, checked and written.

    Args:
        report: the report of `prepare_rows`.

    Returns:
        A `rich` table with one line per count.
    """
    table = Table(title=Text(f"{report['source']} ({report['format']})"))
    table.add_column("rows", justify="right")
    table.add_column("share", justify="right")
    table.add_column("what")
    table.add_column("first")

    def add_line(rows: int, what: str, first: str = "") -> None:
        table.add_row(f"{rows:,}", f"{abs(rows) / report['rows_in']:.1%}", Text(what), Text(first))

    add_line(report["rows_in"], "read")
    for reason, counted in report["dropped"].items():
        add_line(-counted["rows"], f"{reason}: {REASONS[reason]}", f"{counted['first']}: {counted['detail']}")
    if report["kept_with_faults"]:
        add_line(report["kept_with_faults"], "kept despite a bad answer or demonstration")
    add_line(report["answers_checked"], "answers checked")
    add_line(report["rows_out"], "written")
    return table


def _identity(name: str, split: str, loaded: LoadedProblems) -> dict:
    """Identify the data: a file by the hash of its bytes, a hub dataset by the hash of its problems."""
    path = locate(name, split)
    if path is not None:
        data = path.read_bytes()
        return {"name": name, "file": path.name, "bytes": len(data), "sha256": _sha256(data)}
    problems: Iterable[Problem] = loaded.problems
    return {"name": name, "split": split, "sha256_of_problems": _sha256(_lines(vars(problem) for problem in problems))}


def _refuse_foreign_folder(recipe: Preprocess, source: dict) -> None:
    folder = recipe.output
    if not folder.exists():
        return
    if not folder.is_dir():
        raise InputError(f"the output {str(folder)!r} is a file; choose a folder.")
    ours = {f"{recipe.split}.jsonl", MANIFEST, REPORT, DROPPED}
    foreign = sorted(file.name for file in folder.iterdir() if file.name not in ours)
    if foreign:
        raise InputError(
            f"the output folder {str(folder)!r} contains {foreign[0]!r}, which this command did not write; choose another folder."
        )
    manifest = folder / MANIFEST
    if not manifest.is_file():
        if any(folder.iterdir()):
            raise InputError(f"the output folder {str(folder)!r} contains files without a manifest; choose another folder.")
        return
    try:
        previous = json.loads(manifest.read_text(encoding="utf-8"))
        is_same = previous["options"] == json.loads(json.dumps(recipe.to_json())) and previous["input"] == source
    except (ValueError, KeyError, TypeError):
        is_same = False
    if not is_same:
        raise InputError(
            f"the output folder {str(folder)!r} contains the result of other options or of another input; choose another folder."
        )


def _lines(rows: Iterable[dict]) -> bytes:
    return b"".join(_json(row) + b"\n" for row in rows)


def _json(row: dict) -> bytes:
    # Rows may contain dates and bytes, which JSON lacks; text may contain lone surrogates, which UTF-8 cannot encode.
    try:
        return json.dumps(row, ensure_ascii=False, default=str).encode()
    except UnicodeEncodeError:
        return json.dumps(row, default=str).encode()


def _document(content: dict) -> bytes:
    return json.dumps(content, ensure_ascii=False, indent=2).encode(errors="backslashreplace") + b"\n"


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
