"""Log of the feedback lines that a run has consumed, and a reader of the next batch of lines.

A row of `feedback.jsonl` in the run folder records a line of the queue: its position, and its reward or why it was rejected. No
other state is needed to find the unread lines, the earlier rewards, and the ids in use.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from rljax.data.bad_rows import BadRowError, Fault
from rljax.data.feedback import Feedback, Line, LineLocation, read_new_lines
from rljax.data.images import PATTERNS
from rljax.data.problem import Problem
from rljax.data.prompts import prompt_tokens
from rljax.data.tokenizer import Tokenizer
from rljax.errors import InputError
from rljax.text import counted
from rljax.tracking.rows import read_rows
from rljax.training.config import TrainConfig
from rljax.training.parts.problems import check_images

Row = Mapping[str, Any]
_PLACE_FIELDS = {"queue": str, "file": str, "line": int, "end": int, "digest": str}


class Example(NamedTuple):
    """A line that can be learned from."""

    place: LineLocation
    """File and number of the line, and the position of its end."""
    id: str | None
    """Id of the line; None if the line has no id."""
    prompt: list[int]
    """Token ids of the prompt."""
    tokens: list[int]
    """Token ids of the response, with the end token if the model wrote one."""
    reward: float
    """Reward of the response."""
    logp: tuple[float, ...] | None
    """Log-probability of each token under the sampling policy, in nats; None if the line lacks them."""

    def row(self, step: int) -> Row:
        """Return the row that records this line in the log of an RL step."""
        named = {} if self.id is None else {"id": self.id}
        return {"step": step, **self.place._asdict(), **named, "reward": self.reward}


class BadLine(NamedTuple):
    """A line that cannot be learned from."""

    place: LineLocation
    """File and number of the line, and the position of its end."""
    text: str
    """Text of the line."""
    fault: Fault
    """Explanation of the error."""

    def row(self, step: int) -> Row:
        """Return the row that records this line in the log of an RL step."""
        return {"step": step, **self.place._asdict(), "reason": str(self.fault), "text": self.text}


class Log(NamedTuple):
    """The consumed lines of a queue, in order."""

    rows: tuple[Row, ...] = ()
    """Rows of the consumed lines."""

    def places(self) -> dict[str, list[LineLocation]]:
        """Return queue -> locations of the lines consumed from it."""
        locations: dict[str, list[LineLocation]] = {}
        for row in self.rows:
            locations.setdefault(row["queue"], []).append(_place(row))
        return locations

    def by_id(self) -> dict[str, LineLocation]:
        """Return id -> location, for the lines that have an id."""
        return {row["id"]: _place(row) for row in self.rows if "id" in row}

    def rewards(self, newest: int) -> list[float]:
        """Return the latest rewards, at most `newest` of them, oldest first."""
        return [row["reward"] for row in self.rows if "reward" in row][-newest:]

    def rejected(self) -> list[Row]:
        """Return the rows of rejected lines."""
        return [row for row in self.rows if "reason" in row]


class NewLines(NamedTuple):
    """New lines of a queue, up to a full batch of usable lines."""

    lines: list[Example | BadLine]
    """The lines in order, up to the usable line that completes a batch."""
    notes: list[str]
    """Remarks about the files for the user."""

    @property
    def examples(self) -> list[Example]:
        """Lines that can be learned from."""
        return [line for line in self.lines if isinstance(line, Example)]

    @property
    def rejected(self) -> list[BadLine]:
        """Lines that cannot be learned from."""
        return [line for line in self.lines if isinstance(line, BadLine)]


def _place(row: Row) -> LineLocation:
    return LineLocation(*(row[name] for name in LineLocation._fields))


def read_log(file: Path) -> Log:
    """Read the log of a run; empty if there is no file.

    Raises:
        InputError: a row cannot be read; the message names the file and the line.
    """
    return Log(tuple(read_rows(file, _check_row)))


def _check_row(row: dict[str, Any]) -> str | None:
    if all(type(row.get(name)) is kind for name, kind in _PLACE_FIELDS.items()) and ("reward" in row) != ("reason" in row):
        return None
    return f"must have {', '.join(_PLACE_FIELDS)}, and a reward or a reason"


def read_next_lines(
    source: Path,
    log: Log,
    config: TrainConfig,
    tokenizer: Tokenizer,
    count: int,
    bad: Mapping[LineLocation, BadRowError] | None = None,
) -> NewLines:
    """Read the next lines of a queue, until there are `count` usable ones or no more lines.

    Args:
        source: a file or a folder.
        log: the consumed lines.
        config: settings of the run.
        tokenizer: tokenizer of the run.
        count: size of a batch.
        bad: location -> error, for lines that an earlier call returned as usable and a later check rejected.
    """
    bad = {} if bad is None else bad
    lines: list[Example | BadLine] = []
    notes, named, good = [], log.by_id(), 0
    encode = partial(example_of, config=config, tokenizer=tokenizer)
    for line in read_new_lines(source, log.places()):
        if isinstance(line, str):
            notes.append(line)
            continue
        try:
            if line.place in bad:
                raise bad[line.place]
            example = encode(line, named=named)
        except BadRowError as error:
            fault = error.at(line.place.file, f"line {line.place.line}")
            lines.append(BadLine(line.place, line.text, fault))
            continue
        lines.append(example)
        named |= {} if example.id is None else {example.id: example.place}
        good += 1
        if good == count:
            break
    return NewLines(lines, notes)


def example_of(line: Line, *, named: Mapping[str, LineLocation], config: TrainConfig, tokenizer: Tokenizer) -> Example:
    """Encode a line as an example.

    The end token is appended to a response in text form, unless the line is marked as truncated, or the response ends with one of
    the run's stop strings or already has the maximum number of tokens.

    Raises:
        BadRowError: the line cannot be used, has the id of an earlier line, or has too many tokens or none.
    """
    feedback = line.content
    if isinstance(feedback, BadRowError):
        raise feedback
    if feedback.id is not None and feedback.id in named:
        before = named[feedback.id]
        raise BadRowError(
            f"the id {feedback.id!r} is already used in {before.file}, line {before.line}",
            "give each line a unique id",
            column="id",
        )
    prompt, tokens = _encode_prompt(feedback, config, tokenizer), _encode_response(feedback, config, tokenizer)
    if feedback.logp is not None and len(feedback.logp) != len(tokens):
        raise BadRowError(
            f"logp has {counted(len(feedback.logp), 'number')}, but the response has {counted(len(tokens), 'token')}, including "
            "its end token",
            "give one number per token; pass token ids as response if its text is tokenized differently",
            column="logp",
        )
    return Example(line.place, feedback.id, prompt, tokens, feedback.reward, feedback.logp)


def _encode_prompt(feedback: Feedback, config: TrainConfig, tokenizer: Tokenizer) -> list[int]:
    if feedback.messages is not None and not config.model.chat:
        raise BadRowError("the prompt is a chat, but the run does not use chats", "write it as text", column="prompt")
    problem = Problem(feedback.prompt, "", columns=feedback.columns, messages=feedback.messages)
    try:
        check_images(config.model, [problem])
        tokens = prompt_tokens(problem, tokenizer, chat=config.model.chat)
    except InputError as error:
        raise BadRowError(f"the prompt cannot be read ({error})", "correct it", column="prompt") from error
    most = config.data.max_prompt_tokens
    if not 0 < len(tokens) <= most:
        raise BadRowError(
            f"the prompt has {counted(len(tokens), 'token')}, and the run takes 1 to {most}", "shorten it", column="prompt"
        )
    return tokens


def _encode_response(feedback: Feedback, config: TrainConfig, tokenizer: Tokenizer) -> list[int]:
    most, size = config.sampling.max_response_tokens, tokenizer.vocab_size
    if isinstance(feedback.response, tuple):
        tokens = list(feedback.response)
        wrong = next((token for token in tokens if not 0 <= token < size), None)
        if wrong is not None:
            raise BadRowError(f"there is no token {wrong}; ids are 0 to {size - 1}", "correct it", column="response")
    else:
        try:
            tokens = tokenizer.encode(feedback.response)
        except InputError as error:
            raise BadRowError(f"the response cannot be encoded ({error})", "correct it", column="response") from error
        stopped = feedback.response.endswith(tuple(config.sampling.stop))
        tokens = [*tokens, tokenizer.eos_token_id] if feedback.finished and not stopped and len(tokens) != most else tokens
    if not 0 < len(tokens) <= most:
        raise BadRowError(
            f"the response has {counted(len(tokens), 'token')}, and the run takes 1 to {most}",
            "leave it out",
            column="response",
        )
    if config.model.images is not None and not set(tokenizer.encode(PATTERNS)).isdisjoint(tokens):
        raise BadRowError(
            "the response contains an image patch, and the model never generates patches",
            "leave it out",
            column="response",
        )
    return tokens


def line_numbers(examples: Sequence[Example]) -> str:
    """Describe the files and line numbers of a batch in words.

    Example:
        >>> place = LineLocation("q.jsonl", "q.jsonl", 3, 90, "0")
        >>> line_numbers([Example(place, None, [1], [2], 1.0, None), Example(place._replace(line=9), None, [1], [2], 1.0, None)])
        'q.jsonl, lines 3 to 9'
    """
    spans: dict[str, list[int]] = {}
    for example in examples:
        spans.setdefault(example.place.file, []).append(example.place.line)
    return "; ".join(f"{file}, lines {min(lines)} to {max(lines)}" for file, lines in spans.items())
