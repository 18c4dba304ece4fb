"""Write family_logits.json: the logits that `transformers` computes for the model folders of families.py. Needs PyTorch.

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

    logits = {}
    for name in CASES:
        with tempfile.TemporaryDirectory() as folder:
            model = AutoModelForCausalLM.from_pretrained(write_folder(Path(folder) / name, name))
            with torch.no_grad():
                logits[name] = model(torch.tensor(TOKENS)).logits[:, ::3].double().numpy().round(7).tolist()
    out = {"transformers": version("transformers"), "torch": torch.__version__, "logits": logits}
    Path(__file__).with_name("family_logits.json").write_text(json.dumps(out) + "\n")


if __name__ == "__main__":
    main()
