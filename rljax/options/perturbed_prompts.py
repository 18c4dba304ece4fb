"""`--perturb-prompts NAME=SHARE`: RL changes a fraction of the training prompts as `rljax eval --perturb` does.

The prompts to change are chosen once, by the seed of the run, so a resumed run changes the same prompts. The warm start and the
held-out problems keep the original prompts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from rljax.data.perturbation import perturb
from rljax.data.problem import Problem
from rljax.data.prompts import encode_prompts
from rljax.errors import InputError
from rljax.training.setup import Setup


def install(setup: Setup) -> Setup:
    """Change the prompts.

    Raises:
        InputError: a share is not positive or the shares sum to more than 1, no prompt changes, or the tokenizer cannot encode
            a changed prompt.
    """
    shares = setup.config.data.perturb_prompts
    if not all(share > 0 for share in shares.values()) or sum(shares.values()) > 1:
        raise InputError(f"perturb_prompts is {shares}; give positive shares with a sum of at most 1.")
    if setup.tokenizer is None:  # a setup that only plans a run has no prompts
        return setup
    config, prompts = setup.config, setup.train.prompts
    problems = perturb_share(prompts.problems, shares, seed=config.run.seed)
    try:
        changed = encode_prompts(problems, setup.tokenizer, max_length=2**31, chat=config.model.chat)
    except InputError as error:
        raise InputError(f"--perturb-prompts makes prompts that this model cannot read: {error}") from error
    pairs = [
        (new, tokens) if len(tokens) <= setup.prompt_length else (old, before)
        for new, tokens, old, before in zip(problems, changed.tokens, prompts.problems, prompts.tokens, strict=True)
    ]
    encoded = replace(prompts, problems=tuple(pair[0] for pair in pairs), tokens=tuple(pair[1] for pair in pairs))
    count = sum(new.prompt != old.prompt for new, old in zip(encoded.problems, prompts.problems, strict=True))
    note = f"{count} of {len(pairs)} training prompts are changed in RL (perturb_prompts)"
    return setup._replace(train=replace(setup.train, prompts=encoded), omissions=[*setup.omissions, note])


def perturb_share(problems: Sequence[Problem], shares: Mapping[str, float], *, seed: int) -> list[Problem]:
    """Change the prompts of random, disjoint fractions of the problems, one fraction per perturbation.

    ::

        x'_i = perturb_k(x_i)    if s_1 + ... + s_(k-1) <= u_i < s_1 + ... + s_k,  u_i ~ Uniform(0, 1)        else x_i

    Args:
        problems: the problems.
        shares: name of a perturbation -> s_k, the fraction of the problems that it changes.
        seed: seed for u, and for what is changed in a prompt.

    Returns:
        The problems in the same order; a prompt in which a perturbation finds nothing to change stays unchanged.

    Raises:
        InputError: a name is unknown, or a perturbation changes no prompt at all.

    Source:
        Training on inputs with synthetic noise and the original labels: "Synthetic and Natural Noise Both Break
        Neural Machine Translation", arXiv:1711.02173, Section 6.
    """
    uniform, begin, found = np.random.default_rng(seed).random(len(problems)), 0.0, list(problems)
    for name, share in shares.items():
        changed = perturb(problems, name, seed=seed)
        for index in np.flatnonzero((uniform >= begin) & (uniform < begin + share)).tolist():
            found[index] = changed[index]
        begin += share
    return found
