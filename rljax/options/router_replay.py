"""`--replay-experts`: the learner routes each token to the experts that the sampler used for it (R3, arXiv:2510.11370).

The built-in engine records the experts of each token of prompts and responses, in 2 bytes per token, layer and expert. The
records are part of the rollout, and every score of the policy and its reference uses them, so the divergence from the reference
is 0 as long as the parameters are equal. A critic chooses its own experts.
"""

from dataclasses import replace

from rljax.errors import InputError
from rljax.models.language_model import PREFILL_TOKENS
from rljax.options import config_with_experts, learns_from_teacher
from rljax.rollout.expert_records import recording_engine
from rljax.training.setup import Setup


def install(setup: Setup) -> Setup:
    """Let the engine record the experts.

    Raises:
        InputError: the model has no experts, or a part of the run cannot record or replay them.
    """
    if config_with_experts(setup.policy) is None:
        raise InputError(
            "replay_experts needs a built-in model with a mixture of experts, such as Qwen3-MoE; leave replay_experts out."
        )
    if learns_from_teacher(setup) or setup.config.algorithm.teacher is not None:
        raise InputError(
            "replay_experts cannot be used with a teacher, which has its own experts; leave one of the two out."
        )
    if setup.tokenizer is None:  # `rljax plan` builds no engine
        return setup
    if setup.prompt_length > PREFILL_TOKENS:
        raise InputError(
            f"replay_experts records prompts of at most {PREFILL_TOKENS} tokens, but the longest one has {setup.prompt_length}; "
            f"set --max-prompt-tokens {PREFILL_TOKENS}, or leave replay_experts out."
        )
    engine = recording_engine(setup.train.engine)
    if engine is None or setup.train.environment is not None:
        raise InputError(
            "replay_experts needs the built-in engine, and cannot be combined with --paged-cache, --plans, --calculator or an "
            "environment; leave these out, or leave replay_experts out. A custom engine can return Response.experts without "
            "this setting."
        )
    return setup._replace(train=replace(setup.train, engine=engine))
