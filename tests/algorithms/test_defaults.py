"""The algorithm factories: the papers' defaults, documented arguments, and argument checks."""

import inspect
import math

import pytest

from rljax.algorithms import BY_NAME, Algorithm, Critic

ZSCORE = {"eps": 1e-6, "ddof": 1}
OVER_BATCH = {"eps": 1e-8, "ddof": 0}
VAPO = {
    "clip_low": 0.2,
    "clip_high": 0.28,
    "gamma": 1.0,
    "alpha": 0.05,
    "value_lambda": 1.0,
    "positive": 0.1,
    "pretraining_steps": 50,
}
DEFAULTS = {
    "a_star_po": {"beta1": 0.5, "beta2": 1e-3},
    "cispo": {"clip_low": 1.0, "clip_high": 0.28, **ZSCORE},
    "clip_cov": {"share": 2e-4, "lower": 1.0, "upper": 5.0, "clip": 1.0, **ZSCORE},
    "dapo": {"clip_low": 0.2, "clip_high": 0.28, "max_length": 20480, "cache": 4096, **ZSCORE},
    "dapo_grpo": {"clip_low": 0.2, "clip_high": 0.28, "beta": 0.01, **ZSCORE},
    "deepseek_v32": {"clip": 0.2, "beta": 0.001, "delta": 0.5},
    "dppo": {"threshold": 0.15, "cap": 5.0},
    "dr_grpo": {"max_length": 3000, "clip": 0.2},
    "forking_tokens": {"share": 0.2, "clip_low": 0.2, "clip_high": 0.28, "max_length": 20480, "cache": 4096, **ZSCORE},
    "gdpo": {"clip": 0.2, **ZSCORE},
    "gepo": {"clip": 0.2, "sampler_kl": 0.005},
    "gkd": {"beta": 0.5},
    "gmpo": {"clip": 0.4, **ZSCORE},
    "gpg": {"norm": 1.0},
    "grpo": {"clip": 0.2, "beta": 0.04, **ZSCORE},
    "grpo_process": {"clip": 0.2, "beta": 0.04, **ZSCORE},
    "gspo": {"clip_low": 3e-4, "clip_high": 4e-4, **ZSCORE},
    "gspo_token": {"clip_low": 3e-4, "clip_high": 4e-4, **ZSCORE},
    "kimi_k15": {"tau": 0.1},
    "kl_cov": {"share": 2e-3, "beta": 1.0, **ZSCORE},
    "lite_ppo": {"clip": 0.2, **ZSCORE},
    "luspo": {"clip_low": 2e-3, "clip_high": 2.5e-3, **ZSCORE},
    "max_rl": {"eps": 0.0},
    "minillm": {"clip": 0.2},
    "mt_grpo": {"clip": 0.2, "beta": 0.04, "turn_discount": 1.0, **ZSCORE},
    "nash_md": {"mixture": 0.125, "tau": 0.008},
    "on_policy_distillation": {},
    "online_dpo": {"beta": 0.1},
    "open_reasoner_zero": {"clip": 0.2, "gamma": 1.0, "lambda_": 1.0, "value_clip": 0.2, **OVER_BATCH},
    "opo": {},
    "otb": {},
    "pass_at_k": {"k": 2, "clip": 0.2, "eps": 1e-6},
    "pkpo": {"k": 2},
    "ppo": {
        "clip": 0.2,
        "gamma": 1.0,
        "lambda_": 0.95,
        "value_clip": 0.2,
        "beta": 0.0,
        "entropy": 0.0,
        "dual_clip": math.inf,
    },
    "reinforce_pp": {"clip": 0.2, "beta": 0.0, **OVER_BATCH},
    "reinforce_pp_baseline": {"clip": 0.2, "beta": 0.0, **OVER_BATCH},
    "remax": {},
    "rloo": {"beta": 0.0},
    "sapo": {"tau_positive": 1.0, "tau_negative": 1.05, **ZSCORE},
    "scale_rl": {"cap": 5.0, **ZSCORE},
    "t1": {"beta": 2e-4, "entropy": 1e-3, "reference_rate": 0.01},
    "vapo": VAPO,
    "vapo_grpo": {"initial": 1.0, "decay": 3.0, **VAPO, **ZSCORE},
    "vc_ppo": {"clip": 0.2, "gamma": 1.0, "policy_lambda": 0.95, "value_lambda": 1.0, "pretraining_steps": 50},
    "vespo": {"power_positive": 2.0, "decay_positive": 3.0, "power_negative": 3.0, "decay_negative": 2.0, **ZSCORE},
    "xpo": {"beta": 0.1, "alpha": 1e-5},
}


