"""`rljax chat` and `rljax serve`: talk to a trained model in the terminal, or serve it over HTTP with OpenAI's interface."""

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from rljax.cli.restarting import note
from rljax.programs.answer_settings import CacheDtype, Quantization

END, RESET = "/exit", "/reset"
"""Inputs that end the conversation and that begin a new one."""


@dataclass(frozen=True)
class Chat:
    """Talk to a trained model, turn by turn, with its tokenizer's chat template.

    Each line of the input is one of your turns; the reply appears while it is sampled. `/reset` begins a new conversation; `/exit`
    or the end of the input (Ctrl-D) ends the program. Messages can be piped in, one per line.
    """

    target: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN_OR_MODEL")]
    """Folder of a run or of its checkpoint (RUN/checkpoints/last), Hugging Face folder, or hub id."""
    system: str | None = None
    """The system message; by default the template's own, if it has one."""
    temperature: float = 0.7
    """Sampling temperature; 0 always takes the most likely token."""
    top_k: int | None = None
    """Sample only from the k most likely tokens."""
    top_p: float | None = None
    """Sample only from the smallest set of most likely tokens whose total probability is at least this."""
    max_response_tokens: int = 512
    """Maximum number of tokens in a reply."""
    accept_changes: bool = False
    """Open a run even if its chat template or tokenizer has changed since the run was last started."""
    tokenizer: str | None = None
    """Tokenizer for a model folder without one: a folder or a hub id."""
    checkpoint: Literal["best", "last"] = "best"
    """Which checkpoint of the run to use."""
    quantize: Quantization = None
    """Answer with weights quantized to 8 bits (int8) or 4 bits (nf4)."""
    seed: int = 0
    """Random seed for sampling."""


def turns_of(lines: Iterable[str]) -> Iterator[str]:
    """Yield the user's turns: the lines that are not blank, up to `/exit`.

    Example:
        >>> list(turns_of(["hello\\n", "\\n", "/exit\\n", "more\\n"]))
        ['hello']
    """
    for line in lines:
        text = line.strip()
        if text == END:
            return
        if text:
            yield text


def typed_lines() -> Iterator[str]:
    """Yield the lines of stdin; if stdin is a terminal, print a prompt before each line."""
    while True:
        if sys.stdin.isatty():
            print("\n> ", end="", flush=True)
        line = sys.stdin.readline()
        if not line:
            return
        yield line


def run_chat(command: Chat) -> int:
    """Read turns and print replies until the input ends."""
    from rljax.cli.import_spinner import loading  # noqa: PLC0415  --help need not wait for JAX

    with loading(quiet=False):
        from rljax.data.problem import Problem  # noqa: PLC0415
        from rljax.programs.conversation import parts_for_chat, stream_reply  # noqa: PLC0415
        from rljax.programs.trained_policy import load  # noqa: PLC0415

    opened = load(
        command.target,
        which=command.checkpoint,
        tokenizer=command.tokenizer,
        problems=[Problem("", "")],
        max_response_tokens=command.max_response_tokens,
        chat=True,
        accept_changes=command.accept_changes,
        quantize=command.quantize,
    )
    parts_for_chat(opened)
    worker = opened.sampler(temperature=command.temperature, top_k=command.top_k, top_p=command.top_p)
    opened.print_unused_settings(temperature=command.temperature, top_k=command.top_k, top_p=command.top_p)
    start = [] if command.system is None else [{"role": "system", "content": command.system}]
    messages = list(start)
    for index, text in enumerate(turns_of(typed_lines())):
        if text == RESET:
            messages = list(start)
            continue
        messages.append({"role": "user", "content": text})
        pieces: list[str] = []
        for piece in stream_reply(opened, worker, messages, seed=command.seed + index):
            print(piece, end="", flush=True)
            pieces.append(piece)
        print(flush=True)
        messages.append({"role": "assistant", "content": "".join(pieces)})
    return 0


