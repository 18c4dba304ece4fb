"""Names of settings in TRL, verl and Tunix, and ours for them: one table for error messages and for notebooks/coming_from.md."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from rljax.records import documented

LIBRARIES = ("TRL", "verl", "Tunix")


@documented
class Elsewhere(NamedTuple):
    """One setting under its names in other libraries; an empty name where a library has none."""

    ours: str
    """The flag, or the words to type."""
    trl: str = ""
    """Argument of TRL's GRPOConfig, ModelConfig, ScriptArguments or GRPOTrainer."""
    verl: str = ""
    """Key of verl's configuration."""
    tunix: str = ""
    """Field of Tunix's GRPOConfig, RolloutConfig or RLTrainingConfig."""
    note: str = ""
    """Difference in meaning."""


TABLE = (
    Elsewhere("--model", "model_name_or_path", "actor_rollout_ref.model.path"),
    Elsewhere("--dataset", "dataset_name", "data.train_files", "train_ds"),
    Elsewhere("--heldout-dataset", "eval_dataset", "data.val_files", "eval_ds"),
    Elsewhere("--reward", "reward_funcs", "custom_reward_function.path", "reward_fns", "as file.py:function"),
    Elsewhere("--reward-weights", "reward_weights"),
    Elsewhere("--algorithm", "loss_type", "algorithm.adv_estimator", "loss_algo", "one name stands for the whole paper"),
    Elsewhere("--algorithm-options beta=0.04", "beta", "actor_rollout_ref.actor.kl_loss_coef", "beta"),
    Elsewhere("--kl-target", "", "algorithm.kl_ctrl.target_kl", "", "in nats a token"),
    Elsewhere(
        "--reference-period", "ref_model_sync_steps", note="the policy itself, not a mixture; the optimiser restarts"
    ),
    Elsewhere("--algorithm-options clip=0.2", "epsilon", "actor_rollout_ref.actor.clip_ratio", "epsilon"),
    Elsewhere("--algorithm-options clip_low=0.2", "epsilon_low", "actor_rollout_ref.actor.clip_ratio_low"),
    Elsewhere(
        "--algorithm-options clip_high=0.28", "epsilon_high", "actor_rollout_ref.actor.clip_ratio_high", "epsilon_high"
    ),
    Elsewhere("--algorithm-options gamma=1", "", "algorithm.gamma", "gamma"),
    Elsewhere("--algorithm-options lambda_=0.95", "lam", "algorithm.lam", "gae_lambda"),
    Elsewhere("--algorithm dr_grpo", "scale_rewards", "algorithm.norm_adv_by_std_in_grpo", "done_right"),
    Elsewhere("--prompts", "per_device_train_batch_size", "data.train_batch_size", "batch_size", "groups, not responses"),
    Elsewhere("--group-size", "num_generations", "actor_rollout_ref.rollout.n", "num_generations"),
    Elsewhere("--max-response-tokens", "max_completion_length", "data.max_response_length", "max_tokens_to_generate"),
    Elsewhere("--max-prompt-tokens", "max_prompt_length", "data.max_prompt_length", "max_prompt_length"),
    Elsewhere("--temperature", "temperature", "actor_rollout_ref.rollout.temperature", "temperature"),
    Elsewhere("--steps", "max_steps", "trainer.total_training_steps", "max_steps", "rollouts, not updates"),
    Elsewhere(
        "--minibatches",
        "steps_per_generation",
        "actor_rollout_ref.actor.ppo_mini_batch_size",
        "mini_batch_size",
        "number of mini-batches of a rollout, not their size",
    ),
    Elsewhere("--passes", "num_iterations", "actor_rollout_ref.actor.ppo_epochs", "num_iterations"),
    Elsewhere(
        "--microbatch-rows",
        "gradient_accumulation_steps",
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu",
        "train_micro_batch_size",
        "rows held at once, not a number of parts",
    ),
    Elsewhere("--learning-rate", "learning_rate", "actor_rollout_ref.actor.optim.lr", "", "Tunix takes an Optax optimiser"),
    Elsewhere("--learning-rate-warmup", "warmup_steps", "actor_rollout_ref.actor.optim.lr_warmup_steps"),
    Elsewhere("--weight-decay", "weight_decay", "actor_rollout_ref.actor.optim.weight_decay"),
    Elsewhere("--adam-b1", "adam_beta1"),
    Elsewhere("--adam-b2", "adam_beta2"),
    Elsewhere("--max-grad-norm", "max_grad_norm", "actor_rollout_ref.actor.grad_clip"),
    Elsewhere("--critic-learning-rate", "", "critic.optim.lr"),
    Elsewhere("--value-pretraining-steps", "", "trainer.critic_warmup"),
    Elsewhere("--dtype bfloat16", "bf16", "", "", "parameters stay float32"),
    Elsewhere("--remat full", "gradient_checkpointing", "actor_rollout_ref.model.enable_gradient_checkpointing"),
    Elsewhere("--lora-rank", "lora_r", "actor_rollout_ref.model.lora_rank"),
    Elsewhere("--lora-alpha", "lora_alpha", "actor_rollout_ref.model.lora_alpha"),
    Elsewhere(
        "--lora-targets", "lora_target_modules", "actor_rollout_ref.model.target_modules", "", "patterns of our paths"
    ),
    Elsewhere("--quantize", "load_in_4bit", "", "", "`nf4` or `int8`"),
    Elsewhere("--run", "output_dir", "trainer.default_local_dir"),
    Elsewhere("--name", "run_name", "trainer.experiment_name"),
    Elsewhere("--eval-every", "eval_steps", "trainer.test_freq", "eval_every_n_steps"),
    Elsewhere("--checkpoint-every", "save_steps", "trainer.save_freq", "save_interval_steps"),
    Elsewhere("--wandb", "report_to", "trainer.logger"),
    Elsewhere("--resume", "resume_from_checkpoint", "trainer.resume_from_path"),
)
"""In the order of a first run: model, data, reward, algorithm, sizes, optimiser, run."""

