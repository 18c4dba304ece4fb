"""Chat encoding: a row's tokens contain all of its messages, and turns begin and end as the template prescribes."""

import importlib.util
import json
import math
import time
from pathlib import Path

import pytest
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from rljax.data import chat
from rljax.data.cells import chat_of
from rljax.data.chat import ChatFormat
from rljax.data.feedback import feedback_of
from rljax.data.preferences import PreferenceColumns, read_preference
from rljax.data.problem import Problem
from rljax.data.problem_datasets import load_problems, read_problems
from rljax.data.prompts import (
    encode_demonstrations,
    list_columns_left_out,
    list_prompt_omissions,
    move_turns_to_demonstration,
    prompt_tokens,
    response_tokens,
)
from rljax.data.tokenizer import ByteTokenizer, HuggingFaceTokenizer, completion_text
from rljax.errors import InputError
from rljax.preference.pair_update import encode_pairs, problem_from_prompt
from rljax.programs.labeled_pairs import row_of

TEMPLATE = """\
{%- if tools %}<tools>{{ tools | tojson }}</tools>{% endif %}
{%- if strftime_now is defined %}[{{ strftime_now("%d %b %Y") }}]{% endif %}
{%- if mood is defined %}({{ mood }}){% endif %}
{%- for m in messages %}<|im_start|>{{ m.role }}{{ ' ' + m.name if m.name }}
{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}
{%- for call in m.tool_calls or [] %}<call>{{ call | tojson }}{% endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
OPEN_THINK_TEMPLATE = TEMPLATE.replace("<|im_start|>assistant\n{% endif %}", "<|im_start|>assistant\n<think>\n{% endif %}")
SPECIALS = ("<pad>", "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<bos>", "<|begin_of_text|>")
SPECIALS += ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<start_of_turn>", "<end_of_turn>", "<|end|>")
SPECIALS += ("<｜User｜>", "<｜Assistant｜>", "<｜end▁of▁sentence｜>")
CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 2}}}
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}]
QUESTION = {"role": "user", "content": "2+2?"}
TOOL_CALL = {"role": "assistant", "content": "", "tool_calls": [CALL]}
TOOL_RESULT = {"role": "tool", "name": "add", "content": "four"}
REPLY = {"role": "assistant", "content": "It is 4."}


def make_tokenizer(template=TEMPLATE, *, keeps_special=False, **settings):
    """A byte tokenizer with special tokens. Its EOS token differs from the template's end-of-turn token, as in Qwen2.5 base."""
    vocabulary = dict.fromkeys([*SPECIALS, *sorted(pre_tokenizers.ByteLevel.alphabet())])
    inner = Tokenizer(models.BPE({token: index for index, token in enumerate(vocabulary)}, []))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    names = {"eos_token": "<|endoftext|>", "pad_token": "<pad>", "bos_token": "<bos>"}
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=inner, additional_special_tokens=list(SPECIALS), **names)
    fast.chat_template = template
    return HuggingFaceTokenizer(fast, "model", chat=ChatFormat(is_used=True, **settings), keeps_special=keeps_special)


def text_of(ids, tokenizer):
    return tokenizer.inner.decode(ids)


def mark_trained(problem, tokenizer):
    """Return the response as text, with brackets around the trained tokens."""
    ids, mask = response_tokens(problem, tokenizer, chat=True)
    assert len(ids) == len(mask)
    marks = [*mask, False]
    opened = [("[" if mask[i] and (not i or not mask[i - 1]) else "") for i in range(len(ids))]
    return "".join(
        opened[i] + tokenizer.inner.decode([token]) + ("]" if mask[i] and not marks[i + 1] else "")
        for i, token in enumerate(ids)
    )


@pytest.fixture
def rows(tmp_path):
    def write(*entries):
        file = tmp_path / "rows.jsonl"
        file.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
        return read_problems(file).problems

    return write


