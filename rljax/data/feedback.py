"""Feedback on a served model's responses, read from a queue of JSON lines that another process writes.

A queue is a file that grows; a source is a queue, or a folder of `*.jsonl` queues. For each line already read, a `LineLocation`
records the line's number, the position of its end in bytes, and a digest of the bytes before that position. The digests reveal
that a file was rotated, truncated or replaced.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from rljax.data.bad_rows import BadRowError, describe_value, short_repr
from rljax.data.cells import Messages, prompt_of, require
from rljax.data.chat import CHAT_COLUMNS, chat_columns
from rljax.records import is_finite_number
from rljax.text import did_you_mean, parse_json

WINDOW = 4096
"""Maximum number of bytes, up to the end of a line, that the line's digest covers."""
_BOM = b"\xef\xbb\xbf"
_ROTATED = re.compile(r"[.-](\d+|\d{4}-\d\d-\d\d([_T-]\d\d(-\d\d){0,2})?)")


OPTIONAL = ("thumbs", "reward", "id", "logp", "finished")
"""Optional entries; of `thumbs` and `reward`, exactly one must be present."""


class Feedback(NamedTuple):
    """The feedback in one line of a queue."""

    prompt: str
    """The prompt as text; for a chat, the contents of its messages joined by newlines."""
    messages: Messages | None
    """The prompt as a chat; None for plain text."""
    response: str | tuple[int, ...]
    """The response as text, or as the token ids that were sampled."""
    reward: float
    """The reward; 1 or 0 for thumbs up or down."""
    id: str | None = None
    """Unique name of the line."""
    logp: tuple[float, ...] | None = None
    """Log-probability of each token of the response under the policy that sampled it, in nats."""
    finished: bool = True
    """Whether the model ended the response, rather than being cut off."""
    columns: Mapping[str, object] = MappingProxyType({})
    """`tools` and `chat_template_kwargs`, which the chat template reads."""


class LineLocation(NamedTuple):
    """Position of the end of a line."""

    queue: str
    """Name of the queue's file, even if the line is in a rotated file."""
    file: str
    """Path of the file that contained the line when it was read: the queue itself or a rotated file."""
    line: int
    """Number of the line, counted from 1."""
    end: int
    """Number of bytes in the file up to the end of the line."""
    digest: str
    """Digest of the last `WINDOW` of these bytes."""


class Line(NamedTuple):
    """A complete line of a queue."""

    place: LineLocation
    """Location of the end of this line."""
    text: str
    """The line itself."""
    content: Feedback | BadRowError
    """The feedback, or the reason why the line cannot be used."""


class FilePart(NamedTuple):
    """A file to read, and where to continue in it."""

    file: Path
    """The file."""
    end: int = 0
    """Number of bytes already read."""
    line: int = 0
    """Number of lines already read."""
    note: str | None = None
    """A message to the user about the file."""


def list_queues(source: Path) -> list[Path]:
    """Return the files that grow: `source` itself, or the `.jsonl` files of a folder, sorted by name.

    Example:
        >>> list_queues(Path("queue.jsonl"))
        [PosixPath('queue.jsonl')]
    """
    return sorted(file for file in source.glob("*.jsonl") if file.is_file()) if source.is_dir() else [source]


def read_new_lines(source: Path, taken: Mapping[str, Sequence[LineLocation]]) -> Iterator[Line | str]:
    """Read the complete lines after those already taken. A line without a newline is still being written, so it is not read yet.

    Args:
        source: a file, which need not exist yet, or a folder.
        taken: name of a queue -> locations of the lines already taken from this queue, in order.

    Yields:
        The non-empty lines, in order. If a file was truncated or replaced, a message about it comes before its lines.
    """
    for queue in list_queues(source):
        for part in list_parts(queue, taken.get(queue.name, ())):
            if part.note is not None:
                yield part.note
            yield from _read_lines(part, queue.name)


