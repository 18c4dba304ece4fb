"""Tool environments, the guessing game and the maze: every tool call gets a reply, and faulty calls are counted."""

import asyncio

import pytest

from rljax.agents import Calculator, GuessingGame, Maze, ToolEnvironment
from rljax.agents.games import MOVES
from rljax.agents.tool_environment import MAX_RESULT_CHARACTERS, calculate
from rljax.data.problem import Problem
from rljax.data.tool_calls import parse_turn
from rljax.errors import InputError
from rljax.rollout.environment import check_step, make_environment

PROBLEM = Problem("What is 2 * 3?", "6")


def multiply(a: int, b: int) -> int:
    """Multiply two numbers.

    Args:
        a: the first factor.
        b: the second factor.
    """
    return a * b


def fail(text: str) -> str:
    """Fail.

    Args:
        text: the reason.
    """
    raise SystemError(text)


def repeat(text: str) -> dict:
    """Return a long result.

    Args:
        text: the text to repeat.
    """
    return {"text": text * MAX_RESULT_CHARACTERS}


class Tools(ToolEnvironment):
    tools = (multiply, fail, repeat)


def write_call(name, **arguments):
    encoded = ", ".join(f'"{key}": {value!r}'.replace("'", '"') for key, value in arguments.items())
    return f'<tool_call>{{"name": "{name}", "arguments": {{{encoded}}}}}</tool_call>'


def play_turn(text, environment=None):
    environment = environment or Tools()
    step = environment.step(environment.reset(PROBLEM), parse_turn(text))
    check_step(environment, step)
    return step


def test_call_is_answered_and_final_answer_judged():
    environment = Tools()
    step = play_turn(write_call("multiply", a=2, b=3), environment)
    assert step.observation == [{"role": "tool", "name": "multiply", "tool_call_id": "call00000", "content": "6"}]
    assert (step.done, step.reward, step.correct) == (False, 0.0, None)
    assert step.metrics == {"tool_calls": 1, "tool_errors": 0, "malformed_calls": 0}
    for text, right in (("So it is #6", True), ("So it is #7", False), ("no idea", False)):
        final = environment.step(step.state, parse_turn(text))
        assert (final.done, final.reward, final.correct) == (True, float(right), right)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (write_call("divide", a=1), "Error: there is no tool 'divide'; the tools are multiply, fail, repeat."),
        (write_call("multiply", a=1), "Error: multiply: the argument 'b' is missing."),
        (write_call("multiply", a=1, b=2, c=3), "Error: multiply: there is no argument 'c'; the arguments are a, b."),
        (write_call("fail", text="down"), "Error: fail: SystemError: down."),
    ],
)
def test_failed_call_is_answered_and_counted(text, message):
    step = play_turn(text)
    assert [reply["content"] for reply in step.observation] == [message]
    assert step.metrics == {"tool_calls": 1, "tool_errors": 1, "malformed_calls": 0}
    assert not step.done


def test_malformed_call_is_answered_and_counted():
    (reply,) = play_turn('<tool_call>{"name": </tool_call>').observation
    assert reply["role"] == "user"
    assert reply["content"].startswith("Error: the tool call ")
    step = play_turn(write_call("multiply", a=2, b=3) + "<tool_call>[3]</tool_call>")
    assert [reply["role"] for reply in step.observation] == ["tool", "tool"]
    assert step.metrics == {"tool_calls": 1, "tool_errors": 0, "malformed_calls": 1}


def test_long_result_is_truncated_and_marked():
    (reply,) = play_turn(write_call("repeat", text="ab")).observation
    assert len(reply["content"]) == MAX_RESULT_CHARACTERS + len("… (cut)")
    assert reply["content"].endswith("… (cut)")


def test_last_turn_is_judged_despite_a_call():
    step = play_turn(write_call("multiply", a=2, b=3), Tools(max_turns=1))
    assert (step.done, step.reward, step.metrics["tool_calls"]) == (True, 0.0, 1)