def test_template_receives_all_message_fields(rows):
    messages = [
        QUESTION,
        {**TOOL_CALL, "content": None, "name": None},
        TOOL_RESULT,
        {**REPLY, "reasoning_content": "two twos"},
    ]
    (problem,) = rows({"messages": messages, "tools": TOOLS, "answer": "4"})
    tokenizer = make_tokenizer(date="2026-01-31")
    text = text_of(prompt_tokens(problem, tokenizer, chat=True), tokenizer)
    expected = tokenizer.inner.apply_chat_template(
        [QUESTION, TOOL_CALL, TOOL_RESULT], tools=TOOLS, tokenize=False, add_generation_prompt=True
    )
    assert text == expected.replace(f"[{time.strftime('%d %b %Y')}]", "[31 Jan 2026]")
    assert "tool add\nfour" in text
    assert '<call>{"type": "function"' in text
    assert text.startswith("<tools>[{")
    assert mark_trained(problem, tokenizer) == "[<think>two twos</think>It is 4.<|im_end|>]"
    assert problem.prompt == '2+2?\n[{"type": "function", "function": {"name": "add", "arguments": {"a": 2}}}]\nfour'


def test_completion_trains_only_assistant_turns(rows):
    (problem,) = rows({"prompt": [QUESTION], "completion": [TOOL_CALL, TOOL_RESULT, REPLY], "tools": TOOLS})
    tokenizer = make_tokenizer(date="2026-01-31")
    call = json.dumps(CALL)
    assert mark_trained(problem, tokenizer) == (
        f"[<call>{call}<|im_end|>]\n<|im_start|>tool add\nfour<|im_end|>\n<|im_start|>assistant\n[It is 4.<|im_end|>]"
    )
    assert problem.answer == "It is 4."
    whole = tokenizer.render([QUESTION, TOOL_CALL, TOOL_RESULT, REPLY], opens_turn=False, tools=TOOLS)
    ids = prompt_tokens(problem, tokenizer, chat=True) + response_tokens(problem, tokenizer, chat=True)[0]
    assert text_of(ids, tokenizer) + "\n" == whole
    arrays = encode_demonstrations([problem], tokenizer, 400, 400, chat=True)
    assert 0 < arrays.response_mask.sum() < arrays.response_attention.sum()
    with pytest.raises(InputError, match=r"roles: assistant, tool, assistant\).*turn chat on \(--chat\)"):
        encode_demonstrations([problem], tokenizer, 400, 400)
    with pytest.raises(InputError, match="begins or ends with a message of role 'tool'"):
        rows({"prompt": [QUESTION], "completion": [TOOL_CALL, TOOL_RESULT]})


def test_whole_dialogue_trains_every_assistant_turn(rows):
    (problem,) = rows({"messages": [QUESTION, TOOL_CALL, TOOL_RESULT, REPLY], "tools": TOOLS})
    tokenizer = make_tokenizer(date="2026-01-31")
    assert mark_trained(problem, tokenizer) == "[It is 4.<|im_end|>]"
    whole = move_turns_to_demonstration(problem)
    call = json.dumps(CALL)
    assert mark_trained(whole, tokenizer) == (
        f"[<call>{call}<|im_end|>]\n<|im_start|>tool add\nfour<|im_end|>\n<|im_start|>assistant\n[It is 4.<|im_end|>]"
    )
    ids = [
        prompt_tokens(each, tokenizer, chat=True) + response_tokens(each, tokenizer, chat=True)[0]
        for each in (problem, whole)
    ]
    assert ids[0] == ids[1]
    prompt = len(prompt_tokens(problem, tokenizer, chat=True))
    arrays = encode_demonstrations([problem], tokenizer, prompt, 20, chat=True, dialogues=True)
    assert (arrays.dropped, arrays.response_mask.sum()) == (0, sum(response_tokens(whole, tokenizer, chat=True)[1]))
    assert encode_demonstrations([problem, problem], tokenizer, prompt, 20, chat=True).response_mask.sum(1).tolist() == [
        9,
        9,
    ]
    greeting = {"role": "assistant", "content": "Hello."}
    (problem,) = rows({"messages": [greeting, QUESTION, REPLY]})
    assert move_turns_to_demonstration(problem) == problem


