"""Pass one library's own functions to `conform` as losses. This runs in that library's environment, in which rljax is not
installed.

    PYTHONPATH=CHECKOUT python library_losses.py trl|verl|tunix|openrlhf        (prints JSON, one row per algorithm)

No code of a library is copied: its functions are called. If advantages are computed inside a method (TRL, OpenRLHF), the method's
own statements are taken from the installed source and executed separately.
"""

import ast
import importlib.metadata
import inspect
import json
import sys
import textwrap
import types
from collections import defaultdict
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rljax.testing.checks import conform, conform_gae
from rljax.testing.loss_conventions import LIKE

BETA, LONGEST = 0.04, 3
EPS = {"trl": 1e-4, "verl": 1e-6, "tunix": 1e-6, "openrlhf": 1e-9}
"""The eps that each library adds to the standard deviation; no paper states it."""
FILTERED_BEFORE_THE_LOSS = {"kept": "all"}
"""Options of a row whose library drops groups before it calls the loss."""


class Row(NamedTuple):
    """One algorithm of a library."""

    algorithm: str
    """Label of the row: the algorithm, and its variant if the library has several."""
    like: str
    """Name of the algorithm that the row is compared with, as in `conform`."""
    settings: str
    """The library's settings, as a user would write them."""
    function: Callable[..., Any]
    options: dict[str, Any] = {}  # noqa: RUF012  never mutated
    """Fields of the paper's convention to replace, because they are computed outside the loss or depend on the settings."""
    rtol: float = 1e-5


def compile_statements(function: Callable[..., Any], first_prefix: str, stop_prefix: str) -> Any:
    """Compile consecutive statements of a function.

    Args:
        function: the function.
        first_prefix: text with which the first statement to compile begins.
        stop_prefix: text with which the next statement that is not compiled begins.
    """
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    for node in ast.walk(tree):
        for body in (getattr(node, name, None) for name in ("body", "orelse")):
            if not isinstance(body, list):
                continue
            lines = [ast.unparse(each).splitlines()[0] for each in body]
            first = next((at for at, line in enumerate(lines) if line.startswith(first_prefix)), None)
            if first is not None:
                stop = next(at for at, line in enumerate(lines) if at > first and line.startswith(stop_prefix))
                return compile(ast.Module(body[first:stop], []), f"<{function.__qualname__}>", "exec")
    raise SystemExit(
        f"{function.__qualname__} has no statement that begins with {first_prefix!r}; is a different version installed?"
    )


def flatten_rows(*arrays: Any) -> tuple[Any, ...]:
    """Flatten prompts and responses into rows: `[P, G, T]` -> `[P G, T]`."""
    return tuple(x.reshape(-1, x.shape[-1]) for x in arrays)


def trl_trainer(logp: Any, **settings: Any) -> Any:
    """Make a stand-in for TRL's trainer; its model returns the log-probabilities `logp`."""
    accelerator = types.SimpleNamespace(gather=lambda x: x, reduce=lambda x, reduction: x, num_processes=1)
    default = {
        "importance_sampling_level": "token", "beta": 0.0, "loss_type": "grpo", "epsilon_low": 0.2, "epsilon_high": 0.2,
        "top_entropy_quantile": 1.0, "off_policy_mask_threshold": None, "use_vllm": False, "max_completion_length": LONGEST,
        "scale_rewards": "group", "multi_objective_aggregation": "sum_then_normalize", "current_gradient_accumulation_steps": 1,
        "_entropy_bonus_enabled": False, "aux_loss_enabled": False, "accelerator": accelerator, "normalize_advantages": False,
        "model": types.SimpleNamespace(training=True), "_metrics": {"train": defaultdict(list)},
        "args": types.SimpleNamespace(delta=settings.pop("delta", None), use_bias_correction_kl=False, steps_per_generation=1),
        "_get_per_token_logps_and_entropies": lambda *a, **k: (logp, logp.new_zeros(logp.shape), None),
    }  # fmt: skip
    return types.SimpleNamespace(**(default | settings))


def trl_batch(old_logp: Any, ref_logp: Any, mask: Any, advantages: Any) -> dict[str, Any]:
    """Return the batch that TRL's losses read."""
    old, ref, counted = flatten_rows(old_logp, ref_logp, mask)
    ids = counted.long() * 0
    return {
        "prompt_ids": ids, "prompt_mask": ids, "completion_ids": ids, "completion_mask": counted.to(old.dtype),
        "advantages": advantages, "old_per_token_logps": old, "ref_per_token_logps": ref, "num_items_in_batch": mask.sum(),
    }  # fmt: skip


