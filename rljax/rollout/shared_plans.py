"""Sample a few plans for each prompt, and several answers to each plan."""

from collections.abc import Sequence
from dataclasses import dataclass

from rljax.errors import InputError
from rljax.models import Params
from rljax.rollout.engine_protocols import Engine, Request, Response, join_arrays, sample_responses, truncate_response


@dataclass(frozen=True)
class PlanEngine:
    """Samples each response in two turns: a plan that several responses to the prompt share, and then the response's own answer.

    The responses to a prompt are divided, in order, into `plans` blocks of equal size. All responses in a block begin with the
    same plan, up to and including the marker. A plan without a marker is the complete response to all requests of its block.

    Args:
        engine: the engine that samples the plans and the answers.
        marker: id of the token that ends a plan.
        plans: number of plans per prompt.
    """

    engine: Engine
    marker: int
    plans: int

    def generate(self, params: Params, requests: Sequence[Request]) -> list[Response]:
        """Sample a response to each request.

        Raises:
            InputError: the number of responses to a prompt is not a multiple of `plans`, or the engine's responses do not match the
                requests.
        """
        block_starts = self._block_starts(requests)
        starts = sorted(set(block_starts))
        plans = dict(zip(starts, self._sample(params, [self._plan_request(requests[i]) for i in starts]), strict=True))
        responses = [plans[start] for start in block_starts]
        unfinished = [
            i
            for i, (request, plan) in enumerate(zip(requests, responses, strict=True))
            if plan.tokens[-1] == self.marker and len(plan.tokens) < request.sampling.max_tokens
        ]
        answers = self._sample(params, [_answer_request(requests[i], responses[i]) for i in unfinished])
        for i, answer in zip(unfinished, answers, strict=True):
            fitting = truncate_response(answer, requests[i].sampling.max_tokens - len(responses[i].tokens))
            responses[i] = fitting._replace(**join_arrays([responses[i], fitting]))
        return [
            response._replace(finish="length") if response.tokens[-1] == self.marker else response for response in responses
        ]

    def _sample(self, params: Params, requests: Sequence[Request]) -> list[Response]:
        return sample_responses(self.engine, params, requests) if requests else []

    def _block_starts(self, requests: Sequence[Request]) -> list[int]:
        """Return, for each request, the index of the first request of its block."""
        groups: dict[int, list[int]] = {}
        for index, request in enumerate(requests):
            groups.setdefault(request.group, []).append(index)
        starts = [0] * len(requests)
        for group in groups.values():
            if len(group) % self.plans:
                raise InputError(
                    f"a prompt has {len(group)} responses, which cannot be divided among plans={self.plans}; set plans to a "
                    f"divisor of {len(group)}."
                )
            size = len(group) // self.plans
            for member, index in enumerate(group):
                starts[index] = group[member - member % size]
        return starts

    def _plan_request(self, request: Request) -> Request:
        sampling = request.sampling
        return request._replace(sampling=sampling._replace(eos_ids=(*sampling.eos_ids, self.marker)))


def _answer_request(request: Request, plan: Response) -> Request:
    """Request the answer after a plan, with another seed and the full token budget, so that all answers share a program."""
    tokens = (*request.prompt_tokens, *plan.tokens.tolist())
    return request._replace(prompt_tokens=tokens, seed=request.seed ^ 0x9E3779B97F4A7C15)
