"""A server's log, which `rljax adapt` reads: a file with a JSON line per answer, and one with a line per piece of feedback."""

import json
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rljax.errors import InputError
from rljax.records import is_finite_number
from rljax.serving.protocol import ApiError
from rljax.serving.replies import Choice

ANSWERS, FEEDBACK = "answers.jsonl", "feedback.jsonl"
"""File names of the log."""
MOST_ANSWERS = 10_000
"""Number of the latest answers on which feedback is accepted."""


class AnswerLog:
    """The log of one server.

    Args:
        folder: the folder of the two files. It is created if it does not exist; lines are appended to existing files.

    Raises:
        InputError: the folder cannot be written to.
    """

    def __init__(self, folder: Path):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for name in (ANSWERS, FEEDBACK):
                (folder / name).touch()
        except OSError as error:
            raise InputError(f"the log {str(folder)!r} cannot be written to ({error}); choose another --log.") from error
        self.folder = folder
        self.recent: OrderedDict[str, Mapping[str, Any]] = OrderedDict()
        self.lock = threading.Lock()

    def record(self, name: str, prompt: Mapping[str, Any], choice: Choice, *, seconds: float, filtered: str | None) -> None:
        """Append a complete answer.

        Args:
            name: identifier in the reply to the request.
            prompt: the prompt's log entries: `prompt` as `rljax adapt` reads it, with `tools` if the request has any; or
                `prompt_ids`.
            choice: the answer.
            seconds: time from the request to the end of the answer.
            filtered: name of the filter that withholds the answer; None if no filter does.

        Raises:
            OSError: the file cannot be written to.
        """
        answer = {
            "id": f"{name}-{choice.index}",
            **prompt,
            "response": list(choice.tokens),
            "logp": [float(value) for value in choice.logp],
            "finished": choice.finish != "length",
        }
        details = {
            "text": choice.text,
            "finish": choice.finish,
            "tokens": len(choice.tokens),
            "confidence": round(math.exp(np.mean(choice.logp)), 6) if choice.logp else None,
            "weights_version": choice.version,
            "seconds": round(seconds, 3),
            "time": round(time.time(), 3),
        } | ({} if filtered is None else {"filtered": filtered})
        with self.lock:
            self.recent[answer["id"]] = answer
            while len(self.recent) > MOST_ANSWERS:
                self.recent.popitem(last=False)
            self._append(ANSWERS, {key: answer[key] for key in ("id", *prompt)} | details)

    def record_prompt(self, prompt: Mapping[str, Any], filtered: str) -> None:
        """Append a prompt that was refused.

        Args:
            prompt: as in `record`.
            filtered: name of the filter that withholds the prompt.

        Raises:
            OSError: the file cannot be written to.
        """
        with self.lock:
            self._append(ANSWERS, {**prompt, "filtered_prompt": filtered, "time": round(time.time(), 3)})

    def take_feedback(self, body: Mapping[str, Any]) -> str:
        """Append feedback on an answer; return the answer's id in the log.

        Args:
            body: `id` of the reply, `index` of the choice (by default 0), and either `reward`, a number, or `thumbs`, a bool.

        Raises:
            ApiError: an entry is missing or wrong, the answer is unknown, or it already has feedback.
            OSError: the file cannot be written to.
        """
        unknown = body.keys() - {"id", "index", "reward", "thumbs"}
        if unknown:
            raise ApiError(400, f"The entry {min(unknown)!r:.80} is unknown.", param=min(unknown)[:80])
        reply, index = body.get("id"), body.get("index", 0)
        if not isinstance(reply, str) or isinstance(index, bool) or not isinstance(index, int):
            raise ApiError(
                400, "The body must contain id, a reply's id as a string, and may contain index, an integer.", param="id"
            )
        verdict = {key: body[key] for key in ("reward", "thumbs") if key in body}
        reward = verdict.get("reward", 0.0)
        is_number = is_finite_number(reward)
        if len(verdict) != 1 or not is_number or not isinstance(verdict.get("thumbs", True), bool):
            raise ApiError(
                400, "The body must contain either reward, a finite number, or thumbs, true or false.", param="reward"
            )
        name = f"{reply}-{index}"
        with self.lock:
            answer = self.recent.get(name)
            if answer is None:
                message = f"There is no answer {name[:80]!r} among the latest {MOST_ANSWERS} that have no feedback yet."
                raise ApiError(404, message, param="id", code="answer_not_found")
            if "prompt" not in answer:
                message = "The prompt was sent as token ids; feedback needs a prompt that is a string or messages."
                raise ApiError(400, message, param="id", code="prompt_ids")
            self._append(FEEDBACK, dict(answer) | verdict)
            del self.recent[name]
        return name

    def _append(self, name: str, row: Mapping[str, Any]) -> None:
        """Append a line. The caller must hold the lock."""
        line = json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n"
        with (self.folder / name).open("a", encoding="utf-8") as file:
            file.write(line)