def trl_group_loss(**settings: Any) -> Callable[..., Any]:
    """Build the loss of TRL's `GRPOTrainer` for these settings."""
    import torch  # noqa: PLC0415
    from trl.trainer import grpo_trainer as module  # noqa: PLC0415

    advantage_code = compile_statements(
        module.GRPOTrainer._generate_and_score_completions,
        "if self.multi_objective_aggregation == 'sum_then_normalize'",
        "advantages = torch.nan_to_num",
    )

    def loss(logp: Any, old_logp: Any, ref_logp: Any, rewards: Any, mask: Any) -> Any:
        self = trl_trainer(*flatten_rows(logp), **settings)
        self.reward_weights = torch.ones(1, dtype=rewards.dtype)
        names = vars(module) | {
            "self": self, "rewards_per_func": rewards.reshape(-1, 1), "num_generations": rewards.shape[1], "device": "cpu",
            "unscorable_mask": torch.zeros(rewards.numel(), dtype=torch.bool),
        }  # fmt: skip
        exec(advantage_code, names)
        return module.GRPOTrainer._compute_loss(self, self.model, trl_batch(old_logp, ref_logp, mask, names["advantages"]))

    return loss


def trl_leave_one_out_loss(**settings: Any) -> Callable[..., Any]:
    """Build the loss of TRL's `RLOOTrainer` for these settings."""
    import torch  # noqa: PLC0415
    from trl.trainer import rloo_trainer as module  # noqa: PLC0415

    advantage_code = compile_statements(
        module.RLOOTrainer._generate_and_score_completions, "grouped_rewards = ", "advantages = torch.nan_to_num"
    )

    def loss(logp: Any, old_logp: Any, ref_logp: Any, rewards: Any, mask: Any) -> Any:
        self = trl_trainer(*flatten_rows(logp), **settings)
        names = vars(module) | {"self": self, "rewards": rewards.reshape(-1), "num_generations": rewards.shape[1]}
        names |= {"mode": "train", "unscorable_mask": torch.zeros(rewards.numel(), dtype=torch.bool), "device": "cpu"}
        exec(advantage_code, names)
        batch = trl_batch(old_logp, ref_logp, mask, names["advantages"])
        batch["old_logps"] = (batch["old_per_token_logps"] * batch["completion_mask"]).sum(1)
        return module.RLOOTrainer._compute_loss(self, self.model, batch)

    return loss


def trl() -> list[Row]:
    """Build the rows of TRL's trainers."""
    gspo = {"importance_sampling_level": "sequence", "epsilon_low": 3e-4, "epsilon_high": 4e-4}
    clipped_ratio = {"surrogate": "clipped", "clip": "ratio", "ratio": "response", "mean": "sequence"}
    return [
        Row("GRPO", "grpo", f"loss_type='grpo', beta={BETA}", trl_group_loss(loss_type="grpo", beta=BETA)),
        Row("GRPO, default loss", "grpo", f"beta={BETA}", trl_group_loss(loss_type="dapo", beta=BETA)),
        Row("BNPO", "grpo", f"loss_type='bnpo', beta={BETA}", trl_group_loss(loss_type="bnpo", beta=BETA)),
        Row(
            "Dr.GRPO",
            "dr_grpo",
            "loss_type='dr_grpo', scale_rewards='none'",
            trl_group_loss(loss_type="dr_grpo", scale_rewards="none"),
        ),
        Row(
            "DAPO",
            "dapo",
            "loss_type='dapo', epsilon_high=0.28",
            trl_group_loss(loss_type="dapo", epsilon_high=0.28),
            FILTERED_BEFORE_THE_LOSS,
        ),
        Row(
            "GSPO",
            "gspo",
            "importance_sampling_level='sequence', loss_type='grpo', epsilon=3e-4, epsilon_high=4e-4",
            trl_group_loss(**gspo),
        ),
        Row(
            "CISPO",
            "cispo",
            "loss_type='cispo', epsilon_high=1.28",
            trl_group_loss(loss_type="cispo", epsilon_high=1.28),
        ),
        Row(
            "Lite PPO",
            "lite_ppo",
            "loss_type='dapo', scale_rewards='batch'",
            trl_group_loss(loss_type="dapo", scale_rewards="batch"),
        ),
        Row("RLOO", "rloo", "RLOOTrainer, beta=0", trl_leave_one_out_loss(), clipped_ratio),
    ]


