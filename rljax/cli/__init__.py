"""The commands of `rljax`. Each module defines a command's record, which Tyro fills from the command line, and its function.

The functions import JAX themselves, so that `--help` stays fast.
"""

import contextlib
import gc
import io
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from importlib import metadata
from operator import or_
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, TextIO

import tyro

from rljax.cli.ablate import Ablate, as_train, run_ablate
from rljax.cli.adapt import Adapt, run_adapt
from rljax.cli.algorithms import Algorithms, run_algorithms
from rljax.cli.average import Average, run_average
from rljax.cli.chat_and_serve import Chat, Serve, run_chat, run_serve
from rljax.cli.claims import Claims, run_claims
from rljax.cli.compare import Compare, run_compare
from rljax.cli.compilation_cache import keep_compiled_programs
from rljax.cli.config import Config, run_config
from rljax.cli.conform import Conform, run_conform
from rljax.cli.debug import Debug, run_debug
from rljax.cli.doctor import Doctor, run_doctor
from rljax.cli.equations import Equations, run_equations
from rljax.cli.errata import Errata, run_errata
from rljax.cli.evaluate import Eval, run_eval
from rljax.cli.exit_watchdog import start_exit_watchdog
from rljax.cli.explain import Explain, run_explain
from rljax.cli.flags import check_flags, check_own_flags, with_values
from rljax.cli.generate import Generate, run_generate
from rljax.cli.pairs import Pairs, run_pairs
from rljax.cli.plan import Plan, run_plan
from rljax.cli.plot import Plot, run_plot
from rljax.cli.preference import Preference, run_preference
from rljax.cli.preprocess import run_preprocess
from rljax.cli.recommend import Recommend, run_recommend
from rljax.cli.relocate import Relocate, run_relocate
from rljax.cli.reward_model import RewardModel, run_reward_model
from rljax.cli.run_settings import Settings, flags_in, start_from_flags, starting_config, value_of
from rljax.cli.runs_and_show import Runs, Show, run_runs, run_show
from rljax.cli.sample_and_export import Export, Sample, run_export, run_sample
from rljax.cli.search import SearchCommand, run_search
from rljax.cli.shell_completion import Completion
from rljax.cli.terminal_text import columns_of, fit_lines, rewrap_descriptions, wrap
from rljax.cli.train import (
    PRETRAIN_DEFAULTS,
    PRETRAIN_FLAGS,
    SFT_FLAGS,
    Pretrain,
    Sft,
    Train,
    run_pretrain,
    run_sft,
    run_train,
    sft_base_settings,
    train_arguments,
)
from rljax.cli.train_help import pretrain_help, sft_help, short_help
from rljax.cli.tune import Tune, run_tune
from rljax.cli.version import check_jax, version_text
from rljax.data.plain_text import TEXT
from rljax.data.preprocess_options import Preprocess
from rljax.errors import InputError
from rljax.files import causes, check_local, limit_reached, no_room
from rljax.lazy import lazy_names
from rljax.machine import raise_open_file_limit
from rljax.preference.config import PreferenceConfig, RewardModelConfig
from rljax.programs.base_settings import DEFAULT_EXPERIMENT, Start, check_complete
from rljax.text import did_you_mean, one_line, one_paragraph
from rljax.training.interrupt import INTERRUPTED, Interrupted

