"""`--plans N --plan-end TEXT`: sample N plans per prompt and several answers per plan, and credit both separately.

`--sub-policies RANK`, with or without `--plans`, trains an adapter for plans and one for answers; see `rljax.models.sub_policies`.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import jax.numpy as jnp
import numpy as np

from rljax.algorithms import Algorithm, Credit, Rollout
from rljax.algorithms.part_checks import check_token_credit
from rljax.algorithms.plan_credit import in_plan, nested_group_advantage
from rljax.caching import cache_results
from rljax.data.prompts import EncodedPrompts
from rljax.data.tokenizer import Tokenizer
from rljax.errors import InputError
from rljax.models.sub_policies import marker_token
from rljax.records import required
from rljax.rollout.shared_plans import PlanEngine
from rljax.training.setup import Setup
from rljax.training.state import Option

NAME = "plans_and_answers"


def install(setup: Setup) -> Setup:
    """Sample plans and answers, and credit them separately. Without `--plans`, only check settings and prompts.

    Raises:
        InputError: the algorithm does not compare rewards within a group or has one ratio per response, the group cannot be
            divided, a prompt contains the marker, or a setting cannot be combined with plans or sub-policies.
    """
    config = setup.config
    end, plans = required(config.model.plan_end, "plan_end"), config.model.plans
    _check(setup)
    if plans is not None:
        measure = partial(count_sampled_tokens, plans=plans)
        setup = setup._replace(algorithm=with_plans(setup.algorithm, plans)).with_option(Option(NAME, measure=measure))
    if setup.tokenizer is None:  # the command `rljax plan` loads no prompts
        return setup
    for worker in (setup.train, setup.heldout, *setup.heldout.extra_sets.values()):
        check_prompts(worker.prompts, setup.tokenizer, end)
    if plans is None:
        return setup
    judge = setup.train.judge._replace(step_reward=partial(mark_plan, end))
    engine = PlanEngine(setup.train.engine, marker_token(setup.tokenizer.encode, end), plans)
    return setup._replace(train=replace(setup.train, engine=engine, judge=judge, reward_groups=None))


def check_prompts(prompts: EncodedPrompts, tokenizer: Tokenizer, end: str) -> None:
    """Reject a prompt that contains the text that ends a plan, because the sub-policy for answers takes over after this text.

    Raises:
        InputError: a prompt contains the text, or the text is not one token.
    """
    marker = marker_token(tokenizer.encode, end)
    for problem, tokens in zip(prompts.problems, prompts.tokens, strict=True):
        if marker in tokens:
            raise InputError(
                f"plan_end is {end!r}, which the prompt {problem.prompt!r:.80} contains; leave this prompt out, or train with "
                "another text."
            )


def _check(setup: Setup) -> None:
    config, name = setup.config, setup.config.algorithm.name
    plans, size, rank = config.model.plans, config.sampling.group_size, config.model.sub_policies
    if config.reward.environment is not None or config.sampling.engine_url is not None:
        raise InputError(
            f"plan_end={config.model.plan_end!r} divides responses of the built-in engine; leave environment and engine_url out."
        )
    if plans is not None and (setup.algorithm.critic is not None or _credit(setup.algorithm).needs != ("rewards",)):
        raise InputError(
            f"plans={plans} needs an algorithm that only compares rewards within a group, which {name} does not do; choose "
            "another algorithm, such as dr_grpo."
        )
    if plans is not None:
        try:
            check_token_credit(with_plans(setup.algorithm, plans), f"plans={plans}")
        except ValueError as error:
            raise InputError(f"{error}.") from error
    if plans is not None and (size % plans or size // plans < 2):
        raise InputError(
            f"group_size={size} cannot be divided into plans={plans} with at least 2 answers each; choose a multiple of plans."
        )
    if rank is not None and (config.adapter.rank is not None or config.optimization.weight_decay):
        raise InputError(
            f"sub_policies={rank} trains two adapters over a model that does not change in RL; leave lora_rank and weight_decay "
            "out."
        )


def _credit(algorithm: Algorithm) -> Credit:
    """Return the credit that computes advantages; a placeholder with empty `needs` if the algorithm has no advantages."""
    credit = algorithm.advantage
    if credit is None:
        return Credit(lambda: None, needs=())  # pyright: ignore[reportArgumentType]  never called
    return credit if isinstance(credit, Credit) else Credit(credit, optional=("valid",))


@cache_results
def with_plans(algorithm: Algorithm, plans: int) -> Algorithm:
    """Apply the algorithm's comparison of rewards to the plans of a prompt, and to the answers to each plan."""
    function = partial(nested_group_advantage, plans=plans, advantage=_credit(algorithm).function)
    return algorithm._replace(advantage=Credit(function, needs=("rewards", "step_end"), optional=("valid",)))


def mark_plan(
    end: str, prompts: Sequence[str], completions: Sequence[str], **columns: Sequence
) -> list[list[tuple[int, float]]]:
    """Return, for each completion, the character index at which its plan ends (unless it has no end) and its length, with reward 0.

    Example:
        >>> mark_plan("#", ["1+2=", "1+2="], ["1+2=3;#3", "1+2=3;"])
        [[(7, 0.0), (8, 0.0)], [(6, 0.0)]]
    """
    del prompts, columns
    ends = [[text.index(end) + len(end)] if end in text else [] for text in completions]
    return [[*((index, 0.0) for index in (*own, len(text)))] for own, text in zip(ends, completions, strict=True)]


def count_sampled_tokens(rollout: Rollout, batch: object, *, plans: int) -> dict[str, float]:
    """Count the sampled tokens; a plan that several responses share counts once."""
    del batch
    mask = np.asarray(rollout.mask, bool)
    shared = np.asarray(in_plan(jnp.asarray(required(rollout.step_end, "rollout.step_end")))) & mask
    is_first = np.arange(mask.shape[1]) % (mask.shape[1] // plans) == 0
    return {"sampled_tokens": float(mask.sum() - (shared & ~is_first[None, :, None]).sum())}