def test_algorithms_are_in_alphabetical_order():
    assert list(BY_NAME) == sorted(BY_NAME) == list(DEFAULTS)
    assert all(name == factory.__name__ for name, factory in BY_NAME.items())


def defaults_of(name: str) -> dict:
    return {key: parameter.default for key, parameter in inspect.signature(BY_NAME[name]).parameters.items()}


@pytest.mark.parametrize("name", BY_NAME)
def test_defaults_are_the_papers_values(name):
    assert defaults_of(name) == DEFAULTS[name]
    assert all(p.kind is p.KEYWORD_ONLY for p in inspect.signature(BY_NAME[name]).parameters.values())


def test_defaults_outside_the_factories():
    """By default, a critic learns at the policy's rate, once per rollout, without pretraining, and the reference is fixed."""
    expected = {"learning_rate_ratio": 1.0, "updates": 1, "pretraining_steps": 0}
    assert {name: Critic._field_defaults[name] for name in expected} == expected
    assert Algorithm._field_defaults["reference_rate"] == 0.0


@pytest.mark.parametrize("name", BY_NAME)
def test_docstrings_describe_arguments_and_deviations(name):
    text = inspect.getdoc(BY_NAME[name])
    assert "::" in text
    assert "Deviations:" in text
    described = text.partition("Deviations:")[0].partition("Args:")[2]
    for argument in defaults_of(name):
        assert f"\n    {argument}: " in described, argument


@pytest.mark.parametrize(
    ("name", "phrases"),
    [
        ("cispo", ("Section 3.1", "dynamic sampling", "length penalty", "keep_group", "shape_reward")),
        ("dr_grpo", ("a truncated response's reward to 0",)),
        ("deepseek_v32", ("the paper states no value", "--sampling-mask", "the sampler itself computed")),
        ("gepo", ("0 removes the term",)),
        ("open_reasoner_zero", ("first over the tokens of each row",)),
        ("reinforce_pp", ("Eq. 1 of version 9", "takes the mean over the tokens of each response", "Eqs. 5 and 7")),
        ("reinforce_pp_baseline", ("Eq. 1 of version 9", "Eqs. 5 and 7")),
        ("kimi_k15", ("the paper gives no value", "divided by 2τ", "resets the optimizer")),
        ("rloo", ("Section 2.3",)),
        ("t1", ("from secondary descriptions", "did not have the paper's equations")),
        ("vc_ppo", ("from secondary descriptions", "not verified")),
        ("a_star_po", ("first step", "8 reference responses")),
        ("minillm", ("T - t - 1", "its Eq. 4", "--auxiliary")),
        ("nash_md", ("use G of at least 4", "P = 1/2 for equal rewards")),
        ("xpo", ("all responses are the policy's", "all pairs seen so far")),
        ("dppo", ("Section 5.2", "Appendix C.1", "verl has 20")),
    ],
)
def test_docstrings_mention_source_details(name, phrases):
    text = " ".join(inspect.getdoc(BY_NAME[name]).split())
    for phrase in phrases:
        assert phrase in text


@pytest.mark.parametrize("name", BY_NAME)
def test_every_argument_changes_the_algorithm(name):
    def describe(algorithm):
        """Return the repr of a record, with each partial function split into its function and keywords."""

        def flatten(x):
            if isinstance(x, tuple):
                return [flatten(item) for item in x]
            return (x.func, x.keywords) if hasattr(x, "keywords") else x

        return repr(flatten(algorithm))

    plain = describe(BY_NAME[name]())
    for argument, default in defaults_of(name).items():
        other = 1 - default if argument == "ddof" else (2.5 if default == math.inf else default * 0.5 + 0.125)
        other = int(other) if isinstance(default, int) else other
        assert describe(BY_NAME[name](**{argument: other})) != plain, argument


@pytest.mark.parametrize("name", [name for name, defaults in DEFAULTS.items() if "clip" in defaults and name != "gmpo"])
def test_one_clip_applies_to_both_sides(name):
    sides = BY_NAME[name](clip=0.125).surrogate.keywords
    assert (sides["low"], sides["high"]) == (0.125, 0.125)


