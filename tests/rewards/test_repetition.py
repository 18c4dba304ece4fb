"""The measure of repetition: a comparison with a simple loop, extreme values, and refused sizes."""

import numpy as np
import pytest

from rljax.errors import InputError
from rljax.rewards import resolve
from rljax.rewards.repetition import repetition


def measure_by_loop(text, size):
    words, seen, repeats, runs = text.lower().split(), [], 0, 0
    for start in range(len(words)):
        run = words[start : start + size]
        if len(run) == size:
            runs += 1
            repeats += run in seen
            seen.append(run)
    return repeats / runs if runs else 0.0


@pytest.mark.parametrize("size", [1, 2, 5])
def test_repetition_is_the_fraction_of_repeated_n_grams(size):
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(["a", "B", "b", "c"], length)) for length in range(30)]
    found = resolve(f"repetition:{size}")(completions=texts)
    np.testing.assert_allclose(found, [measure_by_loop(text, size) for text in texts], rtol=1e-12)
    assert max(found) > 0.1


def test_the_extreme_values():
    different = " ".join(map(str, range(40)))
    assert repetition(3)(completions=["", "a b", "a b c", different]) == [0.0] * 4
    assert repetition(1)(completions=["so " * 100]) == [0.99]


@pytest.mark.parametrize("size", ["0", "-1", "1.5", "many"])
def test_an_invalid_size_is_refused(size):
    with pytest.raises(InputError, match=r"the n-gram size of repetition is .*, e\.g\. repetition:20"):
        resolve(f"repetition:{size}")
    with pytest.raises(InputError, match="the reward 'repetition' needs a size; write repetition:SIZE"):
        resolve("repetition")
