"""`rljax serve`: a server that OpenAI's clients can talk to."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro


@dataclass(frozen=True)
class Serve:
    """Serve a trained model over HTTP, in the form of OpenAI's interface.

    `/v1/chat/completions`, `/v1/completions`, `/v1/models`, `/health`, `/metrics` for Prometheus, and `POST /weights` to replace
    the weights. Requests are sampled together; every program is compiled at the start. SIGTERM or Ctrl-C completes the running
    responses and ends the server. Needs the extra `serve`.
    """

    target: tyro.conf.Positional[str]
    """Folder of a run or of its checkpoint (RUN/checkpoints/last), Hugging Face folder, or hub id."""
    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 for all of this machine."""
    port: int = 8000
    """Port to listen on; 0 chooses a free one."""
    name: str | None = None
    """Name of the model in requests; by default the name of its folder."""
    api_key_file: Path | None = None
    """File with the key that requests must carry; by default they need none."""
    rows: int = 32
    """Responses that are sampled at once; each needs memory for `--context` tokens."""
    context: int = 2048
    """Maximum number of tokens of a prompt and its response."""
    max_response_tokens: int = 512
    """Maximum number of tokens of a response."""
    queue: int = 256
    """Responses that may wait; further requests are answered with status 429."""
    max_body_bytes: int = 1 << 20
    """Maximum size of a request."""
    checkpoint: Literal["best", "last"] = "best"
    """Checkpoint of the run."""
    tokenizer: str | None = None
    """Tokenizer for a model folder without one: a folder or a hub id."""
    version: int = 0
    """Version of the weights; those that replace them need a higher one."""
    grace_seconds: float = 30.0
    """Time that running responses have after SIGTERM."""


def run_serve(command: Serve) -> int:
    """Serve until a signal."""
    from rljax.cli.loading import loading  # noqa: PLC0415  --help need not wait for JAX

    with loading(quiet=False):
        from rljax.errors import InputError  # noqa: PLC0415
        from rljax.programs.serving import ServeSettings, serve  # noqa: PLC0415

    key = None if command.api_key_file is None else command.api_key_file.read_text(encoding="utf-8").strip()
    if key == "":
        raise InputError(f"the file {str(command.api_key_file)!r} is empty; write the API key into it.")
    settings = ServeSettings(
        target=command.target,
        which=command.checkpoint,
        tokenizer=command.tokenizer,
        name=command.name,
        host=command.host,
        port=command.port,
        api_key=key,
        rows=command.rows,
        context=command.context,
        most_tokens=command.max_response_tokens,
        queue=command.queue,
        body_bytes=command.max_body_bytes,
        version=command.version,
        grace_seconds=command.grace_seconds,
    )
    return serve(settings, lambda line: print(f"rljax: {line}", file=sys.stderr, flush=True))
