"""A model's chat template is applied to problems that are conversations, and a note reports if it is not used."""

import dataclasses

import pytest

from rljax.data.problem import Problem
from rljax.data.tokenizer import ByteTokenizer, has_chat_template
from rljax.programs.trained_policy import applies_chat
from rljax.training.config import TrainConfig

PLAIN = Problem("1+1=", "2")
CHAT = dataclasses.replace(PLAIN, messages=({"role": "user", "content": "1+1="},))


class ChatByteTokenizer(ByteTokenizer):
    """A byte tokenizer with a chat template."""

    def apply_chat_template(self, messages):
        return self.encode("".join(f"<{message['role']}>{message['content']}" for message in messages))


@pytest.mark.parametrize(
    ("tokenizer", "problem", "is_run", "run_chat", "chat", "applies", "note"),
    [
        (ChatByteTokenizer(), CHAT, False, False, None, True, ""),
        (ChatByteTokenizer(), PLAIN, False, False, None, False, "plain text"),
        (ChatByteTokenizer(), PLAIN, False, False, True, True, ""),
        (ChatByteTokenizer(), CHAT, False, False, False, False, ""),
        (ByteTokenizer(), CHAT, False, False, None, False, ""),
        (ChatByteTokenizer(), CHAT, True, True, None, True, ""),
        (ChatByteTokenizer(), CHAT, True, True, False, False, ""),
        (ChatByteTokenizer(), PLAIN, True, False, None, False, ""),
        (ChatByteTokenizer(), CHAT, True, False, None, False, "conversations"),
    ],
)
def test_chat_template_is_applied_to_conversations(tokenizer, problem, is_run, run_chat, chat, applies, note, capsys):
    assert has_chat_template(tokenizer) == isinstance(tokenizer, ChatByteTokenizer)
    config = TrainConfig.flat(chat=run_chat)
    assert applies_chat(config, tokenizer, [problem], is_run=is_run, chat=chat) == applies
    printed = capsys.readouterr().err
    assert (note in printed and "--chat applies it" in printed) if note else not printed
