"""Sample a few plans for each prompt, and several answers to each plan."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rljax.errors import InputError
from rljax.models import Params
from rljax.rollout.request import Engine, Request, Response, check_responses, cut


@dataclass(frozen=True)
class PlanEngine:
    """Samples responses in two turns: the plan, which several responses to a prompt share, and an answer to it for each.

    The responses to a prompt are divided into `plans` blocks of equal size, in their order; the responses of a block begin with the
    same tokens, up to and including the marker. A plan without a marker is the full response of its block.

    Args:
        engine: samples both turns.
        marker: the token that ends a plan.
        plans: number of plans for each prompt.
    """

    engine: Engine
    marker: int
    plans: int

    def generate(self, params: Params, requests: Sequence[Request]) -> list[Response]:
        """Sample a response to each request.

        Raises:
            InputError: the responses to a prompt cannot be divided into blocks, or the engine's responses do not answer.
        """
        first = self._first_of_blocks(requests)
        heads = sorted(set(first))
        plans = dict(zip(heads, self._sample(params, [self._plan_of(requests[head]) for head in heads]), strict=True))
        found = [plans[head] for head in first]
        open_rows = [
            row
            for row, (request, plan) in enumerate(zip(requests, found, strict=True))
            if plan.tokens[-1] == self.marker and len(plan.tokens) < request.sampling.max_tokens
        ]
        answers = self._sample(params, [_answer_of(requests[row], found[row]) for row in open_rows])
        for row, answer in zip(open_rows, answers, strict=True):
            found[row] = _join(found[row], cut(answer, requests[row].sampling.max_tokens - len(found[row].tokens)))
        return [
            response._replace(finish="length") if response.tokens[-1] == self.marker else response for response in found
        ]

    def _sample(self, params: Params, requests: Sequence[Request]) -> list[Response]:
        responses = self.engine.generate(params, requests) if requests else []
        check_responses(requests, responses)
        return responses

    def _first_of_blocks(self, requests: Sequence[Request]) -> list[int]:
        """Return, for each request, the index of the first request of its block."""
        rows: dict[int, list[int]] = {}
        for row, request in enumerate(requests):
            rows.setdefault(request.group, []).append(row)
        first = [0] * len(requests)
        for group in rows.values():
            if len(group) % self.plans:
                raise InputError(
                    f"a prompt has {len(group)} responses, which cannot be divided among plans={self.plans}; choose a divisor."
                )
            size = len(group) // self.plans
            for place, row in enumerate(group):
                first[row] = group[place - place % size]
        return first

    def _plan_of(self, request: Request) -> Request:
        sampling = request.sampling
        return request._replace(sampling=sampling._replace(eos_ids=(*sampling.eos_ids, self.marker)))


def _answer_of(request: Request, plan: Response) -> Request:
    """Ask for what follows the plan, with another seed; the budget is the full one, so that all answers share a program."""
    tokens = (*request.prompt_tokens, *plan.tokens.tolist())
    return request._replace(prompt_tokens=tokens, seed=request.seed ^ 0x9E3779B97F4A7C15)


def _join(plan: Response, answer: Response) -> Response:
    others = answer.token_arrays
    joined = {name: np.concatenate([array, others[name]]) for name, array in plan.token_arrays.items()}
    return answer._replace(**joined)
