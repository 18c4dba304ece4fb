"""`rljax train | preprocess | eval | sample | plot | export | algorithms | equations | errata`."""

import importlib.util
import inspect
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Literal

import tyro

import rljax
from rljax.data.recipe import Preprocess
from rljax.errors import InputError
from rljax.training.config import TrainConfig

DEFAULT_EXPERIMENT = "arithmetic_dapo"
INTERRUPTED = 130

PROGRAM = """Reinforcement learning for language models in JAX.

rljax train                          a small model learns arithmetic, from random weights, in minutes on a CPU
rljax train --model FOLDER_OR_HUB_ID --dataset FILE_OR_HUB_ID --algorithm grpo --reward exact
rljax preprocess INPUT OUTPUT        check a dataset, drop what is bad or repeated, measure the rest
rljax eval RUN                       how good is it on held-out problems
rljax sample RUN --prompt "3+4+5="   ask it something
rljax plot RUN [RUN ...]             its curves, or several runs in one picture
rljax export RUN FOLDER              a Hugging Face folder of its model
rljax algorithms                     what --algorithm takes, with options
rljax equations [WORDS ...]          every equation: formula, paper, function, test
rljax errata                         errors of documents about these algorithms, each with its counterexample computed

`rljax COMMAND --help` tells more about each."""


@dataclass(frozen=True)
class Train:
    """Train a language model with reinforcement learning.

    Without --model, --dataset or --experiment this runs experiments/arithmetic_dapo.py: a small transformer from random weights
    learns arithmetic with written-out steps. With --model or --dataset the same loop trains your model on your data.
    Every setting below can be changed; the values shown are the ones that this command would use.
    """

    config: tyro.conf.OmitArgPrefixes[TrainConfig]
    resume: Path | None = None
    """Continue the run in this folder; all settings come from its config.json."""
    experiment: str | None = None
    """Start from the settings of an experiment: its name in experiments/, or a Python file that defines CONFIG."""


@dataclass(frozen=True)
class Eval:
    """Answer problems greedily and say how many answers are right, with a 95 % confidence interval."""

    target: tyro.conf.Positional[str]
    """Folder of a run, Hugging Face folder, or hub id."""
    dataset: str | None = None
    """Problems to answer (file or hub id); by default the run's held-out ones."""
    reward: str | None = None
    """What judges, in place of the run's reward."""
    tokenizer: str | None = None
    """For a model folder without one: 'bytes', 'characters', a folder or a hub id."""
    checkpoint: Literal["best", "last"] = "best"
    """Which checkpoint of the run."""
    limit: int | None = None
    """Answer only the first so many problems."""
    max_response_tokens: int | None = None
    """Budget of a response; by default the run's."""
    out: Path | None = None
    """Write prompts, completions, answers and rewards here, one JSON object a line."""


@dataclass(frozen=True)
class Sample:
    """Continue prompts with a trained model."""

    target: tyro.conf.Positional[str]
    """Folder of a run, Hugging Face folder, or hub id."""
    prompt: tuple[str, ...]
    """One or more prompts."""
    count: int = 1
    """Continuations of each."""
    temperature: float = 0.0
    """0 takes the likeliest token each time."""
    top_k: int | None = None
    """Draw from the k likeliest tokens only."""
    top_p: float | None = None
    """Draw from the smallest set of tokens with this share of probability."""
    max_response_tokens: int | None = None
    """Budget of a continuation; by default the run's."""
    tokenizer: str | None = None
    """For a model folder without one: 'bytes', 'characters', a folder or a hub id."""
    checkpoint: Literal["best", "last"] = "best"
    """Which checkpoint of the run."""
    seed: int = 0
    """Of the draws."""


@dataclass(frozen=True)
class Plot:
    """Draw the curves of a run again, or lay the held-out accuracy of several runs over each other."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Folders of runs."""
    out: Path | None = None
    """PNG to write; by default curves.png in the run's folder, or overlay.png here for several runs."""


@dataclass(frozen=True)
class Export:
    """Write a run's model as a Hugging Face folder (config.json, model.safetensors)."""

    target: tyro.conf.Positional[str]
    """Folder of a run."""
    folder: tyro.conf.Positional[Path]
    """Where to write; must not exist yet."""
    checkpoint: Literal["best", "last"] = "best"
    """Which checkpoint of the run."""


@dataclass(frozen=True)
class Algorithms:
    """List the algorithms and their options."""

    names: tyro.conf.Positional[tuple[str, ...]] = field(default=())
    """Only these."""


@dataclass(frozen=True)
class Equations:
    """List every equation with its source, or print the formulas that match."""

    query: tyro.conf.Positional[tuple[str, ...]] = ()
    """Words that name, formula or source must hold; a function's or an algorithm's name prints just it."""


@dataclass(frozen=True)
class Errata:
    """Recompute the counterexample to every known error of the documents about these algorithms."""