def test_own_reward_reads_a_conversation_as_messages():
    def by_message(prompts, completions):
        return [
            float(c[0]["content"] == "42" and p[-1]["content"] == "6*7=") for p, c in zip(prompts, completions, strict=True)
        ]

    problem = Problem("6*7=", "42", messages=({"role": "user", "content": "6*7="},))
    environment = Tools(reward=by_message)
    assert environment.step(environment.reset(problem), parse_turn("42")).reward == 1.0
    reads_text = Tools(reward=lambda completions: [float(completions[0].startswith("4"))])
    with pytest.raises(
        RuntimeError,
        match=r"on the answer '42': .*AttributeError.*content\"\]; --no-reward-messages passes text instead, exc",
    ):
        reads_text.step(reads_text.reset(problem), parse_turn("42"))


def count(word: str, episode_state: dict | None) -> tuple[dict, int]:
    """Count how often a word has been said.

    Args:
        word: the word.
        episode_state: the counts so far.
    """
    counts = dict(episode_state or {})
    counts[word] = counts.get(word, 0) + 1
    return counts, counts[word]


def test_tool_keeps_state_within_an_episode():
    environment = type("Counting", (ToolEnvironment,), {"tools": (count, multiply)})()
    assert [*environment.parameters["count"]["properties"]] == ["word"], "the model does not pass the state"
    state, seen = environment.reset(PROBLEM), []
    for turn in (
        write_call("count", word="a"),
        write_call("count", word="a") + write_call("count", word="b"),
        write_call("multiply", a=2, b=3),
    ):
        step = environment.step(state, parse_turn(turn))
        assert state is not step.state, "the earlier state is unchanged"
        state = step.state
        seen.append([reply["content"] for reply in step.observation])
    assert seen == [["1"], ["2", "1"], ["6"]]
    assert state.tool_states == {"count": {"a": 2, "b": 1}}
    assert environment.reset(PROBLEM).tool_states == {}
    again = play_turn(write_call("count", word="a", episode_state=3), environment)
    assert "there is no argument 'episode_state'" in again.observation[0]["content"]


def forget(text: str, episode_state: object) -> str:
    """Return a text instead of a pair.

    Args:
        text: the text to return.
        episode_state: unused.
    """
    return text


def test_stateful_tool_must_return_a_pair():
    environment = type("Forgetting", (ToolEnvironment,), {"tools": (forget,)})()
    with pytest.raises(InputError, match=r"forget has a parameter episode_state, so it must return a pair, .* got 'ab'"):
        environment.step(environment.reset(PROBLEM), parse_turn(write_call("forget", text="ab")))


async def wait(text: str) -> str:
    """Wait.

    Args:
        text: the text to return.
    """
    await asyncio.sleep(0)
    return text


def hide(text: str) -> str:
    """Return a coroutine, although the signature promises a `str`.

    Args:
        text: the text to return.
    """
    return wait(text)


def test_plain_tool_must_not_return_an_awaitable():
    environment = type("Hiding", (ToolEnvironment,), {"tools": (hide,)})()
    with pytest.raises(
        InputError,
        match=r"^environment\.tools: a tool returned an awaitable \(the tools called are hide\); write it as `async def`",
    ):
        environment.step(environment.reset(PROBLEM), parse_turn(write_call("hide", text="later")))


def test_tool_may_be_a_coroutine_function():
    environment = type("Waiting", (ToolEnvironment,), {"tools": (wait,)})()
    step = asyncio.run(environment.step(environment.reset(PROBLEM), parse_turn(write_call("wait", text="later"))))
    assert step.observation[0]["content"] == "later"


def without_docstring(a: int) -> int:
    return a


@pytest.mark.parametrize(
    ("tools", "message"),
    [
        ((), r"^environment\.tools: Other has no tools"),
        ((multiply, multiply), r"^environment\.tools: two tools of Other have the same name"),
        ((without_docstring,), "the tool 'without_docstring' has no JSON schema .* a line in the section `Args:`"),
    ],
)
def test_invalid_tools_raise(tools, message):
    with pytest.raises(InputError, match=message):
        type("Other", (ToolEnvironment,), {"tools": tools})()


@pytest.mark.parametrize(("text", "value"), [("2 + 3 * 4", 14), ("-(2 ** 10) / 4", -256.0), ("7 // 2 % 2", 1)])
def test_calculator_evaluates_expressions(text, value):
    assert calculate(text) == value
    step = play_turn(write_call("calculate", expression=text), Calculator())
    assert step.observation[0]["content"] == str(value)


