"""Feedback queues: every complete line is read once and in order, even if files are rotated, and bad lines get a reason."""

import json
import os

import numpy as np
import pytest

from rljax.data.bad_rows import BadRowError
from rljax.data.feedback import Line, list_parts, list_queues, list_rotated, list_unfinished, read_line, read_new_lines


def row(number, **entries):
    """A valid line with this number in its prompt and as its reward."""
    return json.dumps({"prompt": f"{number}+1=", "response": "2", "reward": number} | entries) + "\n"


def rewards(lines):
    """The rewards of the lines; each test line has a different reward."""
    return [int(line.content.reward) for line in lines if isinstance(line, Line)]


def notes(lines):
    """The messages about queue files among the lines."""
    return [line for line in lines if isinstance(line, str)]


def add_places(taken, lines):
    """Return `taken`, the places of the lines read so far, with the places of these lines added."""
    found = {queue: list(places) for queue, places in taken.items()}
    for line in lines:
        if isinstance(line, Line):
            found.setdefault(line.place.queue, []).append(line.place)
    return found


@pytest.fixture
def queue(tmp_path):
    file = tmp_path / "queue.jsonl"
    file.write_text(row(0) + row(1) + row(2))
    return file


def make_older(file, seconds):
    """Make a file older by this many seconds."""
    os.utime(file, (file.stat().st_mtime - seconds,) * 2)


def test_read_new_lines_waits_for_the_line_end(queue):
    line = row(3)
    with queue.open("a") as file:
        file.write(line[:20])
        file.flush()
        first = [*read_new_lines(queue, {})]
        assert rewards(first) == [0, 1, 2]
        assert list_unfinished(queue) == [queue]
        file.write(line[20:])
    assert list_unfinished(queue) == []
    second = [*read_new_lines(queue, add_places({}, first))]
    assert rewards(second) == [3]
    assert (second[0].place.line, second[0].place.end) == (4, queue.stat().st_size)


def test_read_new_lines_of_missing_file(tmp_path):
    assert [*read_new_lines(tmp_path / "queue.jsonl", {})] == []
    assert list_unfinished(tmp_path / "queue.jsonl") == []


def test_read_new_lines_finishes_rotated_file_first(queue):
    taken = add_places({}, [*read_new_lines(queue, {})][:2])
    queue.rename(queue.with_name("queue.jsonl.1"))
    assert rewards(read_new_lines(queue, taken)) == [2]
    queue.write_text(row(3))
    lines = [*read_new_lines(queue, taken)]
    assert rewards(lines) == [2, 3]
    assert [line.place.file for line in lines] == [str(queue.with_name("queue.jsonl.1")), str(queue)]
    assert {line.place.queue for line in lines} == {"queue.jsonl"}
    taken = add_places(taken, lines)
    with queue.open("a") as file:
        file.write(row(4))
    assert rewards(read_new_lines(queue, taken)) == [4]


def test_read_new_lines_rotated_before_first_read(queue):
    rotation = queue.with_name("queue.jsonl.1")
    queue.rename(rotation)
    assert rewards(read_new_lines(queue, {})) == [0, 1, 2]
    queue.write_text(row(3))
    make_older(rotation, 60)
    queue.with_name("queue.jsonl.2").write_text(row(4))
    make_older(queue.with_name("queue.jsonl.2"), 120)
    assert rewards(read_new_lines(queue, {})) == [4, 0, 1, 2, 3]
    taken = add_places({}, [*read_new_lines(queue, {})][:2])
    assert rewards(read_new_lines(queue, taken)) == [1, 2, 3]


def test_read_new_lines_rotated_new_file_in_folder(queue):
    taken = add_places({}, [*read_new_lines(queue.parent, {})])
    new = queue.with_name("second.jsonl")
    new.write_text(row(5))
    new.rename(queue.with_name("second.jsonl.1"))
    new.write_text(row(6))
    assert rewards(read_new_lines(queue.parent, taken)) == [5, 6]


def test_list_rotated_names(queue):
    dates = [".2026-11-22", "-2026-11-22", ".2026-11-22_10", ".2026-11-22_10-30-00"]
    ends = [".1", ".003", ".20261122", "-20261122", "-1", *dates]
    others = [".bak", ".gz", ".1.gz", ".tmp", "-old", ".", ".1~", "1", ".2026-11"]
    for end in [*ends, *others]:
        queue.with_name(queue.name + end).write_text(row(9))
    assert {file.name for file in list_rotated(queue)} == {queue.name + end for end in ends}


