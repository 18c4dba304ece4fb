"""A model's chat template is applied if the problems are conversations, and a note says if it is not used."""

import dataclasses

import pytest

from rljax.data.problem import Problem
from rljax.data.tokenizer import ByteTokenizer, has_chat_template
from rljax.programs.trained_policy import applies_chat
from rljax.training.config import TrainConfig

TEXT = Problem("1+1=", "2")
TALK = dataclasses.replace(TEXT, messages=({"role": "user", "content": "1+1="},))


class ChatByteTokenizer(ByteTokenizer):
    """A byte tokenizer with a chat template."""

    def apply_chat_template(self, messages):
        return self.encode("".join(f"<{message['role']}>{message['content']}" for message in messages))


@pytest.mark.parametrize(
    ("tokenizer", "problem", "is_run", "of_run", "chat", "applies", "note"),
    [
        (ChatByteTokenizer(), TALK, False, False, None, True, ""),
        (ChatByteTokenizer(), TEXT, False, False, None, False, "plain text"),
        (ChatByteTokenizer(), TEXT, False, False, True, True, ""),
        (ChatByteTokenizer(), TALK, False, False, False, False, ""),
        (ByteTokenizer(), TALK, False, False, None, False, ""),
        (ChatByteTokenizer(), TALK, True, True, None, True, ""),
        (ChatByteTokenizer(), TALK, True, True, False, False, ""),
        (ChatByteTokenizer(), TEXT, True, False, None, False, ""),
        (ChatByteTokenizer(), TALK, True, False, None, False, "conversations"),
    ],
)
def test_the_template_is_applied_to_conversations(tokenizer, problem, is_run, of_run, chat, applies, note, capsys):
    assert has_chat_template(tokenizer) == isinstance(tokenizer, ChatByteTokenizer)
    config = TrainConfig.flat(chat=of_run)
    assert applies_chat(config, tokenizer, [problem], is_run=is_run, chat=chat) == applies
    printed = capsys.readouterr().err
    assert (note in printed and "--chat applies it" in printed) if note else not printed
