"""The bonus for diverse responses: its formula, and its independence of order."""

import numpy as np
import pytest

from rljax.data.diversity import similarity
from rljax.errors import InputError
from rljax.rewards import resolve
from rljax.rewards.diversity import diversity
from rljax.rewards.reward_scores import needs_all_hosts


def test_the_bonus_is_the_mean_distance_to_the_others_of_the_prompt():
    rng = np.random.default_rng(0)
    prompts = [str(i) for i in rng.integers(0, 3, 24)]
    completions = [" ".join(rng.choice(list("ab"), 6)) for _ in range(24)]
    expected = []
    for position, (prompt, text) in enumerate(zip(prompts, completions, strict=True)):
        others = [completions[i] for i in range(24) if prompts[i] == prompt and i != position]
        expected.append(0.3 * (1 - np.mean([similarity(text, other) for other in others])))
    found = np.array(resolve("diversity:0.3")(prompts, completions))
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert found.std() > 0.01
    order = rng.permutation(24)
    again = diversity(0.3)([prompts[i] for i in order], [completions[i] for i in order])
    np.testing.assert_allclose(found[order], again, rtol=1e-12)


def test_the_extreme_values():
    assert diversity(2.0)(["p"] * 2 + ["q"] * 2 + ["r"], ["a b c", "a b c", "a b c", "d e f", "a"]) == [
        0.0,
        0.0,
        2.0,
        2.0,
        0.0,
    ]


def test_every_host_compares_all_responses():
    assert needs_all_hosts(diversity(1.0))


@pytest.mark.parametrize("scale", ["0", "-1", "nan", "inf", "much"])
def test_an_invalid_scale_is_refused(scale):
    with pytest.raises(InputError, match=r"the scale of diversity is .*; it must be a positive number"):
        resolve(f"diversity:{scale}")