def test_read_new_lines_after_two_rotations(queue):
    taken = add_places({}, [*read_new_lines(queue, {})][:1])
    first, second = (queue.with_name(f"queue.jsonl.{number}") for number in (2, 1))
    queue.rename(first)
    make_older(first, 60)
    second.write_text(row(3))
    make_older(second, 30)
    queue.write_text(row(4))
    assert list_rotated(queue) == [first, second]
    assert rewards(read_new_lines(queue, taken)) == [1, 2, 3, 4]


def test_read_new_lines_copy_and_truncate_rotation(queue):
    taken = add_places({}, [*read_new_lines(queue, {})])
    queue.with_name("queue.jsonl-20261122").write_bytes(queue.read_bytes())
    queue.write_text("")
    assert [*read_new_lines(queue, taken)] == []
    queue.write_text(row(3))
    assert rewards(read_new_lines(queue, taken)) == [3]


def test_read_new_lines_prefers_the_newer_rotated_file(queue):
    taken = add_places({}, [*read_new_lines(queue, {})])
    copy, old = queue.with_name("queue.jsonl.2"), queue.with_name("queue.jsonl.1")
    copy.write_bytes(queue.read_bytes())
    make_older(copy, 60)
    queue.rename(old)
    queue.write_text(row(3))
    assert rewards(read_new_lines(queue, taken)) == [3]


def test_read_new_lines_after_truncation(queue):
    taken = add_places({}, [*read_new_lines(queue, {})])
    queue.write_text(row(0) + row(7))
    lines = [*read_new_lines(queue, taken)]
    assert notes(lines) == [
        f"{queue} was truncated after line 1, although 3 lines had been read; reading continues after line 1."
    ]
    assert rewards(lines) == [7]
    assert rewards(read_new_lines(queue, add_places(taken, lines))) == []


def test_read_new_lines_after_replacement(queue):
    taken = add_places({}, [*read_new_lines(queue, {})])
    queue.write_text(row(5) + row(6))
    (note, *lines) = read_new_lines(queue, taken)
    assert note.startswith(f"{queue} was replaced after its line 3 was read, and no rotated file next to it contains")
    assert rewards(lines) == [5, 6]
    queue.unlink()
    assert list_parts(queue, taken["queue.jsonl"]) == []


def test_read_new_lines_folder_has_one_queue_per_file(tmp_path):
    for name, numbers in (("b.jsonl", [2, 3]), ("a.jsonl", [0, 1]), ("notes.txt", [9])):
        (tmp_path / name).write_text("".join(map(row, numbers)))
    assert [file.name for file in list_queues(tmp_path)] == ["a.jsonl", "b.jsonl"]
    lines = [*read_new_lines(tmp_path, {})]
    assert rewards(lines) == [0, 1, 2, 3]
    taken = add_places({}, lines)
    with (tmp_path / "a.jsonl").open("a") as file:
        file.write(row(4))
    (tmp_path / "c.jsonl").write_text(row(5))
    (tmp_path / "b.jsonl").unlink()
    assert rewards(read_new_lines(tmp_path, taken)) == [4, 5]


