"""A small chat model in a folder, and a server for the model, in this process or in another one."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import jax
import transformers
import uvicorn
from small_runs import SMALL
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from rljax.models import init_params
from rljax.models.huggingface import save_pretrained
from rljax.programs.serving import ServeSettings, listen, make_server_parts, open_policy
from rljax.serving.app import make_app
from rljax.training.parts.policy import make_transformer_config

TEMPLATE = (
    "{% if tools %}<s>{{ tools | tojson }}<tool_call>{% endif %}"
    "{% for m in messages %}<{{ m.role[0] }}>{{ m.content }}<end>{% endfor %}{% if add_generation_prompt %}<a>{% endif %}"
)
SPECIALS = ["<pad>", "<end>", "<s>", "<u>", "<a>", "<t>"]
NAME = "chatty"


def make_model(folder: Path, *, seed: int = 0, width: int = 16) -> Path:
    """Write a model with random weights, and a byte-level tokenizer with a chat template."""
    vocabulary = [*SPECIALS, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE({token: index for index, token in enumerate(vocabulary)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    pretrained = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, additional_special_tokens=SPECIALS, eos_token="<end>", pad_token="<pad>"
    )
    pretrained.chat_template = TEMPLATE
    shape = make_transformer_config(SMALL.replace(width=width).model, len(vocabulary))
    params = jax.tree.map(lambda leaf: 3 * leaf, init_params(shape, jax.random.key(seed)))
    save_pretrained(folder, shape, params, bos=None, eos=1)
    pretrained.save_pretrained(folder)
    return folder


@contextlib.contextmanager
def serving(folder: Path, **settings):
    """Serve the model in a thread of this process, and yield the server's address and the served model."""
    chosen = ServeSettings(
        str(folder), **{"name": NAME, "port": 0, "context": 192, "max_response_tokens": 64, "rows": 8, **settings}
    )
    served = make_server_parts(chosen, open_policy(chosen, chosen.target), print)
    listener = listen(chosen.host, chosen.port)
    served.batcher.start()
    server = uvicorn.Server(uvicorn.Config(make_app(served), log_level="warning", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", served
    finally:
        server.should_exit = True
        thread.join(10)
        listener.close()
        assert served.batcher.close(10)


@contextlib.contextmanager
def server_process(folder: Path, *flags: str):
    """Serve the model in another process, and yield the process and the server's address."""
    command = [sys.executable, "-m", "rljax", "serve", str(folder), "--port", "0", "--name", NAME, *flags]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ | {"JAX_PLATFORMS": "cpu"})
    try:
        output = ""
        for line in process.stderr:
            output += line
            if found := re.search(r"on (http://\S+)", line):
                break
        else:
            raise AssertionError(output)
        yield process, found[1]
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.wait(10)
        process.stderr.close()


def events(text: str) -> list:
    """Parse the server-sent events in the text of a streamed response."""
    lines = [line.removeprefix("data: ") for line in text.split("\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def post(url: str, path: str, **body) -> httpx.Response:
    """Send a request that names the model."""
    return httpx.post(f"{url}{path}", json={"model": NAME, **body}, timeout=60, trust_env=False)