COMMANDS = {"train": Train, "eval": Eval, "sample": Sample, "plot": Plot, "export": Export}
COMMANDS |= {"preprocess": Preprocess, "algorithms": Algorithms, "equations": Equations, "errata": Errata}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code: 0, 2 for something the person can mend, 130 after Ctrl-C."""
    name, *rest = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if name in ("-h", "--help"):
        print(PROGRAM)
        return 0
    if name == "--version":
        print(rljax.__version__)
        return 0
    try:
        if name not in COMMANDS:
            raise InputError(f"There is no command {name!r}; choose one of {', '.join(COMMANDS)}, or --help.")
        default = Train(starting_config(rest)) if name == "train" else tyro.MISSING_NONPROP
        command = tyro.cli(COMMANDS[name], prog=f"rljax {name}", args=rest, default=default)
        return RUN[type(command)](command)
    except InputError as error:
        print(f"rljax: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("rljax: interrupted.", file=sys.stderr)
        return INTERRUPTED


def value_of(option: str, arguments: Sequence[str]) -> str | None:
    """What follows `--option`, or stands in `--option=value`."""
    for index, argument in enumerate(arguments):
        if argument == option and index + 1 < len(arguments):
            return arguments[index + 1]
        if argument.startswith(f"{option}="):
            return argument.partition("=")[2]
    return None


def starting_config(arguments: Sequence[str]) -> TrainConfig:
    """Settings that the flags of `train` are applied to: an experiment's, or the general ones for a person's own model or data."""
    experiment = value_of("--experiment", arguments)
    own = any(value_of(option, arguments) is not None for option in ("--model", "--dataset"))
    if experiment is None and own:
        return TrainConfig()
    config = load_experiment(experiment or DEFAULT_EXPERIMENT)
    algorithm = value_of("--algorithm", arguments)
    if algorithm in (None, config.algorithm):
        return config
    return replace(config, algorithm_options=shared_options(config.algorithm_options, algorithm))


def shared_options(options: dict[str, int | float], algorithm: str) -> dict[str, int | float]:
    """Those of an experiment's options that another algorithm has too."""
    from rljax.training.setup import option_names  # noqa: PLC0415

    return {name: value for name, value in options.items() if name in option_names(algorithm)}


def load_experiment(name: str) -> TrainConfig:
    """Read CONFIG from an experiment, by name or by file.

    Raises:
        InputError: there is no such file, or it defines no CONFIG.
    """
    package = Path(__file__).resolve().parent
    folders = (package / "experiments", package.parent / "experiments")  # in a wheel, in a checkout
    file = Path(name)
    if file.suffix != ".py":
        file = next((folder / f"{name}.py" for folder in folders if (folder / f"{name}.py").is_file()), file)
    if not file.is_file():
        known = sorted({found.stem for folder in folders for found in folder.glob("*.py")})
        raise InputError(
            f"There is no experiment {name!r}; give a Python file that defines CONFIG, or one of {', '.join(known)}."
        )
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    config = vars(module).get("CONFIG")
    if not isinstance(config, TrainConfig):
        raise InputError(f"The experiment {str(file)!r} does not define CONFIG as an rljax.TrainConfig.")
    return config


def run_train(command: Train) -> int:
    """Train, or go on with a run."""
    from rljax.training.interrupt import Interrupted  # noqa: PLC0415  --help need not wait for JAX
    from rljax.training.loop import train  # noqa: PLC0415

    try:
        if command.resume is not None:
            refuse_settings_on_resume(command)
            train(resume=command.resume)
        else:
            train(command.config)
    except Interrupted:
        return INTERRUPTED
    return 0


def refuse_settings_on_resume(command: Train) -> None:
    """A resumed run takes its settings from its folder; any other on the command line would be ignored, so it is refused."""
    default = load_experiment(DEFAULT_EXPERIMENT)
    changed = [
        item.name for item in fields(TrainConfig) if getattr(command.config, item.name) != getattr(default, item.name)
    ]
    if changed or command.experiment is not None:
        raise InputError(
            f"--resume continues the run with the settings in its config.json, so {', '.join(changed) or 'experiment'} cannot be "
            "given too; leave it out, or start a new run."
        )


def run_preprocess(command: Preprocess) -> int:
    """Write a dataset that is ready to train on; print what was left out."""
    from rich.console import Console  # noqa: PLC0415

    from rljax.data.prepared_folder import preprocess, report_table  # noqa: PLC0415
    from rljax.rewards import resolve  # noqa: PLC0415
    from rljax.rewards.protocol import score  # noqa: PLC0415

    reward = resolve("exact" if command.reward is None else command.reward)
    prepared = preprocess(command, partial(score, reward, max_failure_share=0.0))
    Console().print(report_table(prepared.report))
    print(f"Dataset: {command.output}")
    return 0