@pytest.mark.parametrize("seed", range(6))
def test_read_new_lines_random_writes_and_rotations(tmp_path, seed):
    queue, random = tmp_path / "queue.jsonl", np.random.default_rng(seed)
    written, read, pending, taken, rotations = 0, [], b"", {}, 0
    queue.touch()
    for _ in range(300):
        action = random.integers(4)
        if action == 0 and not pending:
            pending, written = row(written).encode(), written + 1
        elif action == 1 and pending:
            size = len(pending) if random.integers(2) else int(random.integers(1, len(pending) + 1))
            with queue.open("ab") as file:
                file.write(pending[:size])
            pending = pending[size:]
        elif action == 2 and not pending and queue.stat().st_size and random.integers(2):
            rotations += 1
            queue.rename(tmp_path / f"queue.jsonl.{rotations:03}")
            queue.touch()
        elif action == 3:
            lines = [*read_new_lines(queue, taken)][: int(random.integers(3))]
            taken = add_places(taken, lines)
            read += rewards(lines)
    with queue.open("ab") as file:
        file.write(pending)
    read += rewards(read_new_lines(queue, taken))
    assert rotations > 3
    assert read == list(range(written))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"[1]", "the line must be an object, not a list"),
        (b'{"prompt": "1"', "the line is not JSON"),
        (b'{"prompt": "\xff"}', "the line is not in UTF-8"),
        (b'{"response": "2", "reward": 1}', "the column is missing"),
        (b'{"prompt": " ", "response": "2", "reward": 1}', "the prompt is empty"),
        (b'{"prompt": "1", "response": null, "reward": 1}', "the response must be text, or a non-empty list of token ids"),
        (b'{"prompt": "1", "response": [], "reward": 1}', "the response must be text, or a non-empty list of token ids"),
        (
            b'{"prompt": "1", "response": [true], "reward": 1}',
            "the response must be text, or a non-empty list of token ids",
        ),
        (b'{"prompt": "1", "response": "\\ud800", "reward": 1}', "the response is not valid Unicode"),
        (b'{"prompt": "1", "response": "2"}', "a line must have either a reward or thumbs, but neither is present"),
        (b'{"prompt": "1", "response": "2", "reward": 1, "thumbs": true}', "but both are present"),
        (
            b'{"prompt": "1", "response": "2", "reward": true}',
            "the reward must be a number between -1e30 and 1e30, not a boolean",
        ),
        (b'{"prompt": "1", "response": "2", "reward": NaN}', "the reward must be a number between -1e30 and 1e30, not nan"),
        (
            b'{"prompt": "1", "response": "2", "reward": 1e999}',
            "the reward must be a number between -1e30 and 1e30, not inf",
        ),
        (b'{"prompt": "1", "response": "2", "thumbs": 1}', "thumbs must be true or false, not 1"),
        (b'{"prompt": "1", "response": "2", "reward": 1, "id": 1.5}', "the id must be text or a whole number"),
        (b'{"prompt": "1", "response": "2", "reward": 1, "logp": [0.5]}', "numbers of at most 0"),
        (b'{"prompt": "1", "response": "2", "reward": 1, "finished": 1}', "finished must be true or false"),
        (
            b'{"prompt": "1", "response": "2", "reward": 1, "logps": [-0.5]}',
            "the name 'logps' is unknown; did you mean 'logp'?",
        ),
        (b'{"prompt": "1", "response": "2", "reward": 1, "finish": false}', "did you mean 'finished'?"),
        (b'{"prompt": "1", "response": "2", "reward": 1, "tool": []}', "did you mean 'tools'?"),
        (b'{"prompt": [{"role": "assistant", "content": "1"}], "response": "2", "reward": 1}', "ends with the assistant"),
    ],
)
def test_read_line_rejects_bad_line(line, message):
    found = read_line(line)
    assert isinstance(found, BadRowError)
    assert message in str(found)


def test_read_line_ignores_writer_columns():
    found = read_line(b'{"prompt": "1", "response": "2", "reward": 1, "user": "a", "uid": 3, "time": 1.5, "model": "m"}')
    assert found.reward == 1.0


def test_read_new_lines_continues_after_bad_line(tmp_path):
    queue = tmp_path / "queue.jsonl"
    queue.write_bytes(
        b"\xef\xbb\xbf" + row(0).encode() + b"{\n\n" + row(1).strip().encode() + b"\r\n" + row(2, note="\u2028").encode()
    )
    lines = [*read_new_lines(queue, {})]
    assert [isinstance(line.content, BadRowError) for line in lines] == [False, True, False, False]
    assert [line.place.line for line in lines] == [1, 2, 4, 5]
    assert [lines[1].text, lines[2].text] == ["{", row(1).strip()]


def test_read_line_fields():
    found = read_line(
        b'{"prompt": "1+1=", "response": [3, 4], "thumbs": false, "id": 7, "logp": [-1, 0.0], "finished": false}'
    )
    assert found == ("1+1=", None, (3, 4), 0.0, "7", (-1.0, 0.0), False, {})
    chat = read_line(b'{"prompt": [{"role": "user", "content": "Add."}], "response": "", "reward": -2}')
    assert (chat.prompt, chat.messages, chat.response, chat.reward) == (
        "Add.",
        ({"role": "user", "content": "Add."},),
        "",
        -2.0,
    )