SHORT = {
    "lr": "--learning-rate",
    "kl-coef": "--algorithm-options beta=0.04",
    "kl-coeff": "--algorithm-options beta=0.04",
    "kl-beta": "--algorithm-options beta=0.04",
    "clip-ratio": "--algorithm-options clip=0.2",
    "clip-range": "--algorithm-options clip=0.2",
    "rollout-n": "--group-size",
    "num-rollouts": "--group-size",
    "n": "--group-size",
    "batch-size": "--prompts",
    "epochs": "--steps",
    "num-train-epochs": "--steps",
    "total-epochs": "--steps",
    "num-steps": "--steps",
    "mu": "--passes",
    "ppo-epochs": "--passes",
    "num-iterations": "--passes",
    "max-new-tokens": "--max-response-tokens",
    "max-tokens": "--max-response-tokens",
    "model-path": "--model",
    "data-path": "--dataset",
    "reward-fn": "--reward",
    "reward-func": "--reward",
    "output": "--run",
    "gpus": "--replicas",
    "num-gpus": "--replicas",
    "dp": "--replicas",
    "tp": "--tensor",
}
"""Further names, by common habit."""

_PAIRS = {
    "dataset": "give the dataset without a flag",
    "model-name-or-path": "--model",
    "dataset-name": "give the dataset without a flag",
    "train-files": "give the dataset without a flag",
    "eval-dataset": "--heldout-dataset",
    "val-files": "--heldout-dataset",
    "loss-type": "--loss",
    "beta": "--loss-options beta=0.1",
    "label-smoothing": "--loss cdpo --loss-options epsilon=0.1",
    "simpo-gamma": "--loss-options margin=1.4",
    "max-length": "--max-tokens",
    "per-device-train-batch-size": "--batch",
    "train-batch-size": "--batch",
    "batch-size": "--batch",
    "num-train-epochs": "--epochs",
    "total-epochs": "--epochs",
    "max-steps": "--steps",
    "lr": "--learning-rate",
    "warmup-steps": "--learning-rate-warmup",
    "bf16": "--dtype bfloat16",
    "gradient-checkpointing": "--remat full",
    "output-dir": "--output",
    "run-name": "--name",
    "eval-steps": "--eval-every",
}
_DRAWS = {
    "max-new-tokens": "--max-response-tokens",
    "max-tokens": "--max-response-tokens",
    "max-completion-length": "--max-response-tokens",
    "max-gen-toks": "--max-response-tokens",
    "num-beams": "take the most frequent of several --samples (maj@k); `rljax search` is a beam over steps",
}
IN_COMMAND: Mapping[str, Mapping[str, str]] = {
    "preference": _PAIRS,
    "reward-model": {name: ours for name, ours in _PAIRS.items() if not ours.startswith("--loss")},
    "eval": _DRAWS
    | {
        "n": "--samples",
        "num-samples": "--samples",
        "num-return-sequences": "--samples",
        "batch-size": "--batch",
        "num-examples": "--limit",
        "tasks": "--dataset",
        "data-path": "--dataset",
        "reward-funcs": "--reward",
        "reward-fn": "--reward",
        "output-path": "--out",
        "output-dir": "--out",
    },
    "sample": {name: ours for name, ours in _DRAWS.items() if name != "num-beams"}
    | {
        "n": "--count",
        "num-samples": "--count",
        "num-return-sequences": "--count",
        "do-sample": "--temperature 1",
        "input": "--prompt",
        "text": "--prompt",
    },
    "export": {
        "output-dir": "give the folder without a flag",
        "torch-dtype": "--dtype",
        "push-to-hub": "--push OWNER/NAME",
        "hub-model-id": "--push OWNER/NAME",
        "merge": "leave it out: an adapter is merged unless --adapter is given",
    },
}
"""Names by which people look for the options of the other commands: TRL's DPOConfig and RewardConfig, `generate` of transformers,
lm-evaluation-harness, `save_pretrained`. The answer is a flag of ours, or what to do in place of a flag."""


