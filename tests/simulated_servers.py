"""Simulated vLLM and SGLang servers with the documented endpoints, and a model that gives all tokens equal probability."""

import contextlib
import math
import threading

import numpy as np
import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from rljax.programs.serving import listen


class ServerState:
    """A server's state: the requests that it received, and the folders that it loaded weights from."""

    def __init__(self, vocabulary: int):
        self.vocabulary = vocabulary
        self.requests: list[dict] = []
        self.folders: list[str] = []
        self.version = "default"

    def tokens(self, seed: int, most: int, ends: list[int]) -> list[int]:
        sampled = np.random.default_rng(seed).integers(self.vocabulary, size=most).tolist()
        return next((sampled[: index + 1] for index, token in enumerate(sampled) if token in ends), sampled)


def vllm(state: ServerState) -> Starlette:
    """Build a vLLM server with the endpoints `/v1/models`, `/v1/completions`, `/collective_rpc` and `/reset_prefix_cache`."""

    async def models(_):
        return JSONResponse({"object": "list", "data": [{"id": "policy", "object": "model", "max_model_len": 64}]})

    async def completions(request):
        body = await request.json()
        state.requests.append(body)
        assert body["model"] == "policy"
        assert body["logprobs"] == 0
        tokens = state.tokens(body["seed"], body["max_tokens"], body["stop_token_ids"])
        finish = "stop" if tokens[-1] in body["stop_token_ids"] else "length"
        logprobs = {"token_logprobs": [-math.log(state.vocabulary)] * len(tokens), "tokens": [""] * len(tokens)}
        choice = {"index": 0, "text": "", "token_ids": tokens, "logprobs": logprobs, "finish_reason": finish}
        return JSONResponse({"object": "text_completion", "choices": [choice]})

    async def rpc(request):
        body = await request.json()
        assert body["method"] == "reload_weights"
        state.folders.append(body["kwargs"]["weights_path"])
        return JSONResponse({"results": [None]})

    async def reset(_):
        return JSONResponse({})

    return Starlette(
        routes=[
            Route("/v1/models", models),
            Route("/v1/completions", completions, methods=["POST"]),
            Route("/collective_rpc", rpc, methods=["POST"]),
            Route("/reset_prefix_cache", reset, methods=["POST"]),
        ]
    )


def sglang(state: ServerState) -> Starlette:
    """Build an SGLang server with the endpoints `/get_model_info`, `/generate` and `/update_weights_from_disk`."""

    async def info(_):
        return JSONResponse({"model_path": "policy", "is_generation": True})

    async def generate(request):
        body = await request.json()
        state.requests.append(body)
        settings = body["sampling_params"]
        assert body["return_logprob"]
        tokens = state.tokens(settings["sampling_seed"], settings["max_new_tokens"], settings["stop_token_ids"])
        is_over = tokens[-1] in settings["stop_token_ids"]
        finish = {"type": "stop", "matched": tokens[-1]} if is_over else {"type": "length", "length": len(tokens)}
        pairs = [[-math.log(state.vocabulary), token, None] for token in tokens]
        meta = {"finish_reason": finish, "output_token_logprobs": pairs, "weight_version": state.version}
        return JSONResponse({"text": "", "output_ids": tokens, "meta_info": meta})

    async def update(request):
        body = await request.json()
        state.folders.append(body["model_path"])
        state.version = body["weight_version"]
        return JSONResponse({"success": True, "message": "Succeeded to update model weights.", "num_paused_requests": 0})

    return Starlette(
        routes=[
            Route("/get_model_info", info),
            Route("/generate", generate, methods=["POST"]),
            Route("/update_weights_from_disk", update, methods=["POST"]),
        ]
    )


@contextlib.contextmanager
def running(app: Starlette, port: int = 0):
    """Run an application in a thread, and yield its address."""
    listener = listen("127.0.0.1", port)
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(10)
        listener.close()