def verl_group_loss(
    estimator: str, policy: str, mean: str, *, kl: str | None = None, by_std: bool = True, **settings: Any
) -> Callable[..., Any]:
    """Build a loss of verl from the names of registered functions and from settings of the actor."""
    import torch  # noqa: PLC0415
    from verl.trainer.ppo import core_algos as core  # noqa: PLC0415
    from verl.workers.config import ActorConfig  # noqa: PLC0415

    actor = ActorConfig(strategy="fsdp", rollout_n=2, ppo_micro_batch_size_per_gpu=1, **settings)
    options = {"norm_adv_by_std_in_grpo": by_std} if estimator == "grpo" else {}

    def loss(logp: Any, old_logp: Any, ref_logp: Any, rewards: Any, mask: Any) -> Any:
        new, old, ref, counted = flatten_rows(logp, old_logp, ref_logp, mask.to(logp.dtype))
        token_rewards = torch.zeros_like(new).detach()
        last = counted.cumsum(1).argmax(1)
        token_rewards[torch.arange(len(last)), last] = rewards.reshape(-1)
        index = np.repeat(np.arange(len(rewards)), rewards.shape[1])
        advantages, _ = core.get_adv_estimator_fn(estimator)(
            token_level_rewards=token_rewards, response_mask=counted, index=index, **options
        )
        policy_loss, _ = core.get_policy_loss_fn(policy)(
            old_log_prob=old,
            log_prob=new,
            advantages=advantages,
            response_mask=counted,
            loss_agg_mode=mean,
            config=actor,
        )
        if kl is None:
            return policy_loss
        return policy_loss + BETA * core.agg_loss(core.kl_penalty(new, ref, kl), counted, mean)

    return loss


def verl() -> list[Row]:
    """Build the rows of verl's registered functions."""
    from verl.trainer.ppo import core_algos as core  # noqa: PLC0415

    def gae(rewards: Any, values: Any, mask: Any, gamma: Any, lam: Any) -> Any:
        return core.compute_gae_advantage_return(rewards, values, mask.to(values.dtype), gamma, lam)

    kl = f"use_kl_loss, kl_loss_type='low_var_kl', kl_loss_coef={BETA}"
    paper = "seq-mean-token-mean"
    by_default = verl_group_loss("grpo", "vanilla", "token-mean", kl="low_var_kl")
    return [
        Row("GRPO, documented defaults", "grpo", f"adv_estimator='grpo', {kl}", by_default),
        Row(
            "GRPO, loss of the paper", "grpo", f"the same, loss_agg_mode='{paper}'",
            verl_group_loss("grpo", "vanilla", paper, kl="low_var_kl"),
        ),
        Row(
            "Dr.GRPO", "dr_grpo",
            f"norm_adv_by_std_in_grpo=False, loss_agg_mode='seq-mean-token-sum-norm', loss_scale_factor={LONGEST}",
            verl_group_loss("grpo", "vanilla", "seq-mean-token-sum-norm", by_std=False,
                global_batch_info={"loss_scale_factor": LONGEST}
            ),
        ),
        Row(
            "DAPO", "dapo", "clip_ratio_high=0.28, clip_ratio_c=10, loss_agg_mode='token-mean'",
            verl_group_loss("grpo", "vanilla", "token-mean", clip_ratio_high=0.28, clip_ratio_c=10.0),
            FILTERED_BEFORE_THE_LOSS,
        ),
        Row(
            "GSPO", "gspo", f"policy_loss.loss_mode='gspo', clip_ratio_low=3e-4, clip_ratio_high=4e-4, loss_agg_mode='{paper}'",
            verl_group_loss("grpo", "gspo", paper, clip_ratio_low=3e-4, clip_ratio_high=4e-4),
        ),
        Row(
            "CISPO", "cispo", "policy_loss.loss_mode='cispo', clip_ratio_low=1, clip_ratio_high=0.28, loss_agg_mode='token-mean'",
            verl_group_loss("grpo", "cispo", "token-mean", clip_ratio_low=1.0, clip_ratio_high=0.28),
        ),
        Row(
            "RLOO", "rloo", "adv_estimator='rloo', loss_agg_mode='token-mean'", verl_group_loss("rloo", "vanilla", "token-mean"),
            {"surrogate": "clipped", "clip": "ratio"},
        ),
        Row("GAE", "gae", "adv_estimator='gae'", gae),
    ]  # fmt: skip


