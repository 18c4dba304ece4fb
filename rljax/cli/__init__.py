"""Floor 6: the commands. Each module holds the record that Tyro parses for a command, and the function that runs the command.

Heavy imports are inside these functions, so that `--help` stays fast.
"""

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

rljax train                          teach a small model arithmetic, from random weights, in minutes on a CPU
rljax train --model FOLDER_OR_HUB_ID --dataset FILE_OR_HUB_ID --algorithm grpo --reward exact
rljax train --algorithm on_policy_distillation --teacher FOLDER_OR_HUB_ID
rljax preprocess INPUT OUTPUT        check a dataset, drop bad and repeated rows, measure the rest
rljax reward-model PAIRS             train a reward model on preference pairs
rljax preference PAIRS --loss dpo     train a language model on preference pairs directly
rljax eval RUN                       measure accuracy on held-out problems: greedy, avg@k, pass@k, maj@k
rljax sample RUN --prompt "3+4+5="   continue a prompt
rljax plot RUN [RUN ...]             draw the curves of a run, or several runs in one picture
rljax export RUN FOLDER              write the run's model as a Hugging Face folder
rljax algorithms [NAME ...]          list the algorithms and their options, or show one slot by slot
rljax equations [WORDS ...]          list the equations, or search them: formula, paper, function, test, BibTeX
rljax errata                         list errors in documents about these algorithms, and compute a counterexample to each

`rljax COMMAND --help` explains a command."""

UNREAD = 141
"""Exit code when the reader of the pipe has gone, as after SIGPIPE (128 + 13)."""

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
"""Name of a command -> the record that Tyro parses, and the function that runs the command."""

__all__ = ["COMMANDS", "DEFAULT_EXPERIMENT", "load_experiment", "main", "starting_config"]


def parse(arguments: Sequence[str]) -> Any:
    """Parse a command line into the record of its command, as a subcommand of Tyro.

    Raises:
        InputError: `train` cannot start from these settings.
        SystemExit: raised by Tyro for `--help` and for arguments that it cannot parse.
    """
    defaults = {"train": Train(starting_config(arguments[1:]))} if arguments[0] == "train" else {}
    commands: list[Any] = [
        Annotated[record, tyro.conf.subcommand(name, prefix_name=False, default=defaults.get(name, tyro.MISSING_NONPROP))]
        for name, (record, _) in COMMANDS.items()
    ]
    return tyro.cli(reduce(or_, commands), prog="rljax", args=list(arguments))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    The code is 0 for success, 1 if `errata` finds a claim that is not refuted, 2 for an input to correct, 130 after Ctrl-C, and
    141 if the reader of the pipe has gone.
    """
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
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the rest of the buffer cannot be written any more
        return UNREAD