@pytest.mark.parametrize(
    "text", ["2 **", "__import__('os')", "9 ** 9 ** 9", "1 / 0", "1" * 2000, "a + 1", "10.0 ** 400", "True"]
)
def test_calculator_refuses_invalid_and_unsafe_expressions(text):
    (reply,) = play_turn(
        f'<tool_call>{{"name": "calculate", "arguments": {{"expression": "{text}"}}}}</tool_call>', Calculator()
    ).observation
    assert reply["content"].startswith("Error: calculate: ")


def test_numbers_too_long_for_python_are_errors():
    (reply,) = play_turn(write_call("multiply", a=int("9" * 4000), b=int("9" * 4000))).observation
    assert reply["content"].startswith("Error: multiply: ValueError: Exceeds the limit")
    turn = play_turn(f'<tool_call>{{"name": "multiply", "arguments": {{"a": {"9" * 5000}, "b": 1}}}}</tool_call>')
    assert turn.metrics["malformed_calls"] == 1
    game = GuessingGame()
    assert game.step(game.reset(Problem("", "7")), "9" * 5000).observation[0]["content"] == "lower"
    with pytest.raises(InputError, match="must be a number from 1 to 100"):
        game.reset(Problem("", "9" * 5000))


def test_guessing_game_is_won_by_bisection():
    game, problem, low, high = GuessingGame(), Problem("", "37"), 1, 100
    assert "from 1 to 100" in game.first_messages(problem)[0]["content"]
    state = game.reset(problem)
    for _ in range(game.max_turns):
        step = game.step(state, f"Perhaps {(low + high) // 2}?")
        if step.done:
            break
        state = step.state
        bounds = {"higher": ((low + high) // 2 + 1, high), "lower": (low, (low + high) // 2 - 1)}
        low, high = bounds[step.observation[0]["content"]]
    assert (step.correct, step.reward) == (True, 1.0)
    assert game.step(game.reset(problem), "no").metrics == {"no_guess": 1.0}
    with pytest.raises(InputError, match="a number from 1 to 100; got '137'"):
        game.reset(Problem("", "137"))


@pytest.mark.parametrize("seed", range(5))
def test_maze_is_solvable_and_reports_walls(seed):
    maze = Maze(size=4, max_turns=200)
    state, opposite = (
        maze.reset(Problem("", str(seed))),
        {"north": "south", "south": "north", "west": "east", "east": "west"},
    )
    seen, path = {state.place}, []
    while True:
        here = state.place
        fresh = [move for move in state.doors[here] if (here[0] + MOVES[move][0], here[1] + MOVES[move][1]) not in seen]
        move = fresh[0] if fresh else opposite[path.pop()]
        step = maze.step(state, f"I go {move}.")
        if step.done:
            break
        path += [move] * bool(fresh)
        state = step.state
        seen.add(state.place)
    assert (step.correct, step.reward) == (True, 1.0)
    blocked = next(move for move in MOVES if move not in maze.reset(Problem("", "1")).doors[0, 0])
    step = maze.step(maze.reset(Problem("", "1")), blocked)
    assert step.observation[0]["content"].startswith("There is a wall. You can go ")
    assert step.state.place == (0, 0)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("guesing", None, "there is no environment 'guesing'.* guessing"),
        ("guessing", "[1]", r"environment_options is '\[1\]'; a JSON object is expected"),
        ("guessing", "{", "environment_options is '{'; a JSON object is expected"),
        ("guessing", '{"largst": 3}', "the environment 'guessing' cannot be built with the arguments .*largst"),
        ("guessing", '{"largest": 0}', "largest must be a whole number of at least 1; got 0"),
        ("maze", '{"size": 1}', "size must be a whole number of at least 2; got 1"),
        ("calculator", '{"reward": "mth"}', "there is no reward 'mth'"),
        ("math:sqrt", "{}", "the environment 'math:sqrt' cannot be built"),
        ("absent.py:Game", None, "the file 'absent.py' does not exist"),
    ],
)
def test_make_environment_rejects_invalid_arguments(name, options, message):
    with pytest.raises(InputError, match=message) as caught:
        make_environment(name, options)
    assert "\n" not in str(caught.value)
