"""Write trl_distillation.json: TRL's divergence and its gradient, in float64 with PyTorch. The tests do not run this script.

Generated with TRL at commit f2cd57710ae345ea6428ae95363267fcf38a3dc8 and torch 2.13.0:

    pip install torch==2.13.0 numpy
    git clone https://github.com/huggingface/trl && git -C trl checkout f2cd57710ae345ea6428ae95363267fcf38a3dc8
    python tests/ops/make_trl_distillation.py trl

`GKDTrainer.generalized_jsd_loss` is extracted from its file and called unchanged. The loss is the forward KL at β = 0
and the reverse KL at β = 1.
"""

import ast
import json
import sys
from pathlib import Path

import numpy as np

BETAS = (0.0, 0.1, 0.5, 0.9, 1.0)
TEMPERATURE = 0.7


def extract_divergence(file, namespace):
    """Extract the static method `generalized_jsd_loss`, without its decorator."""
    (node,) = [
        node for node in ast.walk(ast.parse(file.read_text())) if getattr(node, "name", None) == "generalized_jsd_loss"
    ]
    node.decorator_list = []
    exec(ast.unparse(node), namespace)
    return namespace["generalized_jsd_loss"]


def main(trl):
    import torch
    import torch.nn.functional as F

    trl_divergence = extract_divergence(trl / "trl/experimental/gkd/gkd_trainer.py", {"torch": torch, "F": F})
    rng = np.random.default_rng(0)
    inputs = {"logits": 2 * rng.normal(size=(2, 3, 11)), "teacher_logits": 2 * rng.normal(size=(2, 3, 11))}
    logits = torch.tensor(inputs["logits"], requires_grad=True)
    outputs = {}
    for beta in BETAS:
        per_token = trl_divergence(
            logits, torch.tensor(inputs["teacher_logits"]), beta=beta, temperature=TEMPERATURE, reduction="none"
        ).sum(-1)
        (gradient,) = torch.autograd.grad(per_token.sum(), logits)
        outputs[str(beta)] = {"divergence": per_token.tolist(), "gradient": gradient.tolist()}
    contents = {name: array.tolist() for name, array in inputs.items()} | {"temperature": TEMPERATURE, "outputs": outputs}
    Path(__file__).with_name("trl_distillation.json").write_text(json.dumps(contents, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
