"""Launch recipes for clusters: the Slurm script (two processes stand for two nodes), the manifest and the image."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from small_cli import printed
from two_hosts import free_address

ROOT = Path(__file__).resolve().parents[2]
LAUNCH = ROOT / "experiments" / "launch"
SMALL = (
    "--steps 12 --no-keep-warm-start --warm-start-steps 1 --prompts 2 --group-size 4 --max-tries 1 --heldout-problems 8 "
    "--train-problems 24 --eval-every 0 --checkpoint-every 1 --width 16 --layers 1 --heads 2 --fsdp 2 --host-timeout 10"
)
SRUN = """#!{python}
import os, subprocess, sys
flags = [argument for argument in sys.argv[1:] if argument != "--kill-on-bad-exit=1"]
program = [sys.executable, "-m", "rljax", *flags[1:]]
common = {{"SLURM_STEP_NODELIST": "localhost", "SLURM_NTASKS": "2", "SLURM_LOCALID": "0"}}
tasks = [subprocess.Popen(program, env=os.environ | common | {{"SLURM_PROCID": str(n)}}) for n in range(2)]
if os.environ.get("LOSE") == "1":
    tasks[1].wait = lambda: None
    import time
    from pathlib import Path
    while not (Path(os.environ["RUN"]) / "checkpoints" / "last").exists():
        time.sleep(0.2)
    tasks[1].kill()
    sys.exit(tasks[0].wait())
sys.exit(max(task.wait() for task in tasks))
"""


@pytest.fixture
def environment(tmp_path):
    """Environment variables with fake Slurm commands on PATH and the settings of a small run."""
    commands = tmp_path / "bin"
    commands.mkdir()
    (commands / "srun").write_text(SRUN.format(python=sys.executable))
    (commands / "scontrol").write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/requeued\n')
    for file in commands.iterdir():
        file.chmod(0o755)
    port = int(free_address().rsplit(":", 1)[1])
    return os.environ | {
        "PATH": f"{commands}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "SLURM_JOB_ID": str(port),
        "RUN": str(tmp_path / "run"),
        "FLAGS": SMALL,
        "XLA_FLAGS": "--xla_force_host_platform_device_count=1",
    }


def submit(environment, **more):
    command = ["bash", str(LAUNCH / "slurm.sh")]
    return subprocess.run(
        command, env=environment | more, cwd=ROOT, capture_output=True, text=True, check=False, timeout=400
    )


def test_slurm_job_continues_after_lost_node(environment, tmp_path):
    lost = submit(environment, LOSE="1")
    assert lost.returncode == 75, lost.stderr
    assert (tmp_path / "requeued").read_text() == f"requeue {environment['SLURM_JOB_ID']}\n"
    done = submit(environment)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    steps = [row["step"] for row in rows if row.get("phase") == "rl"]
    assert steps == sorted(set(steps))
    assert steps[-1] == 12


def test_manifest_command_is_valid(capsys):
    manifest = yaml.safe_load((LAUNCH / "jobset.yaml").read_text())
    (job,) = manifest["spec"]["replicatedJobs"]
    pods = job["template"]["spec"]
    container = pods["template"]["spec"]["containers"][0]
    shell, flag, line = container["command"]
    assert (shell, flag) == ("/bin/sh", "-c")
    words = shlex.split(line.replace('"$JOB_COMPLETION_INDEX"', "0"))
    assert words[:3] == ["exec", "rljax", "train"]
    hosts, coordinator = (words[words.index(name) + 1] for name in ("--hosts", "--coordinator"))
    assert pods["parallelism"] == pods["completions"] == int(hosts)
    assert coordinator.startswith(f"{manifest['metadata']['name']}-{job['name']}-0-0.{manifest['metadata']['name']}:")
    assert int(coordinator.rsplit(":", 1)[1]) == container["ports"][0]["containerPort"]
    end = words.index("--run")
    assert "fsdp: 16" in printed(capsys, "config", *words[3:end])
    claims = {volume["name"] for volume in pods["template"]["spec"]["volumes"]}
    assert claims == {mount["name"] for mount in container["volumeMounts"]}


def test_image_has_package_version_and_no_root():
    lines = (LAUNCH / "Containerfile").read_text()
    version = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)[1]
    named = set(re.findall(r"rljax:(\d+\.\d+\.\d+)", lines + (LAUNCH / "jobset.yaml").read_text()))
    named |= set(re.findall(r"rljax:(\d+\.\d+\.\d+)", (ROOT / "notebooks" / "launching.md").read_text()))
    assert named == {version}
    assert re.search(r"^USER trainer$", lines, re.MULTILINE)
    steps = re.findall(r"^RUN (.+)$", lines, re.MULTILINE)
    for step in steps:
        subprocess.run([shutil.which("bash"), "-n", "-c", step], check=True)
