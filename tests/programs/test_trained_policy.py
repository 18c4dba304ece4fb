"""Opening a policy and sampling from it: arguments are checked, and a chat template is applied to conversations."""

import dataclasses
import math
import re

import numpy as np
import pytest
from chat_models import save_chat_model

import rljax
from rljax.data.problem import Problem
from rljax.data.tokenizer import ByteTokenizer, has_chat_template
from rljax.errors import InputError
from rljax.programs.trained_policy import choose_chat
from rljax.training.config import TrainConfig

TARGET = r"^the run or model is {}, but text is expected: the path of a folder or file\.$"
PLAIN = Problem("1+1=", "2")
CHAT = dataclasses.replace(PLAIN, messages=({"role": "user", "content": "1+1="},))


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    folder = save_chat_model(tmp_path_factory.mktemp("models") / "model")
    return rljax.load(folder, problems=[PLAIN], max_response_tokens=4)


@pytest.mark.parametrize("target", [None, 3])
def test_a_target_that_is_not_a_path_is_refused(target, without_type_checks):
    with pytest.raises(InputError, match=TARGET.format(target)):
        rljax.load(target)
    with pytest.raises(InputError, match=TARGET.format(target)):
        rljax.evaluate(target)
    with pytest.raises(InputError, match=f"^source is {target}, but text is expected"):
        rljax.load_config(target)


@pytest.mark.parametrize("prompts", [None, "12", [1, 2], [["a"]], [[1.5]], 3])
def test_prompts_that_are_not_lists_of_ids_are_refused(prompts, opened, without_type_checks):
    shown = re.escape(repr(prompts))
    with pytest.raises(InputError, match=rf"^prompts is {shown}; give a list with the token ids of each prompt, such as"):
        opened.sample_ids(prompts)


def test_arrays_are_lists_of_ids(opened, without_type_checks):
    assert opened.sample_ids(np.array([[5, 6], [7, 8]])) == opened.sample_ids([[5, 6], [7, 8]])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prompts": None}, r"^prompts is None; give a list of texts"),
        ({"count": 1.5}, r"^count is 1\.5, but a whole number is expected"),
        ({"seed": 1.5}, r"^--seed is 1\.5, but a whole number is expected"),
        ({"temperature": math.nan}, r"the temperature must be finite and not negative"),
        ({"temperature": math.inf}, r"the temperature must be finite and not negative"),
    ],
)
def test_impossible_sampling_arguments_are_refused(changes, message, opened, without_type_checks):
    with pytest.raises(InputError, match=message):
        opened.sample(**{"prompts": ["a"], "temperature": 1.0} | changes)


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
    assert choose_chat(config, tokenizer, [problem], is_run=is_run, chat=chat) == applies
    printed = capsys.readouterr().err
    assert (note in printed and "--chat applies it" in printed) if note else not printed