def list_parts(queue: Path, places: Sequence[LineLocation]) -> list[FilePart]:
    """Return the files that contain the lines after the last location, oldest first.

    Usually this is the queue file itself. If the queue was rotated, these are the rotated file that contains the last location,
    the rotated files that changed later, and the queue file from its beginning. Without a location, all rotated files and the
    queue file are returned, so that nothing is lost if the queue was rotated before any line was read. A truncated file is read
    from the last location that it still contains, and a replaced file is read from its beginning; both get a note.

    Args:
        queue: the file that grows.
        places: locations of the lines already taken from the queue, in order.
    """
    if not places:
        return [*map(FilePart, list_rotated(queue)), FilePart(queue)]
    last = places[-1]
    if contains_line(queue, last):
        return [FilePart(queue, last.end, last.line)]
    older = list_rotated(queue)
    for number in reversed(range(len(older))):  # start with the newest: an older copy may also contain the last location
        if contains_line(older[number], last):
            return [FilePart(older[number], last.end, last.line), *map(FilePart, (*older[number + 1 :], queue))]
    if not queue.is_file() or not queue.stat().st_size:
        return []
    content = queue.read_bytes()
    for place in reversed(places):
        if place.end <= len(content) and digest_of(content[: place.end]) == place.digest:
            note = (
                f"{queue} was truncated after line {place.line}, although {last.line} lines had been read; reading continues after "
                f"line {place.line}."
            )
            return [FilePart(queue, place.end, place.line, note)]
    note = (
        f"{queue} was replaced after its line {last.line} was read, and no rotated file next to it contains that line. Lines after "
        "it that had not been read are lost; the new file is read from its beginning."
    )
    return [FilePart(queue, note=note)]


def list_rotated(queue: Path) -> list[Path]:
    """Return the rotated files next to a queue, oldest first.

    Their names are `NAME.DIGITS` or `NAME.DATE`, or have `-` instead of the dot: `queue.jsonl.1`, `queue.jsonl-20261122`,
    `queue.jsonl.2026-11-22_10-30-00`. Files with other names, such as backups and compressed files, are ignored.
    """
    names = {
        file: file.name.removeprefix(queue.name) for file in queue.parent.glob("*") if file.name.startswith(queue.name)
    }
    found = [file for file, end in names.items() if _ROTATED.fullmatch(end) and file.is_file()]
    return sorted(found, key=lambda file: (file.stat().st_mtime_ns, file.name))


def contains_line(file: Path, place: LineLocation) -> bool:
    """Return True if a file still contains the bytes that were read up to a location."""
    if not file.is_file() or file.stat().st_size < place.end:
        return False
    with file.open("rb") as opened:
        start = max(0, place.end - WINDOW)
        opened.seek(start)
        return digest_of(opened.read(place.end - start)) == place.digest


def digest_of(content: bytes) -> str:
    """Compute a digest of the last `WINDOW` bytes of the content.

    Example:
        >>> digest_of(b"1") == digest_of(b"0" * WINDOW + b"1"), digest_of(b"2" + b"1" * WINDOW) == digest_of(b"1" * WINDOW)
        (False, True)
    """
    return hashlib.sha256(content[-WINDOW:]).hexdigest()[:16]


def list_unfinished(source: Path) -> list[Path]:
    """Return the queue files of a source whose last line does not end in a newline yet."""
    return [file for file in list_queues(source) if file.is_file() and _last_byte(file) not in (b"", b"\n")]


def _last_byte(file: Path) -> bytes:
    with file.open("rb") as opened:
        opened.seek(max(0, file.stat().st_size - 1))
        return opened.read(1)


def _read_lines(part: FilePart, queue: str) -> Iterator[Line]:
    """Yield the complete lines of a file after those already read; none if the file is gone."""
    try:
        opened = part.file.open("rb")
    except FileNotFoundError:
        return
    with opened:
        opened.seek(max(0, part.end - WINDOW))
        before = opened.read(min(part.end, WINDOW))
        end, number = part.end, part.line
        for raw in opened:
            if not raw.endswith(b"\n"):
                return
            end, number, before = end + len(raw), number + 1, (before + raw)[-WINDOW:]
            line = raw.removeprefix(_BOM) if number == 1 else raw
            if line.strip():
                place = LineLocation(queue, str(part.file), number, end, digest_of(before))
                yield Line(place, line.decode(errors="replace").rstrip("\r\n"), read_line(line))