def run_eval(command: Eval) -> int:
    """Print accuracy with its interval; write the answers if asked."""
    from rljax.data.dataset import load_problems  # noqa: PLC0415
    from rljax.training.evaluation import evaluate, write_answers  # noqa: PLC0415
    from rljax.training.policy import open_policy  # noqa: PLC0415

    if command.limit is not None and command.limit < 1:
        raise InputError(f"--limit is {command.limit}; it must be at least 1.")
    if command.out is not None and command.out.exists():
        raise InputError(f"{str(command.out)!r} exists already; choose another file for --out.")
    setup, params = open_policy(
        command.target,
        which=command.checkpoint,
        reward=command.reward,
        tokenizer=command.tokenizer,
        problems=load_problems(command.dataset)[: command.limit] if command.dataset else None,
        max_response_tokens=command.max_response_tokens,
    )
    engine = setup.heldout if command.dataset or command.limit is None else setup.heldout.first(command.limit)
    evaluation = evaluate(engine, params)
    print(evaluation.summary())
    if command.out is not None:
        write_answers(command.out, engine.shown(evaluation.groups, evaluation.groups.count))
        print(f"Answers: {command.out}")
    return 0


def run_sample(command: Sample) -> int:
    """Print continuations."""
    import jax  # noqa: PLC0415

    from rljax.data.problem import Problem  # noqa: PLC0415
    from rljax.training.policy import open_policy  # noqa: PLC0415

    if command.count < 1:
        raise InputError(f"--count is {command.count}; it must be at least 1.")
    setup, params = open_policy(
        command.target,
        which=command.checkpoint,
        tokenizer=command.tokenizer,
        problems=[Problem(prompt, "") for prompt in command.prompt],
        max_response_tokens=command.max_response_tokens,
    )
    engine = setup.sampler(temperature=command.temperature, top_k=command.top_k, top_p=command.top_p)
    drawn = engine.draw(params, range(len(command.prompt)), command.count, jax.random.key(command.seed))
    prompts = [prompt for prompt in command.prompt for _ in range(command.count)]
    for prompt, tokens, mask in zip(prompts, drawn.tokens, drawn.mask, strict=True):
        print(f"{prompt}{engine.text(tokens, mask)}")
    return 0


def run_plot(command: Plot) -> int:
    """Draw one run's curves, or several runs in one picture."""
    from rljax.training.plots import overlay, plot_curves  # noqa: PLC0415
    from rljax.training.run_folder import RunFolder  # noqa: PLC0415

    folders = [RunFolder.open(path) for path in command.runs]
    if not folders:
        raise InputError("Name at least one run folder to plot.")
    if len(folders) == 1:
        (folder,) = folders
        out = command.out or folder.curves
        plot_curves(folder.metrics, out, title=str(folder.config["name"]))
    else:
        out = command.out or Path("overlay.png")
        overlay({folder.path.name: folder.metrics for folder in folders}, out, title="Held-out accuracy")
    print(f"Curves: {out}")
    return 0


def run_export(command: Export) -> int:
    """Write a Hugging Face folder."""
    from rljax.models.huggingface import save_pretrained  # noqa: PLC0415
    from rljax.training.policy import is_run, open_policy  # noqa: PLC0415

    if command.folder.exists():
        raise InputError(f"{str(command.folder)!r} exists already; choose a folder that does not.")
    if not is_run(command.target):
        raise InputError(
            f"{command.target!r} is not the folder of a run with checkpoints; give one that `rljax train` made."
        )
    setup, params = open_policy(command.target, which=command.checkpoint)
    tokenizer = setup.tokenizer
    save_pretrained(command.folder, setup.model.config, params, bos=tokenizer.bos_token_id, eos=tokenizer.eos_token_id)
    print(f"Model: {command.folder}")
    return 0


def run_algorithms(command: Algorithms) -> int:
    """Print each algorithm's first line, its options and the parts it can do without."""
    from rljax.algorithms import ABLATIONS, BY_NAME  # noqa: PLC0415
    from rljax.training.setup import option_names  # noqa: PLC0415

    for name in command.names or sorted(BY_NAME):
        options = " ".join(f"{option}={value}" for option, value in option_names(name).items())
        print(f"{name:<20}{inspect.getdoc(BY_NAME[name]).splitlines()[0]}\n{'':<20}{options}")
        if name in ABLATIONS:
            print(f"{'':<20}--without {' '.join(ABLATIONS[name])}")
    return 0


def run_equations(command: Equations) -> int:
    """Print the index, or the formulas asked for."""
    from rljax.book.equations import show  # noqa: PLC0415

    show(" ".join(command.query), sys.stdout)
    return 0


def run_errata(command: Errata) -> int:
    """Print every erratum with its evidence; exit with 1 when a claim was not refuted."""
    from rljax.book.errata import show  # noqa: PLC0415

    return 1 if show(sys.stdout) else 0


RUN = {
    Train: run_train,
    Preprocess: run_preprocess,
    Eval: run_eval,
    Sample: run_sample,
    Plot: run_plot,
    Export: run_export,
    Algorithms: run_algorithms,
    Equations: run_equations,
    Errata: run_errata,
}