def test_message_weight_0_is_not_trained(rows):
    tokenizer = make_tokenizer(date="2026-01-31")
    (problem,) = rows(
        {"messages": [QUESTION, {**TOOL_CALL, "weight": 0}, TOOL_RESULT, {**REPLY, "weight": 1}], "tools": TOOLS}
    )
    assert mark_trained(move_turns_to_demonstration(problem), tokenizer).endswith(
        "<|im_start|>assistant\n[It is 4.<|im_end|>]"
    )
    assert not mark_trained(move_turns_to_demonstration(problem), tokenizer).startswith("[")
    assert list_prompt_omissions([problem], tokenizer, chat=True) == []
    with pytest.raises(
        InputError, match=r"the weight of a chat message must be 1 \(trained on\) or 0 \(not trained on\), not 0\.5"
    ):
        rows({"messages": [QUESTION, {**REPLY, "weight": 0.5}]})


CALLS = {
    "{{ call.function.arguments | tojson }}": '{"a": 2}',
    "{% for k, v in call.function.arguments.items() %}{{ k }}={{ v }}{% endfor %}": "a=2",
    "{% if call.function.arguments is string %}!{% endif %}{{ call.function.arguments | tojson }}": '{"a": 2}',
    "{{ call.function.arguments + '' }}": '{"a":2}',
    "{{ call.function.arguments }}": '{"a":2}',
}


@pytest.mark.parametrize("template", CALLS)
def test_arguments_of_calls_may_be_json_text(rows, template):
    """OpenAI's format has JSON text; most templates write an object as JSON, and would quote the text again."""
    tokenizer = make_tokenizer(TEMPLATE.replace("<call>{{ call | tojson }}", f"<call>{template}"))
    call = {"type": "function", "function": {"name": "add", "arguments": '{"a":2}'}}
    talk = {"role": "user", "content": "I mean {'a': 2}"}
    (problem,) = rows({"messages": [talk, {**TOOL_CALL, "tool_calls": [call]}, TOOL_RESULT, REPLY]})
    dialogue = tokenizer.render([talk, *problem.messages[1:]], opens_turn=True)
    assert f"<call>{CALLS[template]}<|im_end|>" in dialogue
    assert text_of(prompt_tokens(problem, tokenizer, chat=True), tokenizer) == dialogue
    assert mark_trained(move_turns_to_demonstration(problem), tokenizer).startswith(f"[<call>{CALLS[template]}<|im_end|>]")
    objects = tokenizer.render([talk, TOOL_CALL], opens_turn=False)
    assert f"<call>{CALLS[template].replace(':2', ': 2')}<|im_end|>" in objects
    for unreadable in ("two", "[1]", "{"):
        call["function"]["arguments"] = unreadable
        if "items" not in template:
            text = tokenizer.render([talk, {**TOOL_CALL, "tool_calls": [call]}], opens_turn=False)
            assert (json.dumps(unreadable) if "tojson" in template else unreadable) in text


def test_arguments_of_the_older_function_call_may_be_json_text():
    tokenizer = make_tokenizer("{% for m in messages %}{{ m.function_call.arguments | tojson }}{% endfor %}")
    message = {"role": "assistant", "content": "", "function_call": {"name": "add", "arguments": '{"a":2}'}}
    assert tokenizer.render([message], opens_turn=False) == '{"a": 2}'


@pytest.mark.parametrize("end", ["", "<|im_end|>", "<|im_end|>\n", "<|im_end|><|im_end|>"])
def test_demonstration_ends_with_one_turn_end(end):
    tokenizer = make_tokenizer()
    assert mark_trained(Problem("1+1?", "2", f"2{end}"), tokenizer) == "[2<|im_end|>]"
    assert tokenizer.turn_end == tokenizer.inner.convert_tokens_to_ids("<|im_end|>") != tokenizer.eos_token_id
    plain = Problem("1+1?", "2", "2<|endoftext|>")
    assert text_of(response_tokens(plain, tokenizer)[0], tokenizer) == "2<|endoftext|>"


def test_chat_date_is_pinned():
    pinned = make_tokenizer(date="2026-01-31")
    assert "[31 Jan 2026]" in pinned.render([QUESTION], opens_turn=True)
    assert f"[{time.strftime('%d %b %Y')}]" in make_tokenizer().render([QUESTION], opens_turn=True)
    with pytest.raises(InputError, match="the date cannot be set"):
        make_tokenizer("{{ strftime_now(messages[0].content) }}", date="2026-01-31").render([QUESTION], opens_turn=True)
    with pytest.raises(InputError, match="chat_date is '31 Jan'"):
        ChatFormat(date="31 Jan")


