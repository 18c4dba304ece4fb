"""`rljax conform`: compare your own loss or GAE function with a paper's."""

import ast
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import tyro

from rljax.errors import InputError


@dataclass(frozen=True)
class Conform:
    """Compare your loss or GAE function with a paper's, in value and gradient. The report names the convention that your
    function follows, or the slot in which it differs (advantage, groups, weights, ratio, clip, KL, overlong, gaps between tokens,
    gradient, value), with one small counterexample."""

    function: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="FUNCTION")]
    """`file.py:function` or `module:function`. A loss takes some of the parameters logp, old_logp, ref_logp and mask `[prompts,
    responses, tokens]` and rewards `[prompts, responses]`, and returns a scalar to minimize. GAE takes rewards,
    values and mask `[rows, tokens]`, gamma, lambda_ and bootstrap `[rows]`, and returns the advantages."""
    like: Literal["grpo", "dapo", "dr_grpo", "gspo", "cispo", "lite_ppo", "rloo", "gae"]
    """Algorithm that the function should compute."""
    arrays: Literal["numpy", "jax", "torch"] = "jax"
    """Library whose arrays the function takes. Gradients come from automatic differentiation, or, for NumPy, from central
    differences."""
    rtol: float = 1e-5
    """Largest relative difference that counts as equal; use 1e-4 for a function that computes in float32."""
    convention: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME=VALUE")] = ()
    """Conventions other than the paper's: center=mean or leave_one_out; ddof=0, 1 or None (no division); eps; deviation=group or
    batch; kept=all or mixed (the groups that are trained on); mean=batch, prompt, sequence, sequence_sum or constant; ratio=token,
    sequence or response; surrogate=clipped, cispo or reinforce; clip=ratio, log_ratio or none; low; high; dual_clip; kl=none, k1,
    k2, k3 or k3+ (the value of k3, the gradient of k2); beta; kl_place=loss or reward; kl_cap (10 in verl and OpenRLHF, which
    clamp a token's KL to [-10, 10]); max_length and cache (of the overlong penalty; 0: none)."""


def _parse_convention(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise InputError(f"--convention takes NAME=VALUE, such as ddof=0; got {text!r}.")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):  # a plain word, such as sequence, is not a Python literal
        return name, value


def run_conform(command: Conform) -> int:
    """Print the report, and return 0 if the function conforms, else 1.

    Raises:
        InputError: the function cannot be imported or has an unknown parameter, or a convention does not exist.
    """
    from rljax.importing import import_function  # noqa: PLC0415
    from rljax.testing.checks import GAEConvention, conform, conform_gae  # noqa: PLC0415

    function = import_function(command.function, "function")
    options = dict(map(_parse_convention, command.convention))
    if command.like == "gae":
        if options:
            raise InputError("--convention does not apply to --like gae; leave it out.")
        convention, text = conform_gae(function, arrays=command.arrays, rtol=command.rtol)
        print(text)
        return 0 if convention == GAEConvention() else 1
    report = conform(function, like=command.like, arrays=command.arrays, rtol=command.rtol, **options)
    print(report.text)
    return 0 if report.slot is None else 1
