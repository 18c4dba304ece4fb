"""Rewards written for TRL: conversations as messages, and several weighted rewards."""

import functools

import pytest

from rljax.errors import InputError
from rljax.rewards import BY_NAME
from rljax.rewards.each import each
from rljax.rewards.format import in_tags
from rljax.rewards.reward_scores import combine, judge

CHAT = ({"role": "user", "content": "1+1"},)
PROMPTS, COMPLETIONS, CHATS = ["1+1", "2+2"], ["#2", "#4"], [CHAT, None]
COLUMNS = {"answer": ["2", "4"]}


def trl_reward(prompts, completions):
    """Check that the arguments have TRL's form: the first prompt is a conversation, and the second is text."""
    assert prompts == [list(CHAT), "2+2"]
    assert completions == [[{"role": "assistant", "content": "#2"}], "#4"]
    prompts[0][0]["content"] = completions[0][0]["content"] = "changed"
    return [1.0, 0.5]


def of_text(prompts, completions):
    assert (prompts, completions) == (PROMPTS, COMPLETIONS)
    return [1.0, 0.5]


@pytest.mark.parametrize(("reward", "chats"), [(trl_reward, CHATS), (of_text, None), (of_text, [None, None])])
def test_a_custom_reward_gets_conversations_as_messages(reward, chats):
    assert judge(reward, PROMPTS, COMPLETIONS, {}, chats=chats).total.tolist() == [1.0, 0.5]
    assert CHAT[0]["content"] == "1+1", "the reward has changed its caller's messages"


@pytest.mark.parametrize("reward", [BY_NAME["exact"], functools.partial(BY_NAME["exact"])])
def test_built_in_reward_reads_text(reward):
    assert judge(reward, PROMPTS, COMPLETIONS, COLUMNS, chats=CHATS).total.tolist() == [1.0, 1.0]


def by_message(prompt, completion):
    return float(prompt[-1]["content"] == "1+1" and completion[0]["content"].endswith("2"))


def test_own_function_of_one_completion_gets_messages():
    scores = judge(each(by_message), PROMPTS[:1], COMPLETIONS[:1], {}, chats=CHATS[:1])
    assert scores.total.tolist() == [1.0]
    built_in = judge(each(in_tags), PROMPTS, COMPLETIONS, {"names": [["think"]] * 2}, chats=CHATS)
    assert not built_in.failed.any()


def test_each_reward_gets_the_form_that_it_expects():
    both = combine([trl_reward, BY_NAME["exact"]], [2.0, 1.0])
    assert judge(both, PROMPTS, COMPLETIONS, COLUMNS, chats=CHATS).total.tolist() == [3.0, 2.0]


def test_a_reward_that_reads_messages_as_text_gets_a_helpful_error():
    def reads_text(completions):
        return [float(completion.startswith("#")) for completion in completions]

    with pytest.raises(InputError, match=r"at .*test_conversation.py:\d+; .* --no-reward-messages passes text instead"):
        judge(reads_text, PROMPTS, COMPLETIONS, {}, chats=CHATS)
    with pytest.raises(InputError, match=r"needs level"):
        judge(lambda level: level, PROMPTS, COMPLETIONS, {}, chats=CHATS)


def test_several_rewards_are_summed_with_their_weights():
    assert combine([of_text], None) is of_text
    both = combine([of_text, of_text, len], None)
    assert both.weights == {"of_text": 1.0, "of_text_2": 1.0, "len": 1.0}
    names = combine([BY_NAME["math"], BY_NAME["math_or_last_number"], BY_NAME["math"], BY_NAME["math"]], None).weights
    assert list(names) == ["math", "math_or_last_number", "math_2", "math_3"]
    assert combine([of_text], [0.5])(PROMPTS, COMPLETIONS) == [0.5, 0.25]
    with pytest.raises(InputError, match="reward_weights has 1 numbers for 2 rewards"):
        combine([of_text, of_text], [1.0])