def test_template_options_of_run_and_row():
    tokenizer = make_tokenizer(options={"mood": "kind"})
    assert "(kind)" in tokenizer.render([QUESTION], opens_turn=True)
    row = Problem("1+1?", "2", columns={"chat_template_kwargs": '{"mood": "stern"}'})
    assert "(stern)" in text_of(prompt_tokens(row, tokenizer, chat=True), tokenizer)
    with pytest.raises(InputError, match="'tools', which the data or rljax sets"):
        ChatFormat(options={"tools": []})
    for wrong in ("[", "[]x", [1], {"a": 1}):
        with pytest.raises(InputError, match="column 'tools' contains"):
            prompt_tokens(Problem("1", "2", columns={"tools": wrong}), tokenizer, chat=True)


def test_prefill_and_open_think_tag_belong_to_answer():
    tokenizer = make_tokenizer(OPEN_THINK_TEMPLATE, prefill="First", keeps_special=True)
    ids = prompt_tokens(Problem("1+1?", "2"), tokenizer, chat=True)
    assert text_of(ids, tokenizer).endswith("<|im_start|>assistant\n<think>\nFirst")
    sampled = tokenizer.encode(" so</think>2<|im_end|>")
    assert completion_text(tokenizer, sampled) == "<think>\nFirst so</think>2"
    assert mark_trained(Problem("1+1?", "2", "<think>\nFirst so</think>2"), tokenizer) == "[ so</think>2<|im_end|>]"
    assert mark_trained(Problem("1+1?", "2", "2"), make_tokenizer(prefill="It is ")) == "[2<|im_end|>]"
    assert mark_trained(Problem("1+1?", "2", "It is 2"), make_tokenizer(prefill="It is ")) == "[2<|im_end|>]"


def test_keeps_special_keeps_special_tokens():
    ids = make_tokenizer().encode("<think>a</think>4<|im_end|><|endoftext|><pad>")
    assert make_tokenizer().decode(ids) == "a4"
    assert make_tokenizer(keeps_special=True).decode(ids) == "<think>a</think>4"
    assert "<think>" in make_tokenizer().special_texts
    assert "<think>" not in make_tokenizer(keeps_special=True).special_texts >= {"<|endoftext|>", "<|im_end|>"}


def test_template_timeout(monkeypatch):
    loop = "{% for i in range(99999) %}{% for j in range(99999) %}{% for k in range(99999) %}{% endfor %}{% endfor %}{% endfor %}"
    monkeypatch.setattr(chat, "RENDER_SECONDS", 0.5)
    start = time.monotonic()
    with pytest.raises(InputError, match=r"chat template of 'model' did not finish within 0\.5 seconds"):
        prompt_tokens(Problem("1", "1"), make_tokenizer(loop), chat=True)
    assert time.monotonic() - start < 20


def test_prompt_omissions_of_chats():
    conversation = Problem(
        "x", "4", None, {"tools": TOOLS}, ({"role": "system", "content": "s"}, QUESTION, TOOL_CALL, TOOL_RESULT)
    )
    (note,) = list_prompt_omissions([conversation] * 2, ByteTokenizer(), chat=False)
    assert note.startswith("2 prompts are chats (roles: assistant, system, tool, user), but chat is off")
    assert list_prompt_omissions([conversation], make_tokenizer(), chat=True) == []
    poor = make_tokenizer("{% for m in messages %}{{ m.role }}{{ m.content }}{% endfor %}")
    (note,) = list_prompt_omissions([conversation], poor, chat=True)
    assert "the model does not see them: name, tool_calls, tools" in note
    with_columns = [Problem("x", "4", None, {"system": "s"}), Problem("x", "4", None, {"documents": ["d"], "system": ""})]
    expected = ["the prompts leave out the columns 'system', 'documents'; add them to the prompts"]
    assert (
        list_prompt_omissions(with_columns, make_tokenizer(), chat=True)
        == list_prompt_omissions(with_columns, ByteTokenizer(), chat=False)
        == expected
    )


