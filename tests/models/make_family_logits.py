"""Write family_logits.json: logits that `transformers` computes for the model folders that families.py writes. Needs PyTorch.

Command: PYTHONPATH=tests python tests/models/make_family_logits.py
"""

import json
import tempfile
from importlib.metadata import version
from pathlib import Path

from models.families import CASES, TOKENS, write_folder
from transformers import AutoModelForCausalLM


def main():
    import torch

    found = {}
    for name in CASES:
        with tempfile.TemporaryDirectory() as folder:
            model = AutoModelForCausalLM.from_pretrained(write_folder(Path(folder) / name, name))
            with torch.no_grad():
                found[name] = model(torch.tensor(TOKENS)).logits[:, ::3].double().numpy().round(7).tolist()
    out = {"transformers": version("transformers"), "torch": torch.__version__, "logits": found}
    Path(__file__).with_name("family_logits.json").write_text(json.dumps(out) + "\n")


if __name__ == "__main__":
    main()