@pytest.mark.parametrize("name", [name for name, defaults in DEFAULTS.items() if "gamma" in defaults])
def test_advantage_and_value_target_share_gamma_and_lambda(name):
    shared = [argument for argument in ("gamma", "lambda_") if argument in DEFAULTS[name]]
    critic = BY_NAME[name](**dict.fromkeys(shared, 0.125)).critic
    for side in (critic.advantage, critic.target):
        assert [side.keywords[argument] for argument in shared] == [0.125] * len(shared)


CRITIC_SETTINGS = {
    "open_reasoner_zero": (5.0, 12, 0),
    "ppo": (1.0, 1, 0),
    "vapo": (2.0, 1, 50),
    "vapo_grpo": (2.0, 1, 50),
    "vc_ppo": (2.0, 1, 50),
}
GROUP_SIZES = {
    "dapo": 16,
    "dr_grpo": 8,
    "forking_tokens": 16,
    "gepo": 8,
    "grpo": 64,
    "grpo_process": 64,
    "lite_ppo": 8,
    "mt_grpo": 64,
    "online_dpo": 2,
    "open_reasoner_zero": 64,
    "opo": 8,
    "pkpo": 16,
    "remax": 1,
    "scale_rl": 16,
    "t1": 64,
    "vapo": 16,
    "vapo_grpo": 16,
    "xpo": 2,
}


@pytest.mark.parametrize("name", BY_NAME)
def test_training_loop_settings(name):
    algorithm = BY_NAME[name]()
    assert algorithm.group_size == GROUP_SIZES.get(name)
    assert algorithm.reference_rate == (0.01 if name == "t1" else 0.0)
    if name in CRITIC_SETTINGS:
        critic = algorithm.critic
        assert (critic.learning_rate_ratio, critic.updates, critic.pretraining_steps) == CRITIC_SETTINGS[name]
    else:
        assert algorithm.critic is None


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("deepseek_v32", {"delta": -1.0}, r"delta must not be negative, got -1\.0"),
        ("deepseek_v32", {"beta": -1.0}, r"beta must not be negative, got -1\.0"),
        ("dppo", {"threshold": -1.0}, r"threshold must not be negative, got -1\.0"),
        ("dppo", {"cap": 0.5}, r"cap must be at least 1, got 0\.5"),
        ("scale_rl", {"cap": 0.5}, r"cap must be at least 1, got 0\.5"),
        ("clip_cov", {"share": 1.5}, r"share must lie in \[0, 1\], got 1\.5"),
        ("clip_cov", {"lower": 6.0}, r"lower must lie in \[-inf, 5\], got 6\.0"),
        ("kl_cov", {"share": -0.5}, r"share must lie in \[0, 1\], got -0\.5"),
        ("kl_cov", {"beta": -1.0}, r"beta must not be negative, got -1\.0"),
        ("gkd", {"beta": 1.5}, r"beta must lie in \[0, 1\], got 1\.5"),
        ("gpg", {"norm": 0.0}, r"norm must be positive, got 0\.0"),
        ("grpo", {"beta": -1.0}, r"beta must not be negative, got -1\.0"),
        ("gepo", {"sampler_kl": -1.0}, r"coefficient of the KL to the sampler must not be negative, got -1\.0"),
        ("a_star_po", {"beta1": 0.0}, r"beta1 must be positive, got 0\.0"),
        ("a_star_po", {"beta2": 0.0}, r"beta2 must be positive, got 0\.0"),
        ("nash_md", {"mixture": 1.5}, r"mixture must lie in \[0, 1\], got 1\.5"),
        ("nash_md", {"tau": -0.1}, r"tau must not be negative, got -0\.1"),
        ("online_dpo", {"beta": 0.0}, r"beta must be positive, got 0\.0"),
        ("xpo", {"alpha": -0.1}, r"alpha must not be negative, got -0\.1"),
        ("xpo", {"beta": 0.0}, r"beta must be positive, got 0\.0"),
        ("kimi_k15", {"tau": -0.1}, r"tau must not be negative, got -0\.1"),
        ("rloo", {"beta": -1.0}, r"beta must not be negative, got -1\.0"),
        ("ppo", {"entropy": -1.0}, r"coefficient of the entropy bonus must not be negative, got -1\.0"),
        ("t1", {"beta": -1.0}, r"beta must not be negative, got -1\.0"),
        ("t1", {"reference_rate": 2.0}, r"reference_rate must lie in \[0, 1\], got 2\.0"),
        ("vapo", {"positive": -1.0}, r"coefficient of the loss on correct responses must not be negative, got -1\.0"),
    ],
)
def test_invalid_arguments_are_refused(name, options, message):
    with pytest.raises(ValueError, match=message):
        BY_NAME[name](**options)
