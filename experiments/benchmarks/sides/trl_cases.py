"""The benchmark cases, implemented with TRL."""

import time
from pathlib import Path

import torch
import workloads as work
from child import ParentChannel


def trainer(folder: Path, parent: ParentChannel, *, steps: int = 10**6):
    """Build TRL's GRPO trainer with the settings of `sides.rljax_cases.configuration`; each training step is a round."""
    from datasets import Dataset  # noqa: PLC0415  the case "import" measures importing it
    from peft import LoraConfig  # noqa: PLC0415
    from transformers import TrainerCallback  # noqa: PLC0415
    from trl import GRPOConfig, GRPOTrainer  # noqa: PLC0415

    step = work.step_of(folder)
    parts: dict[str, float] = {}

    class MeasuredTrainer(GRPOTrainer):
        """Records the seconds of sampling and judging, and the mean length of the responses."""

        def _generate_and_score_completions(self, inputs):
            begun = time.perf_counter()
            scored = super()._generate_and_score_completions(inputs)
            parts["sample_seconds"] = time.perf_counter() - begun
            parts["response_length"] = float(scored["completion_mask"].sum(-1).float().mean())
            return scored

    class PacedCallback(TrainerCallback):
        """Begins a step when the parent requests it, and reports when it has ended."""

        def on_step_begin(self, args, state, control, **kwargs):
            parent.wait()

        def on_step_end(self, args, state, control, **kwargs):
            parent.done(**parts)

    config = GRPOConfig(
        output_dir=str(folder / "trl"),
        per_device_train_batch_size=step.microbatch,
        gradient_accumulation_steps=step.prompts * step.group // step.microbatch,
        num_generations=step.group,
        max_completion_length=step.limit,
        learning_rate=work.LEARNING_RATE,
        lr_scheduler_type="constant",
        beta=0.0,
        temperature=1.0,
        max_steps=steps,
        save_strategy="no",
        report_to="none",
        logging_steps=1,
        disable_tqdm=True,
        use_cpu=step.on_cpu,
        bf16=not step.on_cpu,
        gradient_checkpointing=not step.on_cpu,
        model_init_kwargs={"dtype": "float32"},
        shuffle_dataset=False,
    )
    rows = Dataset.from_list([{"prompt": work.prompt(index, step)} for index in range(step.prompts)])
    lora = None if step.lora_rank is None else LoraConfig(r=step.lora_rank, lora_alpha=32, target_modules="all-linear")
    return MeasuredTrainer(
        str(folder),
        lambda completions, **_: work.reward(completions),
        args=config,
        train_dataset=rows,
        callbacks=[PacedCallback()],
        peft_config=lora,
    )


def rl_step(folder: Path, parent: ParentChannel) -> None:
    """Run complete steps: sample, judge, learn."""
    trainer(folder, parent).train()


def training_step(folder: Path, parent: ParentChannel) -> None:
    """Run updates on responses of equal length: loss, gradient, clipping to the trainer's norm, and AdamW."""
    grpo = trainer(folder, parent)
    model, optimizer = grpo.model.train(), grpo.create_optimizer()
    grpo.current_gradient_accumulation_steps = 1  # the trainer's own loop sets it
    torch.manual_seed(0)
    rows = work.PROMPTS * work.GROUP
    prompts = torch.tensor([work.prompt_ids(index // work.GROUP) for index in range(rows)])
    completions = torch.randint(2, work.TOKENS, (rows, work.TRAINED))
    batch = {
        "prompt_ids": prompts,
        "prompt_mask": torch.ones_like(prompts),
        "completion_ids": completions,
        "completion_mask": torch.ones_like(completions),
        "advantages": torch.randn(rows),
        "old_per_token_logps": None,
        "num_items_in_batch": torch.tensor(completions.numel()),
    }

    def update() -> None:
        grpo.compute_loss(model, batch).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), grpo.args.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()

    parent.run_rounds(update)


def log_probs(folder: Path, parent: ParentChannel) -> None:
    """Compute the gradient of the summed log-probabilities with respect to the hidden states and the head."""
    from trl.trainer.utils import selective_log_softmax  # noqa: PLC0415

    del folder
    torch.manual_seed(0)
    hidden = torch.randn(work.SCORED, work.FEATURES, requires_grad=True)
    head = (torch.randn(work.VOCABULARY, work.FEATURES) / 16).requires_grad_()
    tokens = torch.randint(0, work.VOCABULARY, (work.SCORED,))

    def gradient() -> None:
        hidden.grad = head.grad = None
        selective_log_softmax(hidden @ head.T, tokens).sum().backward()

    parent.run_rounds(gradient)


def import_library(folder: Path, parent: ParentChannel) -> None:
    """Import what a training script imports."""
    del folder
    parent.wait()
    from trl import GRPOTrainer  # noqa: F401, PLC0415

    parent.done()


CASES = {
    "rl_step": rl_step,
    "first_step": rl_step,
    "training_step": training_step,
    "log_probs": log_probs,
    "import": import_library,
}
