"""Serve the policy of a run or a model folder over HTTP; see `rljax.serving`."""

import signal
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import jax

from rljax.data.problem import Problem
from rljax.errors import InputError
from rljax.models import Params
from rljax.programs.answer_settings import CacheDtype, Quantization
from rljax.programs.conversation import check_context
from rljax.programs.trained_policy import OpenPolicy, Which, find_run, load
from rljax.rollout.engine import DecodingEngine
from rljax.rollout.sampling import decode_weights
from rljax.serving.batching import Batcher
from rljax.serving.decoding_rows import RowDecoder, contiguous_rows, round_up_rows
from rljax.serving.protocol import Limits
from rljax.settings.checks import YEAR
from rljax.text import counted
from rljax.tracking.start_records import digest_of, text_inputs

if TYPE_CHECKING:
    from rljax.serving.app import ServerParts

KEEP_ALIVE_SECONDS = 75
"""Seconds that an idle connection stays open, which is longer than clients keep idle connections."""
LOOPBACK = ("127.0.0.1", "::1", "localhost")
CONFIDENCE = "confidence"
"""Name of the score that is an answer's mean log-probability."""


class ExtensionSettings(NamedTuple):
    """Options that choose or judge answers."""

    best_of: int | None = None
    """Number of samples per prompt; the one with the highest score is sent."""
    choose_by: str = CONFIDENCE
    """The score for `best_of`: `confidence`, `model:FOLDER`, or a reward that needs no reference answer."""
    majority: int | None = None
    """Number of samples per prompt; a sample with the most frequent result is sent."""
    filter_prompts: tuple[str, ...] = ()
    """Prompt filters, each `NAME,least=NUMBER`, with a NAME as in `choose_by`."""
    filter_answers: tuple[str, ...] = ()
    """Answer filters, in the same format."""
    drift: float | None = None
    """Temperature of the answers to held-out problems that served answers are compared with; None compares nothing."""


NO_EXTENSIONS = ExtensionSettings()


class ServeSettings(NamedTuple):
    """Settings of a server."""

    target: str
    """Run, checkpoint, model folder or hub id."""
    which: Which = "best"
    """Checkpoint of a run."""
    tokenizer: str | None = None
    """Tokenizer of a model folder without one."""
    name: str | None = None
    """Name of the model; None means the name of its folder."""
    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = 8000
    """Port to listen on; 0 chooses a free one."""
    api_key: str | None = None
    """Key that requests must carry."""
    rows: int = 32
    """Maximum number of responses that are sampled at once."""
    context: int = 2048
    """Maximum number of tokens in a prompt and its response together."""
    max_response_tokens: int = 512
    """Maximum number of tokens in a response."""
    queue: int = 256
    """Maximum number of responses that wait for a row."""
    body_bytes: int = 1 << 20
    """Maximum size of a request's body, in bytes."""
    version: int = 0
    """Version of the first weights."""
    quantize: Quantization = None
    """Type that the weights are quantized to, including weights loaded later."""
    cache_dtype: CacheDtype = None
    """Data type of the cached keys and values."""
    paged_cache: float | None = None
    """Memory of a paged cache, as a fraction of `rows` times `context` tokens; None means a contiguous cache."""
    log: Path | None = None
    """Folder for the log of answers and feedback."""
    extensions: ExtensionSettings = NO_EXTENSIONS
    """Options that choose or judge answers."""
    grace_seconds: float = 30.0
    """Seconds that responses in progress may take after SIGTERM."""