def test_template_options_that_are_not_read_are_listed():
    """A misspelled option would otherwise have no effect without a word. `documents` is an argument of `transformers`."""
    problem = Problem("2+2?", "4")
    for options, unread in (
        ({"mood": "calm", "documents": []}, None),
        ({"moods": "calm", "mood": 1, "a": 2}, "'a', 'moods'"),
    ):
        notes = list_prompt_omissions([problem], make_tokenizer(options=options), chat=True)
        assert notes == (
            [] if unread is None else [f"the chat template does not read these entries of chat_template_kwargs: {unread}"]
        )
    several = make_tokenizer({"default": "{{ mood }}", "tool_use": "{{ moods }}"}, options={"mood": 1, "moods": 2})
    assert several.list_unread_options() == []


def test_prompt_omissions_of_plain_prompts_and_templates():
    plain = Problem("x", "4", None, {"tools": TOOLS})
    assert list_prompt_omissions([plain], make_tokenizer(), chat=False) == [
        "chat is off, so the prompts leave out the column 'tools'; use --chat"
    ]
    silent = "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}"
    (note,) = list_prompt_omissions([plain], make_tokenizer(silent), chat=True)
    assert note.endswith("the model does not see them: tools")
    systems = Problem("s", "4", messages=({"role": "system", "content": "Add."}, QUESTION))
    (note,) = list_prompt_omissions([systems], make_tokenizer(silent), chat=True)
    assert note.endswith("content (of a message with role 'system')")
    first = "{% for m in messages %}{% if m.role == 'user' or loop.first %}{{ m.content }}{% endif %}{% endfor %}"
    assert list_prompt_omissions([systems], make_tokenizer(first), chat=True) == []
    twice = Problem("s", "4", messages=({"role": "system", "content": "Add."}, *systems.messages))
    (note,) = list_prompt_omissions([systems, twice], make_tokenizer(first), chat=True)
    assert note.endswith("content (of a message with role 'system')")


@pytest.mark.parametrize(
    ("template", "formatted", "opening"),
    [
        (TEMPLATE, "<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n", "<|im_start|>user"),
        (
            "<bos>{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]{% else %} {{ m.content }}</s>"
            "{% endif %}{% endfor %}",
            "[INST] 2+2? [/INST]",
            "[INST]",
        ),
        ("{% for m in messages %}{{ m.role }}{{ m.content }}{% endfor %}", "a user", None),
        ("{{ messages[-1].content }}", "a user", None),
        ("{{ raise_exception('no') }}", "a user", None),
    ],
)
def test_prompts_with_the_turns_of_the_template_are_reported(template, formatted, opening):
    problems = [Problem("2+2?", "4"), Problem(formatted, "4")] * 2
    notes = (
        []
        if opening is None
        else [f"2 of 4 prompts already contain {opening!r}, which the chat template adds; leave out --chat"]
    )
    assert list_prompt_omissions(problems, make_tokenizer(template), chat=True) == notes
    assert list_prompt_omissions(problems, make_tokenizer(template), chat=False) == []


def test_prompt_omissions_of_columns():
    choices = Problem("Which is even?", "1", columns={"choices": ["3", "4"], "images": None})
    (note,) = list_prompt_omissions([choices], ByteTokenizer(), chat=False)
    assert note == "the prompts leave out the column 'choices'; add it to the prompts"
    question = {"question": "Which is even?", "choices": {"label": ["A", "B"], "text": ["3", "4"]}, "answerKey": "B"}
    assert list_prompt_omissions(read_problems([question]).problems, ByteTokenizer(), chat=False) == []
    images = Problem("What is this?", "a dog", columns={"images": [{"bytes": b"", "path": "x.png"}]})
    assert "images" in list_prompt_omissions([images], ByteTokenizer(), chat=False)[0]
    weighted = [Problem("2+2?", "4", columns={"weight": weight}) for weight in (1.0, None, math.nan)]
    (note,) = list_prompt_omissions(weighted, ByteTokenizer(), chat=False)
    assert note == "the column 'weight' is ignored: each row counts once in the loss"
    assert list_prompt_omissions(weighted[:2], ByteTokenizer(), chat=False) == []
    chats = [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]
    rows = [Problem(prompt, "4", columns={"messages": chats}) for prompt in ("2+2?", "3+3?")]
    assert list_prompt_omissions(rows[:1], ByteTokenizer(), chat=False) == []
    assert "leave out the column 'messages'" in list_prompt_omissions(rows, ByteTokenizer(), chat=False)[0]
    row = {"system": "Be brief.", "prompt": "2+2?", "chosen": "4", "rejected": "It is 4."}
    pair = read_preference(row, PreferenceColumns("prompt", "chosen", "rejected"))
    assert pair.columns == {"system": "Be brief."}


