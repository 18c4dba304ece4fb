"""The benchmark cases, implemented with `transformers.generate`."""

from functools import partial
from pathlib import Path

import torch
import workloads as work
from child import ParentChannel
from transformers import AutoModelForCausalLM, StoppingCriteria


class StopAtLengths(StoppingCriteria):
    """Stops each row at its own length."""

    def __init__(self, lengths: list[int]):
        self._ends = torch.tensor(lengths) + work.PROMPT_TOKENS

    def __call__(self, input_ids, scores, **kwargs):
        """Return whether each row has ended."""
        return input_ids.shape[1] >= self._ends


def decode(lengths: list[int], folder: Path, parent: ParentChannel) -> None:
    """Decode responses of these lengths; no sampled token ends a response early."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    prompts = torch.tensor([work.prompt_ids(index // work.GROUP) for index in range(len(lengths))])

    def sample() -> None:
        out = model.generate(
            prompts,
            attention_mask=torch.ones_like(prompts),
            do_sample=True,
            top_k=0,
            max_new_tokens=max(lengths),
            pad_token_id=work.PAD,
            stopping_criteria=[StopAtLengths(lengths)],
        )
        if out.shape[1] != work.PROMPT_TOKENS + max(lengths):
            raise ValueError(
                f"the longest response has {out.shape[1] - work.PROMPT_TOKENS} tokens instead of {max(lengths)}"
            )

    parent.run_rounds(sample)


CASES = {"decode_equal": partial(decode, work.EQUAL), "decode_spread": partial(decode, work.SPREAD)}
