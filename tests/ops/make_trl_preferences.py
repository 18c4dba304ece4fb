"""Write trl_preferences.json: losses and gradients of TRL's code, in float64 with PyTorch. The tests do not run this script.

Generated with TRL at commit f2cd57710ae345ea6428ae95363267fcf38a3dc8 and torch 2.13.0:

    pip install torch==2.13.0 numpy
    git clone https://github.com/huggingface/trl && git -C trl checkout f2cd57710ae345ea6428ae95363267fcf38a3dc8
    python tests/ops/make_trl_preferences.py trl

The branches of DPO, IPO and KTO are extracted from their methods; `cpo_loss` and `odds_ratio_loss` are called unchanged.
`odds_ratio_loss` casts to float32; this script replaces that cast with one to float64.
"""

import ast
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np

BETAS = {"dpo": 0.3, "ipo": 0.2, "kto": 0.3, "simpo": 2.5, "orpo": 0.4}
GAMMA, WEIGHTS = 1.4, (1.25, 0.75)
TRAINER, EXPERIMENTAL = "trl/trainer", "trl/experimental"


def extract_branches(file, loss_type):
    """Yield the assignments in each branch that the file takes for this loss type, in file order."""
    for node in ast.walk(ast.parse(file.read_text())):
        match node:
            case ast.If(test=ast.Compare(comparators=[ast.Constant(value=name)])) if name == loss_type:
                yield ast.unparse(ast.Module([part for part in node.body if isinstance(part, ast.Assign)], []))


def extract_function(file, name, namespace):
    """Extract one function or method from a file."""
    nodes = [node for node in ast.walk(ast.parse(file.read_text())) if getattr(node, "name", None) == name]
    exec(ast.unparse(nodes[0]), namespace)
    return namespace[name]


def sample_inputs():
    """Summed log-probabilities and lengths of 12 pairs, and log-probabilities of 24 mismatched responses."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 30, (2, 12)).astype(float)
    logp = -rng.uniform(0.02, 2.0, (2, 12)) * lengths
    ref_logp = logp + rng.normal(0, 3, (2, 12))
    other = -rng.uniform(20, 40, 24)
    ref_other = other - rng.normal(0.4, 1, 24)
    return {"logp": logp, "ref_logp": ref_logp, "lengths": lengths, "other": other, "ref_other": ref_other}


def main(trl):
    import torch
    import torch.nn.functional as F

    inputs = sample_inputs()
    lengths = inputs["lengths"]
    torch.Tensor.float = torch.Tensor.double
    tensor = {name: torch.tensor(array) for name, array in inputs.items()}
    tensor["logp"].requires_grad_(True)
    (chosen, rejected), (ref_chosen, ref_rejected) = tensor["logp"], tensor["ref_logp"]
    mean_chosen, mean_rejected = tensor["logp"] / tensor["lengths"]
    accelerator = SimpleNamespace(device="cpu", gather_for_metrics=lambda x: x)
    losses, space = {}, {"torch": torch, "F": F}

    for name, loss_type in (("dpo", "sigmoid"), ("ipo", "ipo")):
        mask = torch.zeros(24, 30)
        for row, length in enumerate(lengths.reshape(-1).astype(int)):
            mask[row, :length] = 1
        names = space | {
            **{"self": SimpleNamespace(beta=BETAS[name]), "completion_mask": mask},
            **{"chosen_scores": chosen - ref_chosen, "rejected_scores": rejected - ref_rejected},
            "delta_score": (chosen - ref_chosen) - (rejected - ref_rejected),
        }
        exec(next(extract_branches(trl / TRAINER / "dpo_trainer.py", loss_type)), names)
        losses[name] = names["per_sequence_loss"]

    kl = (tensor["other"] - tensor["ref_other"]).mean().clamp(min=0)
    names = space | {
        **{"self": SimpleNamespace(beta=BETAS["kto"]), "kl": kl},
        **{"chosen_logratios": chosen - ref_chosen, "rejected_logratios": rejected - ref_rejected},
    }
    for branch in extract_branches(trl / TRAINER / "kto_trainer.py", "kto"):
        exec(branch, names)
    losses["kto"] = torch.stack([WEIGHTS[0] * names["chosen_losses"], WEIGHTS[1] * names["rejected_losses"]])

    cpo = extract_function(trl / EXPERIMENTAL / "cpo" / "cpo_trainer.py", "cpo_loss", dict(space))
    settings = {"loss_type": "simpo", "alpha": 0.0, "label_smoothing": 0.0, "simpo_gamma": GAMMA, "beta": BETAS["simpo"]}
    losses["simpo"] = cpo(SimpleNamespace(**settings, accelerator=accelerator), mean_chosen, mean_rejected)[0]

    file = trl / EXPERIMENTAL / "orpo" / "orpo_trainer.py"
    extract_function(file, "log1mexp", space)
    odds = extract_function(file, "odds_ratio_loss", space)
    settings = SimpleNamespace(beta=BETAS["orpo"], accelerator=accelerator)
    losses["orpo"] = -odds(settings, mean_chosen, mean_rejected)[0]  # `loss = policy_nll_loss - losses.mean()`

    outputs = {}
    for name, loss in losses.items():
        (gradient,) = torch.autograd.grad(loss.sum(), tensor["logp"], retain_graph=True)
        outputs[name] = {"loss": loss.tolist(), "gradient": gradient.tolist(), "beta": BETAS[name]}
    outputs["kto"] |= {"reference_point": float(kl), "weights": WEIGHTS}
    outputs["simpo"] |= {"margin": GAMMA}
    contents = {"inputs": {name: array.tolist() for name, array in inputs.items()}, "outputs": outputs}
    Path(__file__).with_name("trl_preferences.json").write_text(json.dumps(contents, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
