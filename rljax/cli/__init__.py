"""Floor 6: the commands. Each module holds the records that Tyro reads and what runs them; heavy imports wait until then."""

import os
import sys
from collections.abc import Callable, Sequence
from functools import reduce
from operator import or_
from types import MappingProxyType
from typing import Annotated, Any

import tyro

import rljax
from rljax.cli.book import Algorithms, Equations, Errata, run_algorithms, run_equations, run_errata
from rljax.cli.evaluate import Eval, run_eval
from rljax.cli.model import Export, Sample, run_export, run_sample
from rljax.cli.plot import Plot, run_plot
from rljax.cli.preference import Preference, run_preference
from rljax.cli.preprocess import run_preprocess
from rljax.cli.reward_model import RewardModel, run_reward_model
from rljax.cli.train import DEFAULT_EXPERIMENT, INTERRUPTED, Train, load_experiment, run_train, starting_config
from rljax.data.recipe import Preprocess
from rljax.errors import InputError

PROGRAM = """Reinforcement learning for language models in JAX.

rljax train                          a small model learns arithmetic, from random weights, in minutes on a CPU
rljax train --model FOLDER_OR_HUB_ID --dataset FILE_OR_HUB_ID --algorithm grpo --reward exact
rljax preprocess INPUT OUTPUT        check a dataset, drop what is bad or repeated, measure the rest
rljax reward-model PAIRS             a reward model from preference pairs
rljax preference PAIRS --loss dpo --model FOLDER_OR_HUB_ID   a language model from preference pairs
rljax eval RUN                       how good is it on held-out problems: greedy, avg@k, pass@k, maj@k
rljax sample RUN --prompt "3+4+5="   ask it something
rljax plot RUN [RUN ...]             its curves, or several runs in one picture
rljax export RUN FOLDER              a Hugging Face folder of its model
rljax algorithms                     what --algorithm takes, with options
rljax equations [WORDS ...]          every equation: formula, paper, function, test
rljax errata                         errors of documents about these algorithms, each with its counterexample computed

`rljax COMMAND --help` explains each."""

UNREAD = 141

COMMANDS: MappingProxyType[str, tuple[type, Callable[[Any], int]]] = MappingProxyType(
    {
        "train": (Train, run_train),
        "preprocess": (Preprocess, run_preprocess),
        "reward-model": (RewardModel, run_reward_model),
        "preference": (Preference, run_preference),
        "eval": (Eval, run_eval),
        "sample": (Sample, run_sample),
        "plot": (Plot, run_plot),
        "export": (Export, run_export),
        "algorithms": (Algorithms, run_algorithms),
        "equations": (Equations, run_equations),
        "errata": (Errata, run_errata),
    }
)
"""Name of a command -> the record that Tyro reads, and what runs it."""

__all__ = ["COMMANDS", "DEFAULT_EXPERIMENT", "load_experiment", "main", "starting_config"]


def parse(arguments: Sequence[str]) -> Any:
    """Read a command line into the record of its command, through Tyro's subcommands.

    Raises:
        InputError: settings that `train` cannot start from.
        SystemExit: Tyro's, for `--help` and for what it cannot read.
    """
    defaults = {"train": Train(starting_config(arguments[1:]))} if arguments[0] == "train" else {}
    commands: list[Any] = [
        Annotated[record, tyro.conf.subcommand(name, prefix_name=False, default=defaults.get(name, tyro.MISSING_NONPROP))]
        for name, (record, _) in COMMANDS.items()
    ]
    return tyro.cli(reduce(or_, commands), prog="rljax", args=list(arguments))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code: 0, 2 for something to correct, 130 after Ctrl-C, 141 if the pipe's reader has left."""
    words = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if words[0] in ("-h", "--help"):
        print(PROGRAM)
        return 0
    if words[0] == "--version":
        print(rljax.__version__)
        return 0
    try:
        if words[0] not in COMMANDS:
            raise InputError(f"There is no command {words[0]!r}; choose one of {', '.join(COMMANDS)}, or --help.")
        code = COMMANDS[words[0]][1](parse(words))
        sys.stdout.flush()
        return code
    except InputError as error:
        print(f"rljax: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("rljax: interrupted.", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # `rljax equations | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is still in the buffer has nowhere to go
        return UNREAD