def check_settings(settings: ServeSettings) -> None:
    """Reject settings that cannot work, before the model is loaded.

    Raises:
        InputError: a limit is out of range, or the API key cannot be sent in a header.
    """
    if (
        settings.rows < 1
        or settings.queue < 1
        or not settings.context >= 2
        or not 1 <= settings.max_response_tokens < settings.context
    ):
        raise InputError(
            f"rows={settings.rows}, queue={settings.queue}, context={settings.context}, max_response_tokens="
            f"{settings.max_response_tokens} cannot be served: rows and queue must be positive, and a response must be shorter "
            "than the context."
        )
    if settings.body_bytes < 1:
        raise InputError(f"--max-body-bytes is {settings.body_bytes}; it must be at least 1.")
    if settings.version < 0:
        raise InputError(f"--version is {settings.version}; it must not be negative.")
    if not 0 <= settings.grace_seconds <= YEAR:
        raise InputError(f"--grace-seconds is {settings.grace_seconds}; it must be a number of seconds, not negative.")
    key = settings.api_key
    if key is not None and not (key.isascii() and key.isprintable()):
        raise InputError(
            "the API key contains a line break or another character that cannot be sent in a header; use ASCII letters, "
            "digits and signs."
        )


def open_policy(settings: ServeSettings, target: str) -> OpenPolicy:
    """Open a policy, for chats if its tokenizer has a chat template; load a run's held-out problems if `drift` needs them."""
    needs_problems = settings.extensions.drift is not None and find_run(target, settings.which)[0] is not None
    return load(
        target,
        which=settings.which,
        tokenizer=settings.tokenizer,
        problems=None if needs_problems else [Problem("", "", messages=({"role": "user", "content": ""},))],
        max_response_tokens=settings.max_response_tokens,
        quantize=settings.quantize,
        cache_dtype=settings.cache_dtype,
    )


def fingerprint(opened: OpenPolicy) -> str:
    """Compute a digest of a model's parameter shapes and tokenizer, which does not depend on the values of the weights."""
    leaves = jax.tree_util.tree_leaves_with_path(opened.params)
    shapes = [[jax.tree_util.keystr(path), list(leaf.shape), str(leaf.dtype)] for path, leaf in leaves]
    return digest_of([shapes, text_inputs(opened.tokenizer, chat=True)])


def decoder_of(opened: OpenPolicy, settings: ServeSettings) -> RowDecoder:
    """Make the decoder of the server's rows.

    Raises:
        InputError: the model cannot be decoded row by row, or has no room for the context.
    """
    engine = opened.worker.engine
    if not isinstance(engine, DecodingEngine) or engine.decoder.turns is None or jax.process_count() > 1:
        raise InputError("a server needs the built-in engine, in one process, and a model whose decoder has `turns`.")
    check_context(opened, settings.context)
    rows = round_up_rows(settings.rows, opened.mesh)
    if settings.paged_cache is None:
        functions = contiguous_rows(engine.decoder.turns, rows, settings.context)
    else:
        from rljax.serving.paged_rows import paged_rows  # noqa: PLC0415  most servers use no paged cache

        functions = paged_rows(engine.decoder, opened.mesh, rows, settings.context, settings.paged_cache)
    return RowDecoder(
        functions,
        decode_weights(engine.decoder, opened.params),
        opened.mesh,
        vocabulary=opened.policy.vocab_size,
        rows=rows,
        slots=settings.context,
        eos_ids=opened.worker.sampling.eos_ids,
    )


def load_weights(settings: ServeSettings, expected: str, folder: str) -> Params:
    """Load weights of the same model and tokenizer.

    Raises:
        InputError: the folder cannot be opened, or contains another model or tokenizer.
    """
    if not Path(folder).is_dir():
        raise InputError(f"the folder {folder[:200]!r} does not exist on the server's machine.")
    opened = open_policy(settings, folder)
    found = fingerprint(opened)
    if found != expected:
        raise InputError(
            f"the folder {folder[:200]!r} has another model or tokenizer: fingerprint {found}, not {expected}; pass weights of "
            "the served model."
        )
    engine = opened.worker.engine
    if not isinstance(engine, DecodingEngine):
        raise InputError(f"the folder {folder[:200]!r} has no model for the built-in engine.")
    return decode_weights(engine.decoder, opened.params)