def foreign_names(row: Elsewhere) -> Iterator[tuple[str, str]]:
    """Library and name of each name of a row."""
    for library, name in zip(LIBRARIES, (row.trl, row.verl, row.tunix), strict=True):
        if name:
            yield library, name


def ours_for(flag: str) -> str | None:
    """Find what to type in place of a flag of another library; None if the table does not have it.

    Args:
        flag: without the two hyphens; hyphens, underscores and dots are one, and the last part of a dotted key is enough.

    Example:
        >>> ours_for("num_generations"), ours_for("actor_rollout_ref.rollout.n"), ours_for("stepz")
        ('--group-size (num_generations in TRL and Tunix)', '--group-size (actor_rollout_ref.rollout.n in verl)', None)
    """
    wanted = plain(flag)
    for exact in (True, False):
        for row in TABLE:
            hits = [
                (library, name)
                for library, name in foreign_names(row)
                if wanted == plain(name) or (not exact and wanted == plain(name.rpartition(".")[2]))
            ]
            if hits:
                libraries = " and ".join(library for library, name in hits if name == hits[0][1])
                return f"{row.ours} ({hits[0][1]} in {libraries})"
    return SHORT.get(wanted)


def plain(name: str) -> str:
    """A name with hyphens alone, in small letters."""
    return name.replace("_", "-").replace(".", "-").lower()


def as_markdown() -> str:
    """The table as Markdown, as it stands in notebooks/coming_from.md."""
    lines = ["| rljax | TRL | verl | Tunix | difference |", "| --- | --- | --- | --- | --- |"]
    for row in TABLE:
        cells = [f"`{name}`" if name else "" for name in row[:4]]
        lines.append(f"| {' | '.join([*cells, row.note])} |".replace("|  |", "| |").replace("|  |", "| |"))
    return "\n".join(lines)
