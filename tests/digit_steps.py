"""A toy problem for step-level search: a response has three digits, its value is their sum, so the best is 9;9;9;#."""

import numpy as np

from rljax.data.problem import Problem
from rljax.data.prompts import EncodedPrompts
from rljax.data.tokenizer import CharacterTokenizer
from rljax.rollout import Response, RolloutWorker
from rljax.rollout.engine_protocols import Sampling
from rljax.rollout.judging import Judge

TOKENIZER = CharacterTokenizer("0123456789;#?")
PROMPTS = EncodedPrompts((Problem("?", "27"), Problem("??", "27")), (TOKENIZER.encode("?"), TOKENIZER.encode("??")), 0)
STEPS = 3


class Digits:
    """An engine that writes one step per call: a random digit below `digits` and a semicolon or, after three steps, # and EOS."""

    def __init__(self, digits=10):
        self.digits, self.calls = digits, []

    def generate(self, params, requests):
        self.calls.append(requests)
        return [self.response(request) for request in requests]

    def response(self, request):
        done = TOKENIZER.decode(request.prompt_tokens).count(";")
        digit = np.random.default_rng(request.seed).integers(self.digits)
        tokens = TOKENIZER.encode(f"{digit};") if done < STEPS else [*TOKENIZER.encode("#"), TOKENIZER.eos_token_id]
        tokens = np.array(tokens[: request.sampling.max_tokens], np.int32)
        logp = np.full(len(tokens), -1.0, np.float32)
        finish = "stop" if tokens[-1] == TOKENIZER.eos_token_id or done < STEPS else "length"
        return Response(request.prompt_id, request.group, tokens, np.ones(len(tokens), bool), logp, logp, finish)


def make_worker(engine, budget=12):
    sampling = Sampling(budget, (TOKENIZER.eos_token_id,))
    return RolloutWorker(engine, PROMPTS, 2, sampling, Judge(TOKENIZER, lambda completions: [0.0] * len(completions)))


def digit_sum(prefixes):
    return np.array([sum(int(char) for char in prefix.text if char.isdecimal()) for prefix in prefixes], float)