def listen(host: str, port: int) -> socket.socket:
    """Listen on an address.

    Raises:
        InputError: the address is in use, or is not an address of this machine.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, port))
            listener.listen(2048)
        except BaseException:
            listener.close()
            raise
    except (OSError, OverflowError) as error:
        raise InputError(
            f"the server cannot listen on {_write_address(host, port)} ({error}); choose another --host or --port."
        ) from error
    return listener


def _write_address(host: str, port: int) -> str:
    return (
        f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    )  # with brackets, an IPv6 address can be copied into a URL


def make_server_parts(settings: ServeSettings, opened: OpenPolicy, report: Callable[[str], None]) -> "ServerParts":
    """Build everything that the routes need, and compile every program.

    Args:
        settings: settings of the server.
        opened: the policy.
        report: shows a line of text to the user.

    Raises:
        InputError: the model cannot be served.
    """
    from rljax.serving.answer_log import AnswerLog  # noqa: PLC0415
    from rljax.serving.app import ServerParts  # noqa: PLC0415  needs the extra `serve`

    opened.print_unused_settings(temperature=1.0, top_k=None, top_p=None)  # what requests use by default
    log = None if settings.log is None else AnswerLog(settings.log)
    decoder, expected = decoder_of(opened, settings), fingerprint(opened)
    name = settings.name or Path(settings.target).resolve().name
    limits = Limits(name, settings.context, settings.max_response_tokens, opened.policy.vocab_size, settings.queue)
    extensions = ()
    if settings.extensions != NO_EXTENSIONS:
        from rljax.programs.serving_extensions import make_extensions  # noqa: PLC0415  most servers have none

        extensions = make_extensions(settings.extensions, opened, decoder, limits, report)
    programs = decoder.warm()
    report(f"compiled {counted(programs, 'program')} for {counted(decoder.count, 'row')} of {settings.context} tokens")
    return ServerParts(
        batcher=Batcher(decoder, opened.tokenizer.decode, queue=settings.queue, version=settings.version),
        tokenizer=opened.tokenizer,
        limits=limits,
        fingerprint=expected,
        load_weights=partial(load_weights, settings._replace(extensions=NO_EXTENSIONS), expected),
        api_key=settings.api_key,
        allows_weights=settings.api_key is not None or settings.host in LOOPBACK,
        body_bytes=settings.body_bytes,
        log=log,
        extensions=extensions,
    )


def serve(settings: ServeSettings, report: Callable[[str], None]) -> int:
    """Serve until SIGTERM or Ctrl-C; responses in progress are completed.

    Args:
        settings: settings of the server.
        report: shows a line of text to the user.

    Returns:
        0 if all responses were completed, 1 otherwise.

    Raises:
        InputError: the packages of the extra `serve` are missing, the model cannot be served, or the port is in use.
    """
    try:
        import uvicorn  # noqa: PLC0415  part of the extra `serve`

        from rljax.serving.app import make_app  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise InputError(f"the package {error.name} is missing; type `pip install -e '.[serve]'`.") from error
    check_settings(settings)
    listener = listen(settings.host, settings.port)
    try:
        served = make_server_parts(settings, open_policy(settings, settings.target), report)
        config = uvicorn.Config(
            make_app(served),
            log_level="warning",
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=max(1, round(settings.grace_seconds)),
        )
        server = uvicorn.Server(config)

        def stop(*_: object) -> None:
            server.should_exit = True

        for signal_number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signal_number, stop)  # before uvicorn's own handlers, which raise the signal again at the end
        served.batcher.start()
        address = _write_address(*listener.getsockname()[:2])
        report(f"serving {served.limits.model!r} (fingerprint {served.fingerprint}) on http://{address}")
        server.run(sockets=[listener])
        is_complete = served.batcher.close(timeout=5.0)
    finally:
        listener.close()
    report("all responses were completed" if is_complete else "some responses were cut off")
    return 0 if is_complete else 1