def read_line(line: bytes) -> Feedback | BadRowError:
    """Return the feedback in a line, or the error for a line that cannot be used.

    Example:
        >>> read_line(b'{"prompt": "1+1=", "response": "2", "thumbs": true}').reward
        1.0
        >>> print(read_line(b'{"prompt": "1+1=", "response": "2", "reward": "good"}'))
        the reward must be a number between -1e30 and 1e30, not text
    """
    try:
        return feedback_of(parse_json(line.decode()))
    except BadRowError as error:
        return error
    except UnicodeDecodeError as error:
        return BadRowError(f"the line is not in UTF-8 ({error})", "write it in UTF-8")
    except (ValueError, RecursionError) as error:
        return BadRowError(f"the line is not JSON ({error})", "write one object in each line")


def feedback_of(row: object) -> Feedback:
    """Read an object with `prompt`, `response`, and `reward` or `thumbs`; `id`, `logp` and `finished` are optional.

    Raises:
        BadRowError: the row is not an object, or an entry is missing or has a wrong value.
    """
    if not isinstance(row, Mapping):
        raise BadRowError(f"the line must be an object, not {describe_value(row)}", "write one object in each line")
    _check_names(row)
    prompt, messages = prompt_of(row, "prompt")
    finished = row.get("finished", True)
    if not isinstance(finished, bool):
        raise BadRowError(f"finished must be true or false, not {short_repr(finished)}", "correct it", column="finished")
    return Feedback(prompt, messages, _response(row), _reward(row), _id(row), _logp(row), finished, chat_columns(row))


def _check_names(row: Mapping[str, object]) -> None:
    """Reject a name that looks like a misspelled optional entry, because its value would be lost. Ignore other names."""
    absent = {*OPTIONAL, *CHAT_COLUMNS} - row.keys()
    for name in map(str, row.keys() - {*Feedback._fields, "thumbs", *CHAT_COLUMNS}):
        near = did_you_mean(name, absent, cutoff=0.85)
        if near != ".":
            raise BadRowError(f"the name {name!r} is unknown{near}", "correct or rename it", column=name)


def _response(row: Mapping[str, object]) -> str | tuple[int, ...]:
    value = require(row, "response")
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise BadRowError(f"the response is not valid Unicode ({error})", "correct it", column="response") from error
        return value
    if isinstance(value, list) and value and all(type(token) is int for token in value):
        return tuple(value)
    raise BadRowError(
        f"the response must be text, or a non-empty list of token ids, not {short_repr(value)}",
        "correct it",
        column="response",
    )


def _reward(row: Mapping[str, object]) -> float:
    found = [name for name in ("reward", "thumbs") if name in row]
    if len(found) != 1:
        state = "both are present" if found else "neither is present"
        raise BadRowError(f"a line must have either a reward or thumbs, but {state}", "give one of them", column="reward")
    (name,) = found
    value = row[name]
    if name == "thumbs":
        if not isinstance(value, bool):
            raise BadRowError(
                f"thumbs must be true or false, not {describe_value(value)}",
                "give a number as `reward` instead",
                column="thumbs",
            )
        return float(value)
    if not _is_number(value):
        raise BadRowError(
            f"the reward must be a number between -1e30 and 1e30, not {describe_value(value)}",
            "correct it",
            column="reward",
        )
    return float(value)  # pyright: ignore[reportArgumentType]  a number


def _is_number(value: object) -> bool:
    return is_finite_number(value) and abs(value) < 1e30


def _id(row: Mapping[str, object]) -> str | None:
    value = row.get("id")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise BadRowError(f"the id must be text or a whole number, not {describe_value(value)}", "correct it", column="id")
    return str(value)


def _logp(row: Mapping[str, object]) -> tuple[float, ...] | None:
    value = row.get("logp")
    if value is None:
        return None
    if isinstance(value, list) and all(_is_number(number) and number <= 0 for number in value):
        return tuple(map(float, value))
    raise BadRowError(
        f"logp must be a list of numbers of at most 0, one for each token, not {short_repr(value)}",
        "correct it",
        column="logp",
    )