PROGRAM = """Reinforcement learning for language models in JAX.

rljax train                       teach a small model arithmetic, in minutes
rljax train --smoke               test this machine, in about a minute
rljax train --model FOLDER_OR_HUB_ID --dataset FILE_OR_HUB_ID --reward exact
rljax sft --dataset FILE_OR_HUB_ID  fine-tune on demonstrations (SFT)
rljax pretrain FILES --steps 500  learn plain text: next-token training
rljax config [FLAGS]              print the settings in use, as a --config file
rljax plan [FLAGS]                memory and compute that a run would need
rljax tune --try NAME=VALUE,VALUE find the best of several settings
rljax ablate dapo --seeds 5       what each part of an algorithm contributes
rljax eval RUN                    accuracy: greedy, avg@k, pass@k, maj@k
rljax sample RUN --prompt "3+4="  continue a prompt
rljax chat RUN_OR_MODEL           talk to a model in the terminal
rljax serve RUN_OR_MODEL          an HTTP server with OpenAI's interface
rljax search RUN                  beam or tree search over reasoning steps
rljax generate RUN OUT.jsonl      training data written by the model
rljax runs [FOLDER]               the runs in a folder: progress and accuracy
rljax show RUN                    a run's rollouts, token by token (HTML)
rljax doctor RUN                  what is wrong with a run, as a report (HTML)
rljax compare RUN RUN [RUN ...]   settings, accuracy and answers side by side
rljax debug RUN                   the first non-finite term, row and token
rljax plot RUN [RUN ...]          plot the curves of one or several runs
rljax explain [METRIC ...]        what a run's metric means, and what to do
rljax export RUN FOLDER           write the model as a Hugging Face folder
rljax relocate RUN OLD NEW        record that a run's data or model moved
rljax average RUN RUN FOLDER      average runs that started from one model
rljax adapt RUN --feedback FILE   learn from feedback on a served model

rljax preprocess INPUT OUTPUT     check a dataset; drop bad or repeated rows
rljax pairs RUN FILE              preference pairs from a run's responses
rljax reward-model PAIRS          train a reward model on preference pairs
rljax preference PAIRS --loss dpo train on preference pairs: DPO and others

rljax recommend [FACTS]           an algorithm for a task, with reasons
rljax algorithms [NAME ...]       the algorithms: options, slots, equations
rljax equations [WORDS ...]       search the equations: formula, paper, test
rljax claims [NAME ...]           claims from papers, each tested
rljax conform FILE.py:FUNCTION    your own loss or GAE, compared with a paper's
rljax errata                      errors in papers and libraries, with examples

rljax completion SHELL            tab completion for bash, zsh or tcsh
rljax --version                   versions and devices, for a bug report

`rljax COMMAND --help` explains a command."""

LONGEST_QUOTE = 200
"""Maximum length of a file name or an error of JAX that a message quotes, in characters."""
CRASHED = 1
"""Exit code for a bug in rljax."""
PIPE_CLOSED = 141
"""Exit code if the program that reads the output closes the pipe: 128 + 13, the code that SIGPIPE causes."""
COLLECTION_THRESHOLD = 50_000
"""Number of new objects after which Python's garbage collector runs. Tracing makes many objects but little garbage.
With Python's default threshold of 700, garbage collection takes a tenth of the time until a run's first step."""


def run_completion(command: Completion) -> int:
    """Print the completion script."""
    tyro.cli(_union({}), prog="rljax", args=["--tyro-print-completion", command.shell])
    return 0


COMMANDS: MappingProxyType[str, tuple[type, Callable[..., int]]] = MappingProxyType(
    {
        "train": (Train, run_train),
        "sft": (Sft, run_sft),
        "pretrain": (Pretrain, run_pretrain),
        "config": (Config, run_config),
        "eval": (Eval, run_eval),
        "sample": (Sample, run_sample),
        "chat": (Chat, run_chat),
        "serve": (Serve, run_serve),
        "search": (SearchCommand, run_search),
        "generate": (Generate, run_generate),
        "runs": (Runs, run_runs),
        "show": (Show, run_show),
        "doctor": (Doctor, run_doctor),
        "compare": (Compare, run_compare),
        "debug": (Debug, run_debug),
        "plot": (Plot, run_plot),
        "explain": (Explain, run_explain),
        "export": (Export, run_export),
        "relocate": (Relocate, run_relocate),
        "average": (Average, run_average),
        "adapt": (Adapt, run_adapt),
        "plan": (Plan, run_plan),
        "tune": (Tune, run_tune),
        "ablate": (Ablate, run_ablate),
        "pairs": (Pairs, run_pairs),
        "preprocess": (Preprocess, run_preprocess),
        "reward-model": (RewardModel, run_reward_model),
        "preference": (Preference, run_preference),
        "algorithms": (Algorithms, run_algorithms),
        "equations": (Equations, run_equations),
        "claims": (Claims, run_claims),
        "recommend": (Recommend, run_recommend),
        "conform": (Conform, run_conform),
        "errata": (Errata, run_errata),
        "completion": (Completion, run_completion),
    }
)
"""Name of a command -> the record that Tyro parses, and the function that runs the command.

The function takes the parsed record. If the record is a subclass of `Settings`, the function also takes the `Start` whose settings
the flags override, and the command's arguments.
"""

PAIR_SETTINGS: Mapping[type, type] = MappingProxyType({Preference: PreferenceConfig, RewardModel: RewardModelConfig})
"""Record of a command that trains on pairs -> the class of its settings, which the flags of a resumed run override."""

__all__ = ["COMMANDS", "DEFAULT_EXPERIMENT", "main", "parse", "starting_config"]

__getattr__, __dir__ = lazy_names(__name__)


