"""Budget forcing: continue an answer that ends too early, so that the model thinks for a minimum number of tokens."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rljax.errors import InputError
from rljax.models import Params
from rljax.rollout.continuations import end_token
from rljax.rollout.engine_protocols import Engine, Request, Response, join_arrays, observe, truncate_response
from rljax.rollout.worker import RolloutWorker


@dataclass(frozen=True)
class BudgetForcing:
    """An engine that replaces an early end token with a continuation text, and lets another engine continue from there.

    ::

        y, end    with |y| < m    ->    y, w, y'        y' sampled after the prompt, y and w; repeated while the answer is too short

    An answer is not continued if a stop string ended it, or if the token budget leaves no room for a token after w.

    Args:
        engine: the engine that samples the tokens.
        least: m, the minimum number of tokens in an answer.
        continuation: w, token ids of the text that replaces the end token.

    Source:
        Budget forcing, s1: Simple test-time scaling, arXiv:2501.19393, Section 3.1, with "Wait" as the text.
    """

    engine: Engine
    least: int
    continuation: tuple[int, ...]

    def generate(self, params: Params, requests: Sequence[Request]) -> list[Response]:
        """Sample a response to each request; see `rljax.rollout.Engine`."""
        responses, rounds = list(self.engine.generate(params, requests)), 0
        while early := [index for index, response in enumerate(responses) if self._ends_early(response, requests[index])]:
            rounds += 1
            extended = {index: self._replace_end_token(responses[index]) for index in early}
            requests_again = [
                requests[index]._replace(
                    prompt_tokens=(*requests[index].prompt_tokens, *extended[index].tokens.tolist()),
                    seed=(requests[index].seed + rounds) % 2**64,
                )
                for index in early
            ]
            for index, response in zip(early, self.engine.generate(params, requests_again), strict=True):
                joined = extended[index]._replace(**join_arrays([extended[index], response]), finish=response.finish)
                responses[index] = truncate_response(joined, requests[index].sampling.max_tokens)
        return responses

    def _ends_early(self, response: Response, request: Request) -> bool:
        """Return True if an end token follows fewer than m tokens, and the budget has room for another token after w."""
        count = len(response.tokens) - 1
        room = count + len(self.continuation) < request.sampling.max_tokens
        return end_token(response.tokens.tolist(), request.sampling) is not None and count < self.least and room

    def _replace_end_token(self, response: Response) -> Response:
        """Return the response without its end token, followed by the continuation, which the policy did not sample."""
        before = truncate_response(response, len(response.tokens) - 1)
        return response._replace(**join_arrays([before, observe(response, self.continuation)]))


def force_budget(worker: RolloutWorker, least: int, continuation: str) -> RolloutWorker:
    """Return a worker whose answers have at least `least` tokens, unless the token limit or a stop string ends them.

    Raises:
        InputError: `least` is below 1, the continuation has no tokens or cannot be encoded, or the worker has an environment.
    """
    if worker.environment is not None:
        raise InputError(
            "--least-tokens needs single-turn answers, but this run has an environment; leave out --least-tokens."
        )
    if least < 1:
        raise InputError(f"--least-tokens is {least}; it must be at least 1.")
    tokens = tuple(worker.judge.tokenizer.encode(continuation))
    if not tokens:
        raise InputError(f"--continuation is {continuation!r}, which has no tokens; pass text such as 'Wait'.")
    return replace(worker, engine=BudgetForcing(worker.engine, least, tokens))
