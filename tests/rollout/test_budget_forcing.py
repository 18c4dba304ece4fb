"""Budget forcing, tested with engines that end their responses early."""

import jax
import numpy as np
import pytest
from digit_steps import TOKENIZER, Digits, make_worker

from rljax.errors import InputError
from rljax.rollout.budget_forcing import BudgetForcing, force_budget
from rljax.rollout.engine_protocols import Response

END = TOKENIZER.eos_token_id


class ShortEngine:
    """An engine that writes as many zeros as its prompt has tokens, then the end token."""

    def __init__(self):
        self.calls = []

    def generate(self, params, requests):
        self.calls.append(requests)
        return [self.response(request) for request in requests]

    def response(self, request):
        tokens = [*TOKENIZER.encode("0" * len(request.prompt_tokens)), END][: request.sampling.max_tokens]
        logp = np.full(len(tokens), -1.0, np.float32)
        finish = "stop" if tokens[-1] == END else "length"
        return Response(
            request.prompt_id, request.group, np.array(tokens, np.int32), np.ones(len(tokens), bool), logp, logp, finish
        )


def generate_answers(engine, least_tokens, budget=40, continuation=";"):
    worker = force_budget(make_worker(engine, budget), least_tokens, continuation)
    return worker.answer(None, [0, 1], jax.random.key(0))


def text(response):
    return TOKENIZER.decode(response.tokens[response.tokens != END])


def test_the_end_token_is_replaced_until_the_answer_is_long_enough():
    """The prompts have one and two tokens, so the engine writes 0 and 00, and after ';' a zero for each token so far."""
    engine = ShortEngine()
    first, second = generate_answers(engine, 2)
    assert (text(first), text(second)) == ("0;000", "00")
    assert [len(call) for call in engine.calls] == [2, 1]
    assert engine.calls[1][0].prompt_tokens == tuple(TOKENIZER.encode("?0;"))
    assert engine.calls[1][0].seed != engine.calls[0][0].seed
    assert first.mask.tolist() == [True, False, True, True, True, True]
    assert first.policy_logp.tolist() == [-1, 0, -1, -1, -1, -1]
    assert (first.finish, first.tokens[-1]) == ("stop", END)
    first, second = generate_answers(ShortEngine(), 6)
    assert (text(first), text(second)) == ("0;000;0000000", "00;00000")


def test_an_answer_with_enough_tokens_is_unchanged():
    worker = make_worker(Digits())
    plain, forced = (w.answer(None, [0, 1], jax.random.key(0)) for w in (worker, force_budget(worker, 1, ";")))
    for with_forcing, without in zip(forced, plain, strict=True):
        assert with_forcing.tokens.tolist() == without.tokens.tolist()


@pytest.mark.parametrize("budget", [2, 3, 4, 5, 6])
def test_the_budget_limits_the_complete_answer(budget):
    """If the budget has room for 0, ';' and one more token, the answer continues; otherwise it ends unchanged."""
    (first, _) = generate_answers(ShortEngine(), 9, budget=budget)
    longest = "0;000"  # with the largest of these budgets
    assert len(first.tokens) <= budget
    assert text(first) == (longest[:budget] if budget >= 3 else "0")
    assert first.finish == ("length" if 3 <= budget < 6 else "stop")


def test_stop_strings_end_an_answer():
    worker = make_worker(Digits())
    first = worker.answer(None, [0], jax.random.key(0))[0]
    assert first.finish == "stop"
    assert first.tokens[-1] != END
    assert BudgetForcing(Digits(), 9, (1,)).generate(None, worker.make_requests([0], [0], jax.random.key(0)))[
        0
    ].tokens.tolist() == (first.tokens.tolist())


def test_invalid_minimums_and_continuations_are_refused():
    for least_tokens, continuation, message in (
        (0, ";", "--least-tokens is 0"),
        (3, "", "has no token"),
        (3, "Wait", "'W'"),
    ):
        with pytest.raises(InputError, match=message):
            force_budget(make_worker(Digits()), least_tokens, continuation)