def _union(defaults: dict[str, Any]) -> Any:
    """Join all commands into one type for Tyro; `defaults` maps the names of some commands to their default records."""
    commands: list[Any] = [
        Annotated[record, tyro.conf.subcommand(name, prefix_name=False, default=defaults.get(name, tyro.MISSING_NONPROP))]
        for name, (record, _) in COMMANDS.items()
    ]
    return reduce(or_, commands)


def parse(arguments: Sequence[str], start: Start | None = None) -> Any:
    """Parse a command line into its command's record, as a Tyro subcommand.

    Args:
        arguments: name of the command, then its arguments.
        start: settings that the flags override; None finds them from the arguments.

    Raises:
        InputError: the command cannot start from these settings, or a flag does not exist.
        SystemExit: raised by Tyro for `--help` and for arguments that it cannot parse.
    """
    record, _ = COMMANDS[arguments[0]]
    defaults: dict[str, Any] = {}
    if issubclass(record, Sft):
        arguments = [arguments[0], *train_arguments(arguments[0], arguments[1:])]
    if issubclass(record, Settings):
        start = _starting_settings(arguments) if start is None else start
        check_flags(arguments, record, start.config)
        defaults[arguments[0]] = record(start.config)
    else:
        check_own_flags(arguments[0], arguments[1:], record)
        if record in PAIR_SETTINGS and (resume := value_of("--resume", arguments)) is not None:
            from rljax.programs.pair_training import read_saved_settings  # noqa: PLC0415  it imports JAX

            defaults[arguments[0]] = record(read_saved_settings(PAIR_SETTINGS[record], resume)[0], resume)
    words = ["--help" if word == "--help-all" else word for word in with_values(arguments, record)]
    if not {"-h", "--help"} & set(words):
        command = _parse_words(words, defaults)
        for name, value in vars(command).items():
            for path in value if isinstance(value, tuple) else (value,):
                if isinstance(path, Path):
                    check_local(path, name)
        return command
    printed = _TerminalBuffer(sys.__stdout__)
    try:
        with contextlib.redirect_stdout(printed):
            return tyro.cli(_union(defaults), prog="rljax", args=words)
    finally:
        columns = columns_of(sys.stdout)
        print(fit_lines(rewrap_descriptions(_plain_types(printed.getvalue()), columns), columns), end="")


def _parse_words(words: Sequence[str], defaults: dict[str, Any]) -> Any:
    """Parse a command line with Tyro, but raise the errors of a record; Tyro would print them in a box with internal names."""
    box = _TerminalBuffer(sys.stderr)
    try:
        with contextlib.redirect_stderr(box):
            return tyro.cli(_union(defaults), prog="rljax", args=words)
    except SystemExit as error:
        if (refusal := _refusal(error)) is not None:
            raise refusal from None
        print(box.getvalue(), file=sys.stderr, end="")
        raise


def _starting_settings(arguments: Sequence[str]) -> Start:
    """Find the settings that a command's flags override."""
    command, *words = arguments
    if command == "ablate":
        words = as_train(words)
    if command == "pretrain":
        return sft_base_settings(words, PRETRAIN_DEFAULTS)
    return sft_base_settings(words) if command == "sft" else start_from_flags(words)


def _format_error(text: str, stream: TextIO) -> str:
    """Format an error message: wrapped for a terminal, but on a single line for files and pipes, where programs search it."""
    return wrap(text, columns_of(stream), indent="rljax: ", hang=" " * 4) if stream.isatty() else f"rljax: {text}"


def _plain_types(text: str) -> str:
    """Remove Tyro's `{None}|`, because the default already shows that a setting may be None; keep the columns aligned."""
    return re.sub(r"\{None\}\|(\S+)( *)", lambda found: found[1] + found[2] + " " * 7 * bool(found[2]), text)


class _TerminalBuffer(io.StringIO):
    """A buffer that reports that it is a terminal if `stream` is one, so that Tyro writes in color."""

    def __init__(self, stream: TextIO | None) -> None:
        super().__init__()
        self._is_terminal = stream is not None and stream.isatty()

    def isatty(self) -> bool:
        return self._is_terminal


