"""Test of episodes on two hosts: each episode is played once, on one host, and both hosts get the same results."""

import json

from two_hosts import run_on_two_hosts

PROGRAM = '''
"""Play episodes of a random environment; each host prints the calls that it made and the results that it received."""
import json, os, random, sys
from rljax.data.problem import Problem
from rljax.data.tokenizer import load_tokenizer
from rljax.errors import InputError
from rljax.parallel.joining import join
from rljax.rollout import Request, Response, Sampling, Step
from rljax.rollout.episodes import play
import numpy as np

_, address, _, hosts, _, host = sys.argv[1:]
join(address, hosts=int(hosts), host=int(host))
tokenizer = load_tokenizer("characters:0123456789")
played = []


class DigitEngine:
    """An engine whose every turn is one digit."""

    def generate(self, params, requests):
        return [self.respond(request) for request in requests]

    def respond(self, request):
        tokens = np.array([*tokenizer.encode(str(request.seed % 10)), tokenizer.eos_token_id], np.int32)
        logp = np.full(len(tokens), -0.5, np.float32)
        return Response(request.prompt_id, request.group, tokens, np.ones(len(tokens), bool), logp, logp, "stop")


class RandomEnvironment:
    """An environment with random observations, in which another policy takes every second turn."""

    max_turns = 4

    def reset(self, problem):
        played.append(("reset", problem.answer))
        if problem.answer == "3":
            raise OSError("down")
        return problem.answer, 0

    def is_others_turn(self, state):
        return state[1] % 2 == 1

    def step(self, state, completion):
        name, turn = state
        played.append((f"turn {turn}", name))
        if name == "4" and turn == 1:
            raise ValueError("broken")
        if name == "bad" and host == "1":
            return "no step"
        observation = str(random.SystemRandom().randrange(10**6))
        done = turn == 3 and name != "5"
        outcome = {"parts": {"third": np.float32(0.3)}, "metrics": {"digits": len(observation), "host": int(host)}}
        return Step((name, turn + 1), observation, reward=1 / 3, done=done, correct=name == "0", **outcome)


def play_all(names):
    problems = [Problem("1", name) for name in names]
    requests = [Request((3,), index, index, Sampling(40, (1,)), index) for index in range(len(names))]
    engine, environment = DigitEngine(), RandomEnvironment()
    return play(engine, environment, {}, requests, problems, tokenizer, max_failure_share=1.0, turn_rewards=40)


def catch_error(function):
    try:
        function()
    except Exception as error:
        return type(error).__name__, str(error)


responses, verdicts = play_all([str(name) for name in range(7)])
first_calls = list(played)
print(json.dumps({
    "played": first_calls,
    "tokens": [response.tokens.tolist() for response in responses],
    "masks": [response.mask.tolist() for response in responses],
    "finish": [response.finish for response in responses],
    "verdicts": {
        "rewards": verdicts.rewards.tolist(),
        "valid": verdicts.valid.tolist(),
        "failed": verdicts.failed.tolist(),
        "correct": np.nan_to_num(verdicts.correct, nan=-1).tolist(),
        "third": np.nan_to_num(verdicts.reward_parts["third"], nan=-1).tolist(),
        "metrics": {name: np.nan_to_num(values, nan=-1).tolist() for name, values in verdicts.metrics.items()},
        "turn_rewards": verdicts.turn_rewards.tolist(),
    },
    "error": catch_error(lambda: play_all(["0", "bad"])),
}))
'''


def test_each_episode_is_played_on_one_host(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    processes = run_on_two_hosts([str(program)])
    assert [process.returncode for process in processes] == [0, 0], [process.stdout[-2000:] for process in processes]
    one, two = (json.loads(process.stdout.splitlines()[-1]) for process in processes)
    calls = [*map(tuple, one["played"]), *map(tuple, two["played"])]
    turns = {"0": 4, "1": 4, "2": 4, "3": 0, "4": 2, "5": 4, "6": 4}
    expected = [("reset", name) for name in turns] + [
        (f"turn {turn}", name) for name, count in turns.items() for turn in range(count)
    ]
    assert sorted(calls) == sorted(expected), "each call must be made exactly once"
    assert {name for _, name in map(tuple, one["played"])} == {"0", "2", "4", "6"}
    for name in ("tokens", "masks", "finish", "verdicts"):
        assert one[name] == two[name]
    verdicts = one["verdicts"]
    assert [bool(failed) for failed in verdicts["failed"]] == [False] * 3 + [True, True] + [False] * 2
    assert verdicts["valid"] == [not failed for failed in verdicts["failed"]]
    assert verdicts["correct"][0] == 1
    assert one["finish"][5] == "turns"
    assert verdicts["metrics"]["host"] == [0, 4, 0, -1, 0, 4, 0]
    assert one["error"] == ["InputError", "Host 1 (of hosts 0 to 1) failed; see its output for the reason."]
    assert two["error"][0] == "InputError"
    assert "must return an rljax.rollout.Step; got 'no step'" in two["error"][1]
