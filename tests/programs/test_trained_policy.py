"""A model's chat template is applied where the problems are conversations, and its disuse is noted."""

import dataclasses

import pytest

from rljax.data.problem import Problem
from rljax.data.tokenizer import ByteTokenizer, has_chat_template
from rljax.programs.trained_policy import applies_chat
from rljax.training.config import TrainConfig

TEXT = Problem("1+1=", "2")
TALK = dataclasses.replace(TEXT, messages=({"role": "user", "content": "1+1="},))


class Chatty(ByteTokenizer):
    """Bytes with a template."""

    def apply_chat_template(self, messages):
        return self.encode("".join(f"<{message['role']}>{message['content']}" for message in messages))


@pytest.mark.parametrize(
    ("tokenizer", "problem", "is_run", "of_run", "chat", "applies", "note"),
    [
        (Chatty(), TALK, False, False, None, True, ""),
        (Chatty(), TEXT, False, False, None, False, "plain text"),
        (Chatty(), TEXT, False, False, True, True, ""),
        (Chatty(), TALK, False, False, False, False, ""),
        (ByteTokenizer(), TALK, False, False, None, False, ""),
        (Chatty(), TALK, True, True, None, True, ""),
        (Chatty(), TALK, True, True, False, False, ""),
        (Chatty(), TEXT, True, False, None, False, ""),
        (Chatty(), TALK, True, False, None, False, "conversations"),
    ],
)
def test_the_template_is_applied_to_conversations(tokenizer, problem, is_run, of_run, chat, applies, note, capsys):
    assert has_chat_template(tokenizer) == isinstance(tokenizer, Chatty)
    config = TrainConfig.flat(chat=of_run)
    assert applies_chat(config, tokenizer, [problem], is_run=is_run, chat=chat) == applies
    printed = capsys.readouterr().err
    assert (note in printed and "--chat applies it" in printed) if note else not printed