def run(arguments: list[str]) -> int:
    """Parse and run one command, and return its exit code."""
    name = arguments[0]
    if name not in COMMANDS:
        raise InputError(
            f"There is no command {name!r}{did_you_mean(name, COMMANDS)} The commands are {', '.join(COMMANDS)}."
        )
    record, function = COMMANDS[name]
    if not issubclass(record, Settings):
        return function(parse(arguments))
    arguments = [name, *train_arguments(name, arguments[1:])] if issubclass(record, Sft) else arguments
    helps = {"sft": (sft_help, SFT_FLAGS), "pretrain": (pretrain_help, PRETRAIN_FLAGS)}
    wants_help = name in helps and bool({"-h", "--help", "--help-all"} & set(arguments))
    # The help of `pretrain` shows the settings for plain text even if the command line names no file.
    start = _starting_settings([*arguments, *(["--dataset", TEXT] if wants_help and name == "pretrain" else [])])
    if name == "train" and {"-h", "--help"} & set(arguments):
        print(short_help(start.config))
        return 0
    if wants_help:
        render_help, flags = helps[name]
        print(render_help(start.config, flags))
        return 0
    if start.experiment is not None and name not in ("config", "plan"):  # the commands that train
        partial = check_complete(start.experiment, [flag[2:] for flag in flags_in(arguments[1:])])
        start = start if partial is None else start._replace(notes=(*start.notes, partial))
    return function(parse(arguments, start), start, arguments[1:])


def _refusal(error: BaseException) -> InputError | None:
    """Return the first `InputError` among an error and its causes."""
    return next((cause for cause in causes(error) if isinstance(cause, InputError)), None)


def explain_error(error: Exception) -> str | None:
    """Return what the user should correct after this error; None if the error is a bug in rljax."""
    # An error raised while closing the run's files must not hide why the run ended.
    if (refusal := _refusal(error)) is not None:
        return str(refusal)
    if no_room(error) is not None:
        return f"nothing can be written ({one_line(error)}); free space on that disk, or choose another."
    if (limit := limit_reached(error)) is not None:
        return f"{limit}."
    if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error):
        advice = "Use a smaller model, fewer or shorter responses, or a smaller --microbatch-rows."
        return f"there is not enough memory ({one_line(error)[:LONGEST_QUOTE]}). {advice}"
    if isinstance(error, OSError) and error.filename is not None:
        return f"the file {str(error.filename)[:LONGEST_QUOTE]!r} cannot be used: {error.strerror}."
    return None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    The code is 0 for success; 1 if an example of `errata` fails, if a run that `plan` examines does not fit, or if `conform` finds
    a difference; 2 for invalid input; 75 if another host or the sampling server was lost; 130 after Ctrl-C; and 141 if the
    program that reads the output has closed the pipe. If `arguments` is None, the command line of this process is used, and the
    process ends soon after the command even if the user's code has left a thread running.
    """
    words = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if arguments is not None:
        return _run_main(words)
    gc.set_threshold(COLLECTION_THRESHOLD)
    if sys.stdout is None or sys.stderr is None:  # a stream that was closed before the start
        nowhere = Path(os.devnull).open("w")  # noqa: SIM115  it stays open until the end
        sys.stdout, sys.stderr = sys.stdout or nowhere, sys.stderr or nowhere
    if isinstance(sys.stdout, io.TextIOWrapper):  # a terminal or a pipe that is not UTF-8 gets escapes, as on stderr
        sys.stdout.reconfigure(errors="backslashreplace")
    code = CRASHED
    try:
        code = _run_main(words)
    finally:
        start_exit_watchdog(code, is_multi_host="--coordinator" in set(flags_in(words)))
    return code


def _run_main(words: list[str]) -> int:
    try:
        if words[0] in ("-h", "--help", "--version"):
            print(version_text() if words[0] == "--version" else PROGRAM)
            return 0
        check_jax(metadata.version("jax"))
        raise_open_file_limit()
        keep_compiled_programs(os.environ)
        code = run(words)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # `rljax equations | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the rest of the buffer cannot be written any more
        return PIPE_CLOSED
    except (OSError, ValueError, MemoryError, RuntimeError) as error:
        text = explain_error(error)
        if text is None:
            raise
        if words[0] in COMMANDS:
            from rljax.cli.flag_names import setting_names, write_flags  # noqa: PLC0415  needed only after an error

            short = {"sft": SFT_FLAGS, "pretrain": PRETRAIN_FLAGS}.get(words[0], {})
            text = write_flags(text, setting_names(COMMANDS[words[0]][0]), {long: flag for flag, long in short.items()})
        print(_format_error(one_paragraph(text), sys.stderr), file=sys.stderr)
        return error.exit_code if isinstance(error, InputError) else InputError.exit_code
    except Interrupted:
        return INTERRUPTED
    except KeyboardInterrupt:
        is_run = words[0] in COMMANDS and issubclass(COMMANDS[words[0]][0], Train)
        hint = (
            f" `rljax {words[0]} --resume RUN` continues from the run's last checkpoint, if there is one." if is_run else ""
        )
        print(f"rljax: interrupted.{hint}", file=sys.stderr)
        return INTERRUPTED