def test_read_preference_keeps_tools_and_turns():
    columns = PreferenceColumns("prompt", "chosen", "rejected")
    row = {"prompt": [QUESTION], "chosen": [REPLY], "rejected": [{**REPLY, "content": "5"}], "tools": TOOLS}
    assert read_preference(row, columns).columns == {"tools": TOOLS}
    called = {**TOOL_CALL, "content": "4"}
    assert read_preference({**row, "chosen": [called]}, columns).turns == ((called,), None)
    several = read_preference({**row, "chosen": [TOOL_CALL, TOOL_RESULT, REPLY]}, columns)
    encoded = encode_pairs([several], make_tokenizer(date="2026-01-31"), max_tokens=999, chat=True)
    assert not all(encoded.assistant_masks[0][0])
    assert all(encoded.assistant_masks[0][1])


def test_feedback_and_labeled_pairs_keep_tools():
    line = {"prompt": [QUESTION], "response": "4", "reward": 1, "tools": TOOLS, "other": 1}
    assert feedback_of(line).columns == {"tools": TOOLS}
    pair = row_of(Problem("2+2?", "4", columns={"tools": TOOLS, "level": 1}, messages=(QUESTION,)), "4", "5")
    assert set(pair) == {"prompt", "chosen", "rejected", "tools"}


def test_chat_of_joins_text_parts():
    parts = [{"type": "text", "text": "2+"}, {"type": "text", "text": "2?"}]
    assert chat_of([{"role": "user", "content": parts}], "prompt") == (QUESTION,)
    with pytest.raises(Exception, match=r"part of a chat message must be .* not \{'type': 'image'"):
        chat_of([{"role": "user", "content": [{"type": "image", "text": ""}]}], "prompt")


@pytest.mark.parametrize(
    "name", ["tools.jsonl", "messages_tool_content_null.jsonl", "reasoning_content.jsonl", "chat.jsonl"]
)
def test_load_problems_reads_shared_chat_cases(name, shared_data):
    file = shared_data.parent / "cases" / name
    if not file.is_file():
        pytest.skip("the file of the case is absent")
    tokenizer = make_tokenizer()
    for problem in load_problems(file):
        entries = {key for message in (*problem.messages, *(problem.turns or ())) for key in message}
        assert entries or name == "chat.jsonl"
        assert list_prompt_omissions([problem], tokenizer, chat=True) == []


TEMPLATES = Path((importlib.util.find_spec("trl") or importlib.util.find_spec("pytest")).origin).parent / "chat_templates"
FAMILIES = (
    "llama3",
    "llama3_1",
    "llama3_2",
    "qwen2_5",
    "qwen3",
    "qwen3_instruct_2507",
    "deepseek_r1_distill",
    "gemma",
    "gemma3",
    "phi3",
    "phi3_5",
)
CHATS = {
    "plain": ([{"role": "system", "content": "Be brief."}, QUESTION], None),
    "tools": ([QUESTION], TOOLS),
    "calls": ([QUESTION, TOOL_CALL, TOOL_RESULT], TOOLS),
    "reasoning": ([QUESTION, {**REPLY, "reasoning_content": "two twos"}, QUESTION], None),
}


