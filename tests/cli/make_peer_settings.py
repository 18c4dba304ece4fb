"""Write `rljax/cli/peer_settings.json`: the names of all settings of the libraries that notebooks/coming_from.md compares.

The wheels are read, not installed:

    pip download --no-deps --dest wheels trl==1.16.0 transformers==5.23.0 verl==0.9.1 google-tunix==0.1.7 verifiers==0.4.0
    python tests/cli/make_peer_settings.py wheels
"""

import ast
import json
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

OUT = Path(__file__).resolve().parents[2] / "rljax" / "cli" / "peer_settings.json"
CLASSES = {
    "TRL": {
        "trl-*.whl": (
            *(("trl/trainer/grpo_config.py", "GRPOConfig"), ("trl/trainer/base_config.py", "_BaseConfig")),
            *(("trl/trainer/model_config.py", "ModelConfig"), ("trl/scripts/utils.py", "ScriptArguments")),
            ("trl/trainer/sft_config.py", "SFTConfig"),
        ),
        "transformers-*.whl": (("transformers/training_args.py", "TrainingArguments"),),
    },
    "Tunix": {
        "google_tunix-*.whl": (
            *(("tunix/rl/grpo/grpo_learner.py", "GRPOConfig"), ("tunix/rl/ppo/ppo_learner.py", "PPOConfig")),
            *(("tunix/rl/algorithm_config.py", "AlgorithmConfig"), ("tunix/rl/rl_cluster.py", "RLTrainingConfig")),
            *(("tunix/rl/rl_cluster.py", "ClusterConfig"), ("tunix/rl/rollout/base_rollout.py", "RolloutConfig")),
            ("tunix/sft/peft_trainer.py", "TrainingConfig"),
        )
    },
    "verifiers": {
        "verifiers-*.whl": (
            *(("verifiers/v1/configs/cli/eval.py", "EvalConfig"), ("verifiers/v1/configs/agent.py", "AgentConfig")),
            *(("verifiers/v1/types.py", "SamplingConfig"), ("verifiers/v1/configs/task.py", "TaskConfig")),
        )
    },
}
FUNCTIONS = {
    "TRL": (("trl-*.whl", "trl/trainer/grpo_trainer.py", "GRPOTrainer", ("__init__",)),),
    "Tunix": (("google_tunix-*.whl", "tunix/rl/rl_learner.py", "RLLearner", ("__init__", "train")),),
    "verifiers": (),
}
VERL = "verl/trainer/config/_generated_ppo_trainer.yaml"


def parse_file(folder: Path, wheel: str, file: str) -> ast.Module:
    """Parse a Python file inside a wheel."""
    (path,) = folder.glob(wheel)
    with zipfile.ZipFile(path) as archive:
        return ast.parse(archive.read(file))


def find_class(tree: ast.Module, name: str) -> ast.ClassDef:
    """Find the top-level class with this name."""
    return next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)


def fields_of(node: ast.ClassDef) -> list[str]:
    """Return the names of the annotated public fields of a class."""
    return [
        each.target.id
        for each in node.body
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name) and not each.target.id.startswith("_")
    ]


def arguments_of(node: ast.ClassDef, methods: tuple[str, ...]) -> list[str]:
    """Return the argument names of these methods of a class."""
    chosen = [each for each in node.body if isinstance(each, ast.FunctionDef) and each.name in methods]
    return [each.arg for method in chosen for each in (*method.args.args, *method.args.kwonlyargs) if each.arg != "self"]


def keys_of(content: Any, prefix: str = "") -> Iterator[str]:
    """Yield the dotted names of all values in a nested mapping."""
    for name, value in content.items():
        path = f"{prefix}{name}"
        if name == "_target_" or "profiler" in path:
            continue
        if isinstance(value, dict) and value:
            yield from keys_of(value, f"{path}.")
        else:
            yield path


def read_settings(folder: Path) -> dict[str, list[str]]:
    """Return the sorted setting names of each library."""
    found: dict[str, set[str]] = {library: set() for library in (*CLASSES, "verl")}
    for library, wheels in CLASSES.items():
        for wheel, classes in wheels.items():
            for file, name in classes:
                found[library] |= {*fields_of(find_class(parse_file(folder, wheel, file), name))}
        for wheel, file, name, methods in FUNCTIONS[library]:
            found[library] |= {*arguments_of(find_class(parse_file(folder, wheel, file), name), methods)}
    (path,) = folder.glob("verl-*.whl")
    with zipfile.ZipFile(path) as archive:
        found["verl"] = {*keys_of(yaml.safe_load(archive.read(VERL)))}
    return {library: sorted(names) for library, names in found.items()}


if __name__ == "__main__":
    OUT.write_text(json.dumps(read_settings(Path(sys.argv[1])), indent=0) + "\n", encoding="utf-8")