@dataclass(frozen=True)
class Serve:
    """Serve a trained model over HTTP, with OpenAI's interface.

    The paths are `/v1/chat/completions`, `/v1/completions`, `/v1/models`, `/health`, `/metrics` for Prometheus, and `POST /weights`
    to replace the weights. Concurrent requests are sampled in one batch, and every program is compiled when the server starts.
    After SIGTERM or Ctrl-C the server completes the responses in progress and then ends. The command needs the extra `serve`.
    """

    target: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN_OR_MODEL")]
    """Folder of a run or of its checkpoint (RUN/checkpoints/last), Hugging Face folder, or hub id."""
    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 listens on all addresses of this machine."""
    port: int = 8000
    """Port to listen on; 0 chooses a free port."""
    name: str | None = None
    """Name of the model in requests; by default the name of its folder."""
    api_key_file: Path | None = None
    """File with the API key that requests must send; by default, requests need no key."""
    rows: int = 32
    """Number of responses that are sampled at once; each needs memory for `--context` tokens."""
    context: int = 2048
    """Maximum number of tokens in a prompt and its response together."""
    max_response_tokens: int = 512
    """Maximum number of tokens in a response."""
    queue: int = 256
    """Maximum number of responses that wait to be sampled; further requests are answered with HTTP status 429."""
    max_body_bytes: int = 1 << 20
    """Maximum size of a request, in bytes."""
    checkpoint: Literal["best", "last"] = "best"
    """Which checkpoint of the run to use."""
    tokenizer: str | None = None
    """Tokenizer for a model folder without one: a folder or a hub id."""
    quantize: Quantization = None
    """Answer with weights quantized to 8 bits (int8) or 4 bits (nf4)."""
    cache_dtype: CacheDtype = None
    """Quantize cached keys and values to 8 bits (int8); by default as in the run."""
    paged_cache: float | None = None
    """Keep keys and values in pages that responses take as they grow, with memory for this fraction of --rows times --context
    tokens, such as 0.25. A response begins once enough pages are free for its prompt and its `max_tokens`. By default, each
    response has memory for --context tokens."""
    version: int = 0
    """Version of the initial weights; weights sent to `POST /weights` need a higher version."""
    log: Path | None = None
    """Folder for a log of answers and of the feedback sent to `POST /feedback`; `rljax adapt` reads this log."""
    best_of: int | None = None
    """Sample this many answers per prompt, and send the one with the highest score."""
    choose_by: str = "confidence"
    """Score for `--best-of`: confidence (mean log-probability), model:FOLDER (a reward model), or a reward that needs no reference
    answer."""
    majority: int | None = None
    """Sample this many answers per prompt, and send one that states the most frequent result."""
    filter_prompts: tuple[str, ...] = ()
    """Refuse prompts that fail one of these filters: constitution:FILE, model:FOLDER,least=SCORE or REWARD,least=SCORE."""
    filter_answers: tuple[str, ...] = ()
    """Withhold answers that fail one of these filters, written as in --filter-prompts."""
    drift: float | None = None
    """Warn if served answers at this temperature differ in length or log-probability from answers to held-out problems."""
    grace_seconds: float = 30.0
    """Time that responses in progress have to finish after SIGTERM, in seconds."""


def run_serve(command: Serve) -> int:
    """Serve until a signal arrives."""
    from rljax.cli.import_spinner import loading  # noqa: PLC0415  --help need not wait for JAX

    with loading(quiet=False):
        from rljax.errors import InputError  # noqa: PLC0415
        from rljax.programs.serving import ExtensionSettings, ServeSettings, serve  # noqa: PLC0415

    key = (
        None if command.api_key_file is None else command.api_key_file.read_text(encoding="utf-8", errors="replace").strip()
    )
    if key == "":
        raise InputError(f"the file {str(command.api_key_file)!r} is empty; write the API key into it.")
    shared = {name: getattr(command, name) for name in ServeSettings._fields if hasattr(command, name)}
    settings = ServeSettings(
        **shared,
        which=command.checkpoint,
        api_key=key,
        body_bytes=command.max_body_bytes,
        extensions=ExtensionSettings(*(getattr(command, name) for name in ExtensionSettings._fields)),
    )
    return serve(settings, lambda line: note(f"rljax: {line}"))