def tunix_group_loss(config: Any, estimator: str = "compute_advantages") -> Callable[..., Any]:
    """Build Tunix's loss from a configuration and the name of an advantage function; a stub replaces the model's outputs."""
    import jax  # noqa: PLC0415
    import jax.numpy as jnp  # noqa: PLC0415
    from flax import nnx  # noqa: PLC0415
    from tunix.rl import algo_core, common  # noqa: PLC0415

    def advantages(rewards: Any) -> Any:
        found = getattr(algo_core, estimator)(np.asarray(rewards).reshape(-1), rewards.shape[1])
        return np.asarray(found).astype(rewards.dtype)

    def loss(logp: Any, old_logp: Any, ref_logp: Any, rewards: Any, mask: Any) -> Any:
        new, old, ref, counted = flatten_rows(logp, old_logp, ref_logp, mask)
        shape = jax.ShapeDtypeStruct((rewards.size,), rewards.dtype)
        example = types.SimpleNamespace(
            completion_ids=jnp.zeros(new.shape, int), prompt_ids=jnp.zeros((len(new), 1), int),
            completion_mask=counted.astype(int), old_per_token_logps=old, ref_per_token_logps=ref,
            advantages=jax.pure_callback(advantages, shape, rewards),
        )  # fmt: skip
        common.compute_per_token_logps = lambda *a, **k: (new, jnp.zeros((*new.shape, 2)))
        return algo_core.grpo_loss_fn(nnx.Dict(), example, config, pad_id=0, eos_id=1)

    return loss


def tunix_config(kind: Any, **settings: Any) -> Any:
    """Build a Tunix configuration; the temperature, which Tunix's learner copies from the rollout, is 1."""
    configuration = kind(**settings)
    configuration.temperature = 1.0
    return configuration


def tunix() -> list[Row]:
    """Build the rows of Tunix's JAX functions."""
    from tunix.rl import algo_core  # noqa: PLC0415
    from tunix.rl.grpo import dapo_learner, drgrpo_learner, grpo_learner  # noqa: PLC0415

    def gae(rewards: Any, values: Any, mask: Any, gamma: Any, lam: Any) -> Any:
        return algo_core.compute_gae_advantages(rewards, values, mask.astype(values.dtype), gamma, lam)

    def grpo(**settings: Any) -> Any:
        return tunix_config(grpo_learner.GRPOConfig, **settings)

    sequence_level = grpo(loss_algo="gspo-token", beta=0.0, epsilon=3e-4)
    sequence_level.epsilon_high = 4e-4
    dr_grpo = tunix_config(drgrpo_learner.DrGRPOConfig, beta=0.0)
    dapo = tunix_group_loss(tunix_config(dapo_learner.DAPOConfig))
    paper_kl = tunix_group_loss(grpo(kl_loss_mode="low_var_kl"))
    return [
        Row("GRPO, default settings", "grpo", f"GRPOConfig(beta={BETA})", tunix_group_loss(grpo()), {}, 1e-4),
        Row("GRPO, KL of the paper", "grpo", "GRPOConfig(kl_loss_mode='low_var_kl')", paper_kl, {}, 1e-4),
        Row(
            "Dr.GRPO",
            "dr_grpo",
            "DrGRPOConfig(beta=0)",
            tunix_group_loss(dr_grpo, "compute_drgrpo_advantages"),
            {},
            1e-4,
        ),
        Row("DAPO", "dapo", "DAPOConfig()", dapo, FILTERED_BEFORE_THE_LOSS, 1e-4),
        Row(
            "GSPO",
            "gspo",
            "GRPOConfig(loss_algo='gspo-token', beta=0, epsilon=3e-4, epsilon_high=4e-4)",
            tunix_group_loss(sequence_level),
            {},
            1e-4,
        ),
        Row("GAE", "gae", "advantage_estimator='gae'", gae),
    ]


def openrlhf_functions() -> tuple[Any, dict[str, Any]]:
    """Import OpenRLHF's losses without its packages for models and clusters.

    Returns:
        The code that shapes rewards into advantages, and the names that are defined next to its GAE.
    """
    import torch  # noqa: PLC0415

    folder = Path(str(importlib.metadata.distribution("openrlhf").locate_file("openrlhf")))
    for name in ("deepspeed", "openrlhf", "openrlhf.models"):
        stand_in = types.ModuleType(name)
        stand_in.__path__ = (
            [str(folder / "models")] if name == "openrlhf.models" else []
        )  # its __init__ needs cluster packages
        sys.modules[name] = stand_in
    text = (folder / "trainer" / "ppo_utils" / "experience_maker.py").read_text(encoding="utf-8")
    functions = {node.name: node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)}
    shaping = next(
        node
        for node in ast.walk(functions["compute_advantages_and_returns"])
        if isinstance(node, ast.If) and ast.unparse(node.test) == "args.algo.advantage.estimator == 'rloo'"
    )
    names: dict[str, Any] = {"torch": torch, "Tuple": tuple}
    exec(compile(ast.Module([functions["get_advantages_and_returns"]], []), "<experience_maker>", "exec"), names)
    return compile(ast.Module([shaping], []), "<compute_advantages_and_returns>", "exec"), names


