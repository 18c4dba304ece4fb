"""Turns and the messages between them: encoded one by one, they give the template's text for the complete dialogue."""

# ruff: noqa: E501  a line break in a chat template would change its text

import json

import pytest
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from rljax.data.chat import ChatFormat, parse_chat_columns
from rljax.data.problem import Problem
from rljax.data.prompts import chat_messages, prompt_tokens
from rljax.data.tokenizer import ByteTokenizer, HuggingFaceTokenizer
from rljax.data.tool_calls import ToolCall, dialect_of, parse_turn, read_turn
from rljax.data.turns import encode_messages, text_between, with_tools
from rljax.errors import InputError

QWEN = """\
{%- if tools %}<|im_start|>system
You may call functions within <tools></tools>.
<tools>{% for tool in tools %}
{{ tool | tojson }}{% endfor %}
</tools>
For each call, return <tool_call></tool_call>.<|im_end|>
{% endif %}
{%- for m in messages %}
{%- if m.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}<|im_start|>user{% endif %}
<tool_response>
{{ m.content }}
</tool_response>
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}<|im_end|>
{% endif %}
{%- else %}<|im_start|>{{ m.role }}
{{ m.content }}
{%- for call in m.tool_calls or [] %}{% if m.content or not loop.first %}
{% endif %}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
LLAMA = """\
<|begin_of_text|>
{%- for m in messages %}
{%- if m.tool_calls %}
{%- if m.tool_calls | length != 1 %}{{ raise_exception("This model only supports single tool-calls at once!") }}{% endif %}
{%- set call = m.tool_calls[0].function %}<|start_header_id|>assistant<|end_header_id|>

{"name": "{{ call.name }}", "parameters": {{ call.arguments | tojson }}}<|eot_id|>
{%- elif m.role == 'tool' %}<|start_header_id|>ipython<|end_header_id|>

{{ m.content | tojson }}<|eot_id|>
{%- else %}<|start_header_id|>{{ m.role }}<|end_header_id|>

{% if tools and loop.first %}Respond with JSON {"name": function name, "parameters": dictionary}.
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}{% endif %}{{ m.content | trim }}<|eot_id|>
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>

