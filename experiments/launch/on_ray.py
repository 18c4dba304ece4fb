"""Train on all nodes of a Ray cluster, with the flags of `rljax train`.

    python experiments/launch/on_ray.py --model FOLDER --dataset rows.jsonl --run /shared/runs/one

Each node runs `rljax train` with these flags and the address of the first node. rljax must be installed on every node.
"""

import subprocess
import sys

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

PORT = 4321


@ray.remote(max_retries=0)
def train(flags: list[str]) -> int:
    """Run `rljax train` on this node, and return its exit code."""
    return subprocess.run([sys.executable, "-m", "rljax", "train", *flags], check=False).returncode


ray.init("auto")
nodes = [node for node in ray.nodes() if node["Alive"]]
join_flags = ["--resume", "auto", "--coordinator", f"{nodes[0]['NodeManagerAddress']}:{PORT}", "--hosts", str(len(nodes))]
codes = []
for index, node in enumerate(nodes):
    strategy = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
    codes.append(train.options(scheduling_strategy=strategy).remote([*sys.argv[1:], *join_flags, "--host", str(index)]))
sys.exit(max(ray.get(codes)))
