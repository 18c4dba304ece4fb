"""The optional parts of a run, one file per idea.

`CONDITIONS` lists the parts, each with the condition under which a run has it. A part's file is imported only if its condition is
true. The file's `install` function takes the setup of the run and returns it with an option added. To add an idea, write a file
with an `install` function, and list the file in `CONDITIONS`; see `rljax.training.state` for what an option can do.
"""

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

from rljax.lazy import LazyTable, lazy_names
from rljax.models import Policy, TransformerConfig
from rljax.models.language_model import abstract_params
from rljax.rollout.environment import other_policy_in, texts_in
from rljax.training.config import AlgorithmConfig
from rljax.training.setup import Install, Setup


def learns_from_teacher(setup: Setup) -> bool:
    """Return True if the algorithm reads a teacher's log-probabilities, or the divergence from a teacher's distributions."""
    return setup.algorithm.needs("teacher_logp") or setup.algorithm.teacher_divergence is not None


def teaches_itself(config: AlgorithmConfig) -> bool:
    """Return True if the model is its own teacher, or if a setting is set that only such a run may have."""
    return config.teacher == "self" or (config.teacher_shows, config.teacher_rate, config.teacher_template) != (None,) * 3


def config_with_experts(policy: Policy) -> TransformerConfig | None:
    """Return the config of a transformer with experts; None for any other policy."""
    shapes = policy.shapes
    if not isinstance(shapes, partial) or shapes.func is not abstract_params or shapes.args[0].routing is None:
        return None
    return shapes.args[0]


def other_policy_of(setup: Setup) -> str | None:
    """Return the other policy that takes turns in the environment: "past" or a model folder; None if there is no other policy."""
    options = setup.config.reward.environment_options
    if setup.train is None:  # a plan does not build its environment
        return "past" if options is not None and "past" in texts_in(options) else None
    return None if setup.train.environment is None else other_policy_in(setup.train.environment)


CONDITIONS: Mapping[str, Callable[[Setup], bool]] = MappingProxyType(
    {
        "other_policy": lambda setup: other_policy_of(setup) is not None,
        "further_heldout": lambda setup: bool(setup.config.data.also_heldout),
        "perturbed_prompts": lambda setup: bool(setup.config.data.perturb_prompts),
        "controller": lambda setup: setup.config.optimization.remedy == "controller",
        "kl_target": lambda setup: setup.config.algorithm.kl_target is not None,
        "entropy_target": lambda setup: any(term.follow is not None for term in setup.algorithm.terms),
        "calculator_share": lambda setup: setup.config.model.calculator_rate is not None,
        "plans_and_answers": lambda setup: setup.config.model.plan_end is not None,
        "group_robust": lambda setup: setup.config.algorithm.worst_kind is not None,
        "kl_limit": lambda setup: setup.config.optimization.kl_limit is not None,
        "keep_zeros": lambda setup: setup.config.optimization.keep_zeros,
        "fisher_anchor": lambda setup: setup.config.algorithm.anchor is not None,
        "auxiliary_loss": lambda setup: bool(setup.config.optimization.auxiliary),
        "prompt_consistency": lambda setup: bool(setup.config.optimization.prompt_consistency),
        "distillation": lambda setup: (
            setup.config.algorithm.teacher != "self"
            and not setup.config.algorithm.teacher_spans
            and (setup.config.algorithm.teacher is not None or learns_from_teacher(setup))
        ),
        "span_teacher": lambda setup: setup.config.algorithm.teacher_spans and setup.algorithm.teacher_divergence is None,
        "span_distributions": lambda setup: (
            setup.config.algorithm.teacher_spans and setup.algorithm.teacher_divergence is not None
        ),
        "self_distillation": lambda setup: teaches_itself(setup.config.algorithm),
        "reward_history": lambda setup: bool(setup.config.sampling.remembered_rewards),
        "batch_metrics": lambda setup: setup.algorithm.correction is not None or setup.algorithm.needs("ref_logp"),
        "router_metrics": lambda setup: config_with_experts(setup.policy) is not None,
        "router_replay": lambda setup: setup.config.sampling.replay_experts,
        "moving_reference": lambda setup: (
            setup.config.algorithm.reference_period is not None or setup.algorithm.reference_rate > 0
        ),
        "remedies": lambda setup: setup.config.optimization.remedy == "auto",
        "sampler_delay": lambda setup: setup.config.sampling.lag > 0,
    }
)
"""File of an optional part -> whether a run has the part, in the order in which the parts are added."""
_INSTALL: LazyTable[Install] = LazyTable({name: f"{__name__}.{name}:install" for name in CONDITIONS})


def install(name: str, setup: Setup) -> Setup:
    """Add an optional part if the run has it.

    Args:
        name: a name of `CONDITIONS`.
        setup: the setup with all earlier parts added.
    """
    return _INSTALL[name](setup) if CONDITIONS[name](setup) else setup


INSTALLERS: tuple[Install, ...] = tuple(partial(install, name) for name in CONDITIONS)
"""The functions that add the optional parts, in order."""

__getattr__, __dir__ = lazy_names(__name__, renamed={"hierarchy": "plans_and_answers"})
