"""The benchmark cases, implemented with google-tunix."""

import json
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import workloads as work
from child import ParentChannel


def make_learner(folder: Path):
    """Build Tunix's GRPO learner with the settings of `sides.rljax_cases.configuration`."""
    import optax  # noqa: PLC0415  the case "import" measures importing it
    from transformers import AutoTokenizer  # noqa: PLC0415
    from tunix.models.qwen3 import model as qwen3  # noqa: PLC0415
    from tunix.models.qwen3.params import create_model_from_safe_tensors  # noqa: PLC0415
    from tunix.rl import rl_cluster  # noqa: PLC0415
    from tunix.rl.grpo.grpo_learner import GRPOConfig, GRPOLearner  # noqa: PLC0415
    from tunix.rl.rollout.base_rollout import RolloutConfig  # noqa: PLC0415

    raw = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    model_config = qwen3.ModelConfig(
        num_layers=work.LAYERS,
        vocab_size=work.TOKENS,
        embed_dim=work.WIDTH,
        hidden_dim=work.HIDDEN,
        num_heads=work.HEADS,
        head_dim=work.HEAD_DIM,
        num_kv_heads=work.KV_HEADS,
        rope_theta=10_000,
        norm_eps=raw["rms_norm_eps"],
        use_tied_embedding=True,
    )
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("fsdp", "tp"))
    with mesh:
        model = create_model_from_safe_tensors(str(folder), model_config, mesh, dtype=jnp.float32)
    cluster = rl_cluster.RLCluster(
        actor=model,
        tokenizer=AutoTokenizer.from_pretrained(folder),
        cluster_config=rl_cluster.ClusterConfig(
            role_to_mesh=dict.fromkeys((rl_cluster.Role.ACTOR, rl_cluster.Role.ROLLOUT), mesh),
            rollout_engine="vanilla",
            training_config=rl_cluster.RLTrainingConfig(
                actor_optimizer=optax.adamw(work.LEARNING_RATE),
                eval_every_n_steps=10**6,
                max_steps=10**6,
                mini_batch_size=work.PROMPTS,
                train_micro_batch_size=work.PROMPTS,
            ),
            rollout_config=RolloutConfig(
                max_tokens_to_generate=work.LIMIT,
                max_prompt_length=work.PROMPT_TOKENS,
                kv_cache_size=work.PROMPT_TOKENS + work.LIMIT,
                temperature=1.0,
                top_p=None,
                eos_tokens=[work.EOS],
            ),
        ),
    )
    config = GRPOConfig(num_generations=work.GROUP, beta=0.0)
    return GRPOLearner(cluster, config, lambda prompts, completions, **_: work.reward(completions))


def rl_step(folder: Path, parent: ParentChannel) -> None:
    """Run complete steps: sample, judge, learn. A step ends when the learner requests the next prompts and the model is ready."""
    from flax import nnx  # noqa: PLC0415

    learner = make_learner(folder)

    def batches() -> Iterator[dict[str, np.ndarray]]:
        while True:
            parent.wait()
            yield {"prompts": np.array([work.prompt(index) for index in range(work.PROMPTS)])}
            jax.block_until_ready(nnx.state(learner.rl_cluster.actor_trainer.model))
            parent.done()

    learner.train(batches())


def training_step(folder: Path, parent: ParentChannel) -> None:
    """Run updates on responses of equal length."""
    from flax import nnx  # noqa: PLC0415
    from tunix.rl.grpo.grpo_learner import TrainExample  # noqa: PLC0415

    learner, random = make_learner(folder), np.random.default_rng(0)
    rows = work.PROMPTS * work.GROUP
    prompts = jnp.asarray([work.prompt_ids(index // work.GROUP) for index in range(rows)])
    example = TrainExample(
        prompt_ids=prompts,
        prompt_mask=jnp.ones_like(prompts, bool),
        completion_ids=jnp.asarray(random.integers(2, work.TOKENS, (rows, work.TRAINED))),
        completion_mask=jnp.ones((rows, work.TRAINED), bool),
        advantages=jnp.asarray(random.normal(size=rows), jnp.float32),
        ref_per_token_logps=None,
        old_per_token_logps=None,
    )

    def update() -> None:
        learner.rl_cluster.update_actor([example], None)
        jax.block_until_ready(nnx.state(learner.rl_cluster.actor_trainer.model))

    parent.run_rounds(update)


def import_library(folder: Path, parent: ParentChannel) -> None:
    """Import what a training script imports."""
    del folder
    parent.wait()
    from tunix.rl import rl_cluster  # noqa: F401, PLC0415
    from tunix.rl.grpo.grpo_learner import GRPOLearner  # noqa: F401, PLC0415

    parent.done()


CASES = {"rl_step": rl_step, "first_step": rl_step, "training_step": training_step, "import": import_library}
