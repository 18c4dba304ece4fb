"""Rules that add two numbers: they write the digits of the sum after `a+b=`, and abstain elsewhere."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from rljax.caching import cache_results
from rljax.errors import InputError
from rljax.models.learned_mixture import learned_mixture
from rljax.models.mixed_policy import Rules, mixed_policy
from rljax.models.policy import Policy

CHARACTERS = "0123456789+=;"
"""Characters that the calculator reads; each must be one token, both alone and within a sum."""
_SAMPLE = "7+5+12=12;12+9="
"""A problem, a step, and the beginning of the next step."""
_LARGEST = 99_999_999  # largest number to which a digit may be appended, so that two numbers and their sum fit in int32
_POWERS = 10 ** np.arange(10, dtype=np.int32)
_START, _LEFT, _PLUS, _RIGHT, _RESULT, _ELSE = range(6)
"""State of the calculator: at the start of a step, in its first number, after the `+`, in its second number, after the `=`, or
abstaining until the step ends."""


def calculator_of(encode: Callable[[str], Sequence[int]], vocab_size: int) -> Rules:
    """Make the calculator for the tokens of a tokenizer.

    Args:
        encode: function that returns the token ids of a text.
        vocab_size: V, number of tokens of the policy.

    Raises:
        InputError: a character is not one token, two characters share a token, or the tokenizer merges characters in a sum.
    """
    ids = [tuple(encode(character)) for character in CHARACTERS]
    single = [ids[CHARACTERS.index(character)] for character in _SAMPLE]
    if any(len(tokens) != 1 for tokens in ids) or len(set(ids)) < len(ids) or tuple(encode(_SAMPLE)) != sum(single, ()):
        raise InputError(
            f"the calculator reads the characters {CHARACTERS}, each of which must be one token of its own, even within a sum; use "
            "`--tokenizer characters`."
        )
    return calculator(tuple(tokens[0] for tokens in ids), vocab_size)


def with_calculator(policy: Policy, encode: Callable[[str], Sequence[int]], *, share: float, rate: float | None) -> Policy:
    """Mix a policy with the calculator; the calculator's share is fixed if `rate` is None, and learned otherwise.

    Raises:
        InputError: the calculator cannot read the tokens, or `share` or `rate` is out of range.
    """
    rules = calculator_of(encode, policy.vocab_size)
    if rate is None:
        return mixed_policy(policy, rules, share=share)
    return learned_mixture(policy, rules, share=share, rate=rate)


@cache_results
def calculator(ids: tuple[int, ...], vocab_size: int) -> Rules:
    """Make rules that write the result of each step `a+b=` of a worked sum; the network writes everything else.

    A sequence begins with a problem that ends with `=`, such as `7+5+9=`; the steps come after it. If anything but digits and
    one `+` comes before the `=` of a step, such as another operator, the rules abstain until the next `;`. A number
    of more than nine digits has the same effect.

    Args:
        ids: token id of each character in `CHARACTERS`.
        vocab_size: V.

    Returns:
        The rules. Their memory has five integers: whether the problem has ended, the state within the current step, the step's two
        numbers, and how many digits of the result are written.

    Example:
        >>> import jax.numpy as jnp
        >>> rules = calculator(tuple(range(13)), 14)
        >>> memory = jnp.asarray(rules.start)
        >>> for character in "7+5=7+5=1":
        ...     memory = rules.read(memory, jnp.int32(CHARACTERS.index(character)))
        >>> logp, has_prediction = rules.predict(memory)
        >>> CHARACTERS[logp.argmax()], bool(has_prediction)
        ('2', True)
    """
    *digits, plus, equals, end = ids  # the end of a step, `;`, begins the next one
    value_of = np.full(vocab_size, -1, np.int32)
    value_of[digits] = np.arange(10)
    token_of = np.array(digits, np.int32)

    def read(memory: Int[Array, "*N F"], token: Int[Array, "*N"]) -> Int[Array, "*N F"]:
        has_begun, state, left, right, written = jnp.moveaxis(memory, -1, 0)
        value = jnp.asarray(value_of)[token]
        in_left, in_right = (state == _START) | (state == _LEFT), (state == _PLUS) | (state == _RIGHT)
        is_digit, too_large = value >= 0, jnp.where(in_left, left, right) > _LARGEST
        number = jnp.where(in_left, _LEFT, _RIGHT)
        next_state = jnp.select(
            [is_digit, token == plus, token == equals, token == end],
            [
                jnp.where(in_left | in_right, jnp.where(too_large, _ELSE, number), state),
                jnp.where(state == _LEFT, _PLUS, _ELSE),
                jnp.where(state == _RIGHT, _RESULT, _ELSE),
                jnp.full_like(state, _START),
            ],
            _ELSE,
        )
        ends_step = token == end
        after = (
            has_begun,
            next_state,
            jnp.where(ends_step, 0, jnp.where(is_digit & in_left & ~too_large, 10 * left + value, left)),
            jnp.where(ends_step, 0, jnp.where(is_digit & in_right & ~too_large, 10 * right + value, right)),
            jnp.where(ends_step, 0, jnp.where(is_digit & (state == _RESULT), written + 1, written)),
        )
        problem = ((token == equals).astype(has_begun.dtype), *(jnp.zeros_like(has_begun) for _ in range(4)))
        return jnp.stack([jnp.where(has_begun > 0, a, b) for a, b in zip(after, problem, strict=True)], axis=-1)

    def predict(memory: Int[Array, "*N F"]) -> tuple[Float[Array, "*N V"], Bool[Array, "*N"]]:
        has_begun, state, left, right, written = jnp.moveaxis(memory, -1, 0)
        result, powers = left + right, jnp.asarray(_POWERS)
        length = 1 + sum((result >= int(power)).astype(jnp.int32) for power in _POWERS[1:])
        digit = result // powers[jnp.clip(length - 1 - written, 0, 9)] % 10
        logp = jnp.where(jax.nn.one_hot(jnp.asarray(token_of)[digit], vocab_size, dtype=bool), 0.0, -jnp.inf)
        return logp.astype(jnp.float32), (has_begun > 0) & (state == _RESULT) & (written < length)

    return Rules((0,) * 5, read, predict)
