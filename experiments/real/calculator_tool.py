"""Train SmolLM2-135M-Instruct to call a calculator only for sums that it cannot do itself.

Half of the questions are sums of two four-digit numbers, the other half sums of two one-digit numbers. The model may answer, or
write `calc(A + B)` once and get the result as the next message. The reward is 1 for the right number and 0 for any other, minus
0.7 for a call, so a call pays only if the model would be wrong more than 70 % of the time without it. Three worked examples in
each prompt, two of them with a call, show both forms; there is no supervised training. At first the model calls as often for
small sums as for large ones. The call has this short form instead of the JSON of `rljax.agents.Calculator`, because the time of
a step on two cores grows with the number of tokens.

One thing did not work, in single runs with seeds that are not used below: examples that answer with the bare number. Without a
call, the model was then right on only 10 to 30 % of its sampled small sums, so always calling was the better policy, and the
model learned to do so at every price that was tried, from 0.2 to 0.8. With examples that answer in the form `2 + 3 = 5`, it is
right on 55 to 88 % of the small sums, depending on their size.

Command (`--model` is a hub id or a local folder of the model). Each finished run is written as a row, so the command can be
stopped and repeated:

    python experiments/real/calculator_tool.py --model HuggingFaceTB/SmolLM2-135M-Instruct

About nine minutes per seed on two idle CPU cores. It writes OUT.json, OUT.md and OUT.png (`--out`): greedy accuracy on 64 held-out
questions over RL steps, entropy and length of the sampled episodes, and, before and after RL, the fractions of large and of small
sums with a right answer and with a call.
"""

import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tyro

import rljax

sys.path.append(str(Path(__file__).resolve().parents[1]))  # experiments/, which contains lab and real
from real.curves import HUB, Arguments, Experiment, run_experiment, write_jsonl

COST = 0.7
"""Price of a call, subtracted from the reward."""
LARGEST_SMALL_SUM = 18
CALL = re.compile(r"calc\((\d{1,9}) \+ (\d{1,9})\)")
EXAMPLES = (
    {"role": "system", "content": "Add. You may write calc(A + B)."},
    {"role": "user", "content": "4120 + 3391 ="},
    {"role": "assistant", "content": "calc(4120 + 3391)"},
    {"role": "user", "content": "= 7511"},
    {"role": "assistant", "content": "7511"},
    {"role": "user", "content": "2 + 3 ="},
    {"role": "assistant", "content": "2 + 3 = 5"},
    {"role": "user", "content": "7 + 6 ="},
    {"role": "assistant", "content": "calc(7 + 6)"},
    {"role": "user", "content": "= 13"},
    {"role": "assistant", "content": "13"},
)
"""Messages at the start of every prompt."""
CONFIG = rljax.TrainConfig.flat(
    name="calculator_tool",
    model=HUB,
    chat=True,
    environment="real.calculator_tool:Sums",
    algorithm="grpo",
    algorithm_options={"beta": 0.0},
    heldout_problems=64,
    max_prompt_tokens=192,
    max_response_tokens=56,
    prompts=8,
    group_size=6,
    temperature=0.8,
    minibatches=1,
    microbatch_rows=8,
    steps=20,
    learning_rate=1e-5,
    learning_rate_warmup=2,
    eval_every=5,
    checkpoint_every=5,
    sample_every=0,
    models="last",
)


class Sums:
    """Environment that answers a calculator call with its sum, and judges the model's answer."""

    max_turns = 2

    def reset(self, problem: rljax.Problem) -> str:
        """Begin an episode, whose state is the right answer."""
        return problem.answer

    def step(self, answer: str, completion: str) -> rljax.Step:
        """If the turn has a call, return its result; otherwise judge the last number of the turn."""
        call = CALL.search(completion)
        if call is not None:
            result = [{"role": "user", "content": f"= {int(call[1]) + int(call[2])}"}]
            return rljax.Step(answer, result, reward=-COST, done=False, correct=False)
        is_right = is_last_number(completion, answer)
        return rljax.Step(answer, reward=float(is_right), correct=is_right)


def write_sums(folder: Path) -> tuple[Path, Path]:
    """Write disjoint training and held-out questions. Large and small sums alternate, and the small sums repeat."""
    generator = np.random.default_rng(0)
    large = [*dict.fromkeys(map(tuple, generator.integers(1000, 10_000, (544, 2)).tolist()))][:528]
    small = generator.permutation([(a, b) for a in range(1, 10) for b in range(1, 10)]).tolist()
    small_train, small_heldout = small[16:] * 8, small[:16] * 2
    pairs = [(large[32:], small_train), (large[:32], small_heldout)]
    train, heldout = [[question_of(*pair) for both in zip(*kinds, strict=False) for pair in both] for kinds in pairs]
    return write_jsonl(folder, train, heldout)


def question_of(one: int, other: int) -> Mapping[str, Any]:
    """Build a problem in chat form: the examples, then the question."""
    return {"prompt": [*EXAMPLES, {"role": "user", "content": f"{one} + {other} ="}], "answer": str(one + other)}


def is_small(answer: str) -> bool:
    """Return whether a sum counts as small, so that the model should not need the calculator."""
    return int(answer) <= LARGEST_SMALL_SUM


def has_call(completion: str) -> bool:
    """Return whether an episode contains a call that the calculator answers."""
    return CALL.search(completion) is not None


def is_last_number(completion: str, answer: str) -> bool:
    """Return whether the last number of an episode is the answer."""
    return re.findall(r"\d+", completion)[-1:] == [answer]


def measure_kind(test: Callable[[str, str], bool], *, small: bool) -> Callable[[str, str], bool | None]:
    """Restrict a measure to episodes with small or with large sums; the new measure returns None for all other episodes."""
    return lambda completion, answer: test(completion, answer) if is_small(answer) == small else None


CALCULATOR_TOOL = Experiment(
    name="calculator_tool",
    caption="greedy accuracy on 64 held-out sums, half of them of four-digit numbers",
    config=CONFIG,
    arms={"GRPO": {}},
    reward=None,
    write_problems=write_sums,
    measures={
        f"{what}, {kind} sums": measure_kind(test, small=kind == "small")
        for what, test in {
            "right": is_last_number,
            "with a call": lambda completion, answer: has_call(completion),
        }.items()
        for kind in ("large", "small")
    },
)

if __name__ == "__main__":
    run_experiment(CALCULATOR_TOOL, tyro.cli(Arguments, description=__doc__))