@pytest.mark.skipif(not TEMPLATES.is_dir(), reason="the templates of the families come with TRL: pip install trl")
@pytest.mark.parametrize("conversation", CHATS)
@pytest.mark.parametrize("family", FAMILIES)
def test_model_family_templates_match_transformers(family, conversation):
    tokenizer = make_tokenizer((TEMPLATES / f"{family}.jinja").read_text())
    messages, tools = CHATS[conversation]
    columns = {"tools": tools} if tools else {}
    as_text = {"function": {**CALL["function"], "arguments": json.dumps(CALL["function"]["arguments"])}}
    texts = [
        {**message, "tool_calls": [{**CALL, **as_text}]} if "tool_calls" in message else message for message in messages
    ]
    try:
        try:
            expected = tokenizer.inner.apply_chat_template(messages, tools=tools, add_generation_prompt=True)["input_ids"]
        except Exception:  # the template may need the arguments of calls as text
            expected = tokenizer.inner.apply_chat_template(texts, tools=tools, add_generation_prompt=True)["input_ids"]
    except Exception:
        with pytest.raises(InputError, match="rejects messages with the roles"):
            tokenizer.apply_chat_template(chat_of(messages, "prompt"), **columns)
        return
    assert tokenizer.apply_chat_template(chat_of(messages, "prompt"), **columns) == expected


@pytest.mark.skipif(not TEMPLATES.is_dir(), reason="the templates of the families come with TRL: pip install trl")
@pytest.mark.parametrize("family", ["llama3", "qwen2_5", "qwen3", "qwen3_instruct_2507", "phi3"])
def test_trained_tokens_match_trl_training_templates(family):
    turns = (REPLY,) if family in ("llama3", "phi3") else (TOOL_CALL, TOOL_RESULT, REPLY)
    problem = Problem("2+2?", "4", "x", {"tools": TOOLS} if len(turns) > 1 else {}, None, turns)
    tokenizer = make_tokenizer((TEMPLATES / f"{family}.jinja").read_text())
    marked = make_tokenizer((TEMPLATES / f"{family}_training.jinja").read_text()).inner.apply_chat_template(
        [QUESTION, *turns], tools=problem.columns.get("tools"), return_assistant_tokens_mask=True, return_dict=True
    )
    theirs = [token for token, trained in zip(marked["input_ids"], marked["assistant_masks"], strict=True) if trained]
    ids, mask = response_tokens(problem, tokenizer, chat=True)
    ours = [token for token, trained in zip(ids, mask, strict=True) if trained]
    # TRL patches its training templates: they always write an empty thought, and training starts at the line break before it.
    plain = [text_of(tokens, tokenizer).replace("\n", "").replace("<think></think>", "") for tokens in (ours, theirs)]
    assert plain[0] == plain[1].removesuffix("<|endoftext|>")


def test_notes_on_weights_labels_and_scores_without_effect():
    user = {"role": "user", "content": "2+2?"}
    problems = [Problem("2+2?", "4", "4", messages=(user | {"weight": weight},)) for weight in (0, 1)]
    assert list_columns_left_out(problems[:1]) == []
    (note,) = list_columns_left_out(problems)
    assert note == "messages of role 'user' have weight 1, which has no effect: only assistant messages are trained on"
    for labels in ((True, False), (1, 0), (1.0, 0.0), ("1", "0"), ("true", "False"), (None, 0)):
        wanted = [Problem("2+2?", "5", "5", {"label": label}) for label in labels]
        assert list_columns_left_out(wanted[:1]) == []
        assert "1 of 2 completions are labeled false" in list_columns_left_out(wanted)[0]
    classes = [Problem("2+2?", "5", "5", {"label": label}) for label in (0, 1, 2)]
    assert list_columns_left_out(classes) == []
    columns = PreferenceColumns("prompt", "chosen", "rejected")
    row = {"prompt": "2+2?", "chosen": "4", "rejected": "5", "score_chosen": 2.0, "score_rejected": 1.0, "weight": 1}
    problems = [
        problem_from_prompt(read_preference(row | more, columns)) for more in ({}, {"score_rejected": 3.0, "weight": 0.5})
    ]
    assert list_columns_left_out(problems[:1]) == []
    weights, scores = list_columns_left_out(problems)
    assert weights == "the column 'weight' is ignored: each row counts once in the loss"
    assert scores.startswith("in 1 of 2 pairs the rejected response has the higher score (score_chosen < score_rejected)")