def openrlhf_group_loss(
    shaping_code: Any, estimator: str, *, kl: str | None = None, token_level: bool = True, **settings: Any
) -> Callable[..., Any]:
    """Build a loss of OpenRLHF from its compiled advantage code and settings of its `PolicyLoss`."""
    from openrlhf.models.loss import PolicyLoss, aggregate_loss  # noqa: PLC0415  # pyright: ignore
    from openrlhf.models.utils import compute_approx_kl  # noqa: PLC0415  # pyright: ignore

    policy = PolicyLoss(token_level_loss=token_level, **settings)
    algorithm = types.SimpleNamespace(advantage=types.SimpleNamespace(estimator=estimator))

    def loss(logp: Any, old_logp: Any, ref_logp: Any, rewards: Any, mask: Any) -> Any:
        rollout = types.SimpleNamespace(n_samples_per_prompt=rewards.shape[1])
        names = {"rewards": rewards, "args": types.SimpleNamespace(algo=algorithm, rollout=rollout)}
        exec(shaping_code, names)
        new, old, ref, counted = flatten_rows(logp, old_logp, ref_logp, mask.to(logp.dtype))
        advantages = names["rewards"].reshape(-1, 1) * counted  # as get_cumulative_returns computes it, with gamma 1
        found = policy(new, old, advantages, action_mask=counted)[0]
        if kl is None:
            return found
        return found + BETA * aggregate_loss(compute_approx_kl(new, ref, kl_estimator=kl), counted, token_level)

    return loss


def openrlhf() -> list[Row]:
    """Build the rows of OpenRLHF's losses."""
    shaping_code, names = openrlhf_functions()
    make_loss = partial(openrlhf_group_loss, shaping_code)

    def gae(rewards: Any, values: Any, mask: Any, gamma: Any, lam: Any) -> Any:
        return names["get_advantages_and_returns"](None, values, rewards, mask.to(values.dtype), gamma, lam)

    settings = f"group_norm, use_kl_loss, k3, init_kl_coef={BETA}"
    per_sample = make_loss("group_norm", kl="k3", token_level=False)
    gspo = {"policy_loss_type": "gspo", "clip_eps_low": 3e-4, "clip_eps_high": 4e-4}
    dapo = make_loss("group_norm", clip_eps_high=0.28)
    return [
        Row("GRPO", "grpo", settings, make_loss("group_norm", kl="k3")),
        Row("GRPO, loss of the paper", "grpo", "the same, per-sample loss", per_sample),
        Row("Dr.GRPO", "dr_grpo", "dr_grpo", make_loss("dr_grpo")),
        Row("DAPO", "dapo", "group_norm, clip_eps_high=0.28", dapo, FILTERED_BEFORE_THE_LOSS),
        Row("GSPO", "gspo", "group_norm, policy_loss_type='gspo', 3e-4, 4e-4", make_loss("group_norm", **gspo)),
        Row("RLOO", "rloo", "rloo", make_loss("rloo")),
        Row("GAE, before its normalization", "gae", "get_advantages_and_returns", gae),
    ]


ROW_BUILDERS = {"trl": trl, "verl": verl, "tunix": tunix, "openrlhf": openrlhf}


def main(library: str) -> None:
    """Print the rows of one library."""
    found = []
    arrays = "jax" if library == "tunix" else "torch"
    rank_promotion = nullcontext()
    if arrays == "jax":
        import jax  # noqa: PLC0415

        rank_promotion = jax.numpy_rank_promotion("allow")
    with rank_promotion:
        for row in ROW_BUILDERS[library]():
            if row.like == "gae":
                equals, text = conform_gae(row.function, arrays=arrays)
                convention = None if equals is None else equals._asdict()
            else:
                eps = {} if LIKE[row.like].ddof is None else {"eps": EPS[library]}
                report = conform(row.function, like=row.like, arrays=arrays, rtol=row.rtol, **eps, **row.options)
                text, convention = report.text, None if report.equals is None else asdict(report.equals)
            found.append({**row._asdict(), "function": None, "convention": convention, "says": text})
            print(f"{library} {row.algorithm}: {text.splitlines()[0]}", file=sys.stderr, flush=True)
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