{% endif %}"""
MISTRAL = """\
{%- set users = messages | selectattr("role", "equalto", "user") | list %}<s>
{%- for m in messages %}
{%- if m.role == "user" %}
{%- if tools and m == users[-1] %}[AVAILABLE_TOOLS] {{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}[INST] {{ m.content }}[/INST]
{%- elif m.tool_calls %}[TOOL_CALLS] [
{%- for call in m.tool_calls %}
{%- if call.id | length != 9 %}{{ raise_exception("Tool call IDs should be alphanumeric strings with length 9!") }}{% endif %}
{%- if not loop.first %}, {% endif %}{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}, "id": "{{ call.id }}"}
{%- endfor %}]</s>
{%- elif m.role == "assistant" %} {{ m.content }}</s>
{%- elif m.role == "tool" %}
{%- if m.tool_call_id | length != 9 %}{{ raise_exception("Tool call IDs should be alphanumeric strings with length 9!") }}{% endif %}
{%- raw %}[TOOL_RESULTS] {"content": {% endraw %}{{ m.content | tojson }}, "call_id": "{{ m.tool_call_id }}"}[/TOOL_RESULTS]
{%- else %}{{ raise_exception("Only user and assistant roles are supported!") }}{% endif %}
{%- endfor %}"""
GEMMA = """\
<bos>
{%- for m in messages %}
{%- if m.role == 'system' or (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception("Roles must alternate user/assistant") }}{% endif %}
{%- set role = 'model' if m.role == 'assistant' else m.role %}<start_of_turn>{{ role }}
{{ m.content | trim }}<end_of_turn>
{% endfor %}
{%- if add_generation_prompt %}<start_of_turn>model
{% endif %}"""
SMOLLM = """\
{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system
You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>
' }}{% endif %}{{'<|im_start|>' + message['role'] + '
' + message['content'] + '<|im_end|>' + '
'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant
' }}{% endif %}"""
DEEPSEEK = """\
{%- set ns = namespace(tool=false) %}<｜begin▁of▁sentence｜>
{%- if tools %}{% for tool in tools %}{{ tool | tojson }}
{% endfor %}{% endif %}
{%- for m in messages %}
{%- if m.role == 'user' %}{% set ns.tool = false %}<｜User｜>{{ m.content }}
{%- elif m.tool_calls %}{% if not ns.tool %}<｜Assistant｜>{% endif %}{% set ns.tool = false %}<｜tool▁calls▁begin｜>
{%- for call in m.tool_calls %}{% if not loop.first %}
{% endif %}<｜tool▁call▁begin｜>function<｜tool▁sep｜>{{ call.function.name }}
```json
{{ call.function.arguments + '' }}
```<｜tool▁call▁end｜>{% endfor %}<｜tool▁calls▁end｜><｜end▁of▁sentence｜>
{%- elif m.role == 'assistant' %}{% if not ns.tool %}<｜Assistant｜>{% endif %}{% set ns.tool = false %}{{ m.content }}<｜end▁of▁sentence｜>
{%- else %}
{%- if not ns.tool %}<｜tool▁outputs▁begin｜>{% endif %}{% set ns.tool = true %}<｜tool▁output▁begin｜>{{ m.content }}<｜tool▁output▁end｜>
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}<｜tool▁outputs▁end｜>{% endif %}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt and not ns.tool %}<｜Assistant｜>{% endif %}"""
FAMILIES = {"qwen": QWEN, "llama": LLAMA, "mistral": MISTRAL, "gemma": GEMMA, "smollm2": SMOLLM, "deepseek": DEEPSEEK}
ENDS = {
    "qwen": "<|im_end|>",
    "llama": "<|eot_id|>",
    "mistral": "</s>",
    "gemma": "<end_of_turn>",
    "smollm2": "<|im_end|>",
    "deepseek": "<｜end▁of▁sentence｜>",
}
SPECIAL = (
    *(
        "<pad>",
        "<|endoftext|>",
        "<|im_start|>",
        "<|begin_of_text|>",
        "<|start_header_id|>",
        "<|end_header_id|>",
        "<|python_tag|>",
    ),
    *(
        "<s>",
        "[INST]",
        "[/INST]",
        "[TOOL_CALLS]",
        "[AVAILABLE_TOOLS]",
        "[/AVAILABLE_TOOLS]",
        "[TOOL_RESULTS]",
        "[/TOOL_RESULTS]",
    ),
    *("<bos>", "<start_of_turn>", "<｜begin▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>", "<｜tool▁calls▁begin｜>"),
    *("<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>", "<｜tool▁outputs▁begin｜>"),
    *("<｜tool▁outputs▁end｜>", "<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>"),
)
WRITES_TOOLS = ("qwen", "llama", "mistral", "deepseek")
PROBLEM = Problem("What is 2 + 3?", "5")
CALL = ToolCall("add", {"a": 2, "b": [1, {"c": "x\ny"}]}, "call00000")


def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: the first one.
        b: the second one.
    """
    return a + b


def make_tokenizer(template, *, end="<|im_end|>"):
    """A byte tokenizer with the special tokens of all model families."""
    specials = [*SPECIAL, *dict.fromkeys(ENDS.values())]
    vocabulary = dict.fromkeys([*specials, *sorted(pre_tokenizers.ByteLevel.alphabet())])
    inner = Tokenizer(models.BPE({token: index for index, token in enumerate(vocabulary)}, []))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    names = {"eos_token": end, "pad_token": "<pad>"}
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=inner, additional_special_tokens=specials, **names)
    fast.chat_template = template
    return HuggingFaceTokenizer(fast, "model", chat=ChatFormat(is_used=True))


def family_tokenizer(family):
    return make_tokenizer(FAMILIES[family], end=ENDS[family])


def call_message(family):
    """An assistant message with CALL; DeepSeek's template needs the arguments as text."""
    message = CALL.to_message()
    if family == "deepseek":
        message["function"]["arguments"] = json.dumps(CALL.arguments)
    return {"role": "assistant", "content": "", "tool_calls": [message]}


RESULT = {"role": "tool", "name": "add", "tool_call_id": CALL.id, "content": 'five "5"'}


def write_turn(tokenizer, before, turn, end, **columns):
    """The text, with its end token, that a model would write for this turn if it followed the template."""
    beginning = tokenizer.render(before, opens_turn=True, **columns)
    dialogue = tokenizer.render([*before, turn], opens_turn=False, **columns)
    assert dialogue.startswith(beginning)
    text, end_token, _ = dialogue[len(beginning) :].partition(end)
    return text + end_token


@pytest.mark.parametrize("family", FAMILIES)
def test_text_between_user_messages(family):
    tokenizer, prompt = family_tokenizer(family), chat_messages(PROBLEM)
    text, dialogue = tokenizer.render(prompt, opens_turn=True), [*prompt]
    for reply, observation in (("It is 4.", "Wrong."), ("It is 5.", "Right. And 3 + 3?"), ("6", "Right.")):
        turn, message = {"role": "assistant", "content": reply}, {"role": "user", "content": observation}
        text += write_turn(tokenizer, dialogue, turn, ENDS[family])
        text += text_between(tokenizer, PROBLEM, [message])
        dialogue += [turn, message]
        assert text == tokenizer.render(dialogue, opens_turn=True)


@pytest.mark.parametrize("family", WRITES_TOOLS)
def test_text_between_tool_results(family):
    tokenizer = family_tokenizer(family)
    (problem,) = with_tools([PROBLEM], [add], tokenizer)
    tools = problem.columns["tools"]
    assert "Add two numbers." in tokenizer.render(chat_messages(problem), opens_turn=True, tools=tools)
    text, dialogue = tokenizer.render(chat_messages(problem), opens_turn=True, tools=tools), [*chat_messages(problem)]
    for _ in range(2):
        turn_text = write_turn(tokenizer, dialogue, call_message(family), ENDS[family], tools=tools)
        turn = read_turn(tokenizer, tokenizer.encode(turn_text), is_first=True)
        assert (turn.calls, turn.malformed, turn.content) == ((CALL,), (), ""), "the call that the template writes is read"
        text += turn_text + text_between(tokenizer, problem, [RESULT], calls=turn.calls)
        dialogue += [call_message(family), RESULT]
        assert text == tokenizer.render(dialogue, opens_turn=True, tools=tools)
    message_tokens = encode_messages(tokenizer, problem, turn, [RESULT])
    assert tokenizer.inner.decode(message_tokens) == text_between(tokenizer, problem, [RESULT], calls=turn.calls)


@pytest.mark.parametrize("family", ["gemma", "smollm2"])
def test_with_tools_without_template_support(family):
    tokenizer = family_tokenizer(family)
    (problem,) = with_tools([PROBLEM], [add], tokenizer)
    text = tokenizer.render(chat_messages(problem), opens_turn=True)
    assert "Add two numbers." in text
    assert text.index("<tool_call>") < text.index(PROBLEM.prompt)
    assert "tools" not in problem.columns
    after_call = text_between(tokenizer, problem, [RESULT], calls=[CALL])
    message = {"role": "user", "content": RESULT["content"]}
    assert after_call == text_between(tokenizer, problem, [message])
    assert prompt_tokens(problem, tokenizer, chat=True) == tokenizer.encode(text)


THINKING = QWEN.replace(
    "{{ m.content }}\n{%- for", "{{ m.content.split('</think>')[-1] if not loop.last else m.content }}\n{%- for"
)


@pytest.mark.parametrize(
    ("template", "tools", "messages", "message"),
    [
        (
            MISTRAL,
            [add],
            [{"role": "user", "content": "go on"}],
            "writes the prompt differently once user messages follow it",
        ),
        (
            THINKING,
            [],
            [{"role": "user", "content": "go on"}],
            "writes an assistant turn differently once user messages",
        ),
        (GEMMA, [], [{"role": "system", "content": "go on"}], "rejects messages with the roles .*Roles must alternate"),
    ],
    ids=["tools move", "reasoning is removed", "a role is refused"],
)
def test_text_between_refuses_unsuitable_template(template, tools, messages, message):
    tokenizer = make_tokenizer(template)
    (problem,) = with_tools([PROBLEM], tools, tokenizer)
    with pytest.raises(InputError, match=message) as caught:
        text_between(tokenizer, problem, messages)
    assert "\n" not in str(caught.value)


def test_encode_messages_without_template():
    plain = ByteTokenizer()
    assert plain.decode(encode_messages(plain, PROBLEM, "4", [{"role": "tool", "content": "5"}])) == "5\n"
    assert with_tools([PROBLEM], [add], plain) == [PROBLEM]


MALFORMED = [
    ("qwen", '<tool_call>{"name": "add", </tool_call>', "is not JSON"),
    ("qwen", '<tool_call>{"name": "add", "arguments": 3}</tool_call>', "must have a JSON object as its arguments"),
    ("qwen", '<tool_call>{"arguments": {}}</tool_call>', 'must be a JSON object with "name" and "arguments"'),
    ("qwen", '<tool_call>"add"</tool_call>', "must be a JSON object"),
    ("qwen", '<tool_call>{"name": "add", "arguments": {}} {"name"</tool_call>', "has more text after its JSON value"),
    ("qwen", 'Let me see. <tool_call>{"name": "add"', "has no end"),
    ("mistral", '[TOOL_CALLS] [{"name": "add"', "is not JSON"),
    ("llama", '{"name": "add", "parameters": {"a": 1', "is not JSON"),
    ("deepseek", "<｜tool▁call▁begin｜>function<｜tool▁sep｜>add\n```json\n{a}\n```<｜tool▁call▁end｜>", "is not JSON"),
    ("deepseek", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>add", "has no end"),
]


@pytest.mark.parametrize(("family", "text", "fault"), MALFORMED)
def test_parse_turn_malformed_call(family, text, fault):
    turn = parse_turn(text, dialect_of(family_tokenizer(family)))
    assert turn == text, "the malformed call stays in the text of the turn"
    assert not turn.calls
    assert len(turn.malformed) == 1
    assert fault in turn.malformed[0]


@pytest.mark.parametrize("depth", [2_000, 200_000])
def test_deeply_nested_arguments_are_a_malformed_call(depth):
    turn = parse_turn(f'<tool_call>{{"name": "add", "arguments": "{"[" * depth}"}}</tool_call>')
    assert not turn.calls
    assert turn.malformed
    with pytest.raises(InputError, match="nested too deeply"):
        parse_chat_columns({"tools": "[" * 200_000})


def test_parse_turn_several_calls():
    turn = parse_turn(
        'Both:<tool_call>{"name": "a", "arguments": "{\\"x\\": 1}"}</tool_call><tool_call>{"name": "b"}</tool_call>!'
    )
    assert [(call.name, call.arguments, call.id) for call in turn.calls] == [
        ("a", {"x": 1}, "call00000"),
        ("b", {}, "call00001"),
    ]
    assert (turn.content, turn.malformed) == ("Both:!", ())
    listed = parse_turn('<tool_call>[{"name": "a", "arguments": {}}, 3]</tool_call>')
    assert ([call.name for call in listed.calls], len(listed.malformed)) == (["a"], 1)
    newer_mistral = parse_turn(
        '[TOOL_CALLS]add[ARGS]{"a": 1}[TOOL_CALLS]add[ARGS]{"a": 2}', dialect_of(family_tokenizer("mistral"))
    )
    assert [call.arguments for call in newer_mistral.calls] == [{"a": 1}, {"a": 2}]
    assert parse_turn('{"answer": 5}', dialect_of(family_tokenizer("llama"))).calls == ()
