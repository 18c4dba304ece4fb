"""Measure the sampling throughput with a tool that takes half a second, relative to the throughput without a tool.

In a round, all arms play the same episodes: a small untrained transformer writes turns of about 30 tokens, and a tool answers each
turn. Equal seeds must give equal tokens in all arms, which is checked. By default there are as many rows as episodes. With fewer
rows, the row of an episode that waits for its tool would be used by another episode, and contexts would have to be read again.
`waits` is the number of times that the engine samples before it waits for running tool steps, and `at_once` is the largest number
of tool steps that run at the same time. The order of the arms changes between rounds. Each arm is compared with the baseline of
the same round. The episodes of the first round, in which programs are compiled, are left out.

    python experiments/tool_throughput.py

It writes experiments/tool_throughput.json and .md.
"""

import os
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tyro

from lab.rows import write_page, write_rows
from rljax.data.problem import Problem
from rljax.data.tokenizer import load_tokenizer
from rljax.models import TransformerConfig, transformer_policy
from rljax.parallel import make_mesh
from rljax.rollout import DecodingEngine, Request, Response, Sampling, Step
from rljax.rollout.episodes import play

OUT = Path(__file__).with_suffix("")
TOKENIZER = load_tokenizer("characters:abcdefghijklmnopqrstuvwxyz0123")
SECONDS, TURNS, TOKENS = 0.5, 3, 400
"""Seconds per tool step, turns per episode, and largest number of tokens per episode."""
AT_ONCE = 256
ARMS = {
    "no tool": (0.0, 0, AT_ONCE),
    "waits = False": (SECONDS, 0, AT_ONCE),
    "waits = 2": (SECONDS, 2, AT_ONCE),
    "waits = 4": (SECONDS, 4, AT_ONCE),
    "waits = 6": (SECONDS, 6, AT_ONCE),
}
"""Name of an arm -> seconds per tool step, `waits`, `at_once`."""


@dataclass(frozen=True)
class Arguments:
    """Arguments of the experiment."""

    rounds: int = 3
    """Number of measured rounds."""
    slots: int = 512
    """Number of rows that are decoded at the same time."""
    episodes: int = 512
    """Number of episodes per round."""
    width: int = 256
    """Width of the model."""
    layers: int = 8
    """Number of layers of the model."""
    out: Path = OUT
    """Path of the output files, without the endings `.json` and `.md`."""


class SlowTool:
    """Environment that answers every turn after `seconds`, during which it does not use the processor."""

    max_turns = TURNS

    def __init__(self, seconds: float, waits: int, at_once: int):
        self.seconds, self.waits, self.at_once = seconds, waits, at_once

    def reset(self, problem: Problem) -> int:
        """Begin at turn 0."""
        return 0

    def step(self, state: int, completion: str) -> Step:
        """Wait `seconds`, and answer the turn."""
        time.sleep(self.seconds)
        return Step(state + 1, "abc", reward=float(len(completion)), done=state + 1 == TURNS)


def make_requests(episodes: int, round_index: int) -> tuple[list[Request], list[Problem]]:
    """Build the requests for the first turns of a round, each with its own prompt and seed, and a problem for each."""
    generator = np.random.default_rng(round_index)
    prompts = generator.integers(3, TOKENIZER.vocab_size, (episodes, 8))
    sampling = Sampling(TOKENS, (TOKENIZER.eos_token_id,))
    requests = [
        Request(tuple(row.tolist()), index, index, sampling, episodes * round_index + index)
        for index, row in enumerate(prompts)
    ]
    return requests, [Problem("", "")] * episodes


def tokens_of(responses: Sequence[Response]) -> list[list[int]]:
    """Return the token ids of the responses."""
    return [response.tokens.tolist() for response in responses]


def measure(arguments: Arguments) -> Iterator[list[dict[str, Any]]]:
    """Play all arms in each round; after each round, yield the rows of all rounds so far, one per arm and round."""
    width = arguments.width
    sizes = {"width": width, "layers": arguments.layers, "heads": 4, "kv_heads": 2, "head_dim": 32, "hidden": 4 * width}
    shape = TransformerConfig(TOKENIZER.vocab_size, **sizes)
    policy = transformer_policy(shape, eos=TOKENIZER.eos_token_id)
    assert policy.decoder is not None
    params = policy.init(jax.random.key(0))
    engine = DecodingEngine(policy.decoder, make_mesh(1, 1), 8, arguments.slots)
    rows: list[dict[str, Any]] = []
    names = list(ARMS)
    for index in range(arguments.rounds + 1):
        requests, problems = make_requests(arguments.episodes, index)
        expected = None
        for name in names[index % len(names) :] + names[: index % len(names)] if index else ["no tool", "waits = 4"]:
            before = time.monotonic()
            responses, _ = play(engine, SlowTool(*ARMS[name]), params, requests, problems, TOKENIZER, max_failure_share=0.0)
            seconds = time.monotonic() - before
            tokens = tokens_of(responses)
            expected = tokens if expected is None else expected
            sampled = sum(int(response.mask.sum()) for response in responses)
            turns = sum(response.turns for response in responses)
            rows.append(
                {
                    "arm": name,
                    "round": index,
                    "seconds": round(seconds, 2),
                    "tokens_per_second": round(sampled / seconds, 1),
                    "turns": turns,
                    "same_tokens": tokens == expected,
                    "load": round(os.getloadavg()[0], 1),
                }
            )
            print(rows[-1], flush=True)
        if index:
            yield [row for row in rows if row["round"] > 0]


def report_of(rows: Sequence[dict[str, Any]]) -> str:
    """Format the medians as a table in Markdown."""
    baseline = {row["round"]: row["tokens_per_second"] for row in rows if row["arm"] == "no tool"}
    lines = [
        "| tool | `waits` | `at_once` | tokens per second | share of no tool, median (least to most) |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, (seconds, waits, at_once) in ARMS.items():
        own = [row for row in rows if row["arm"] == name]
        shares = sorted(row["tokens_per_second"] / baseline[row["round"]] for row in own)
        speed = statistics.median(row["tokens_per_second"] for row in own)
        share = f"{statistics.median(shares):.0%} ({shares[0]:.0%} to {shares[-1]:.0%})"
        lines.append(f"| {f'{seconds:g} s' if seconds else 'none'} | {waits} | {at_once} | {speed:.0f} | {share} |")
    return "\n".join(lines) + "\n"


def write(arguments: Arguments, rows: Sequence[dict[str, Any]]) -> None:
    """Write the rows and the page."""
    file = arguments.out.with_suffix(".json")
    write_rows(file, rows)
    loads = [row["load"] for row in rows]
    same = "all" if all(row["same_tokens"] for row in rows) else "NOT all"
    caption = (
        f"tokens per second of {arguments.episodes} episodes of {TURNS} turns on {arguments.slots} rows, model of width "
        f"{arguments.width} with {arguments.layers} layers; {rows[-1]['round']} rounds, each compared with its own "
        f"baseline; load of the machine {min(loads):g} to {max(loads):g}; {same} arms sampled the same tokens."
    )
    write_page(file, "python experiments/tool_throughput.py", caption, report_of(rows))


def main(arguments: Arguments) -> None:
    """Measure, and write the rows and the page after each round."""
    for rows in measure(arguments):
        write(arguments, rows)


if __name__ == "__main__":
    main(tyro.cli(Arguments))
