"""Plans for absent devices, compiled with the devices' own compilers if those are installed."""

from importlib.util import find_spec

import pytest

from rljax.cli import main
from rljax.errors import InputError
from rljax.programs import topology
from rljax.programs.plan import plan_of
from rljax.programs.topology import topology_of
from rljax.training.config import TrainConfig

CONFIG = TrainConfig.flat(
    task="sums",
    algorithm="grpo",
    algorithm_options={"beta": 0.04},
    layers=2,
    width=256,
    heads=2,
    kv_heads=2,
    hidden=1024,
    prompts=8,
    group_size=4,
    max_response_tokens=128,
    dtype="bfloat16",
    remat="full",
    fsdp=4,
)
PACKAGES = {"v5e:2x2": "libtpu", "2xv5e:2x2": "libtpu", "h100x4": "jax_cuda13_plugin"}


@pytest.mark.parametrize("name", ["v5e", "v9:2x2", "h100", "h100x0", "h100x-1", "v5e:2x2 ", "1xv5e:2x2", "x2v5e:2x2", ""])
def test_unknown_topology_is_refused(name):
    with pytest.raises(InputError, match=r"is unknown; name a slice of TPUs \(v5e, v5p, v6e\) such as v5e:2x2"):
        topology_of(name)


@pytest.mark.parametrize(("name", "requirement"), [("v5e:2x2", "jax[tpu]"), ("h100x8", "jax[cuda13]")])
def test_absent_compiler_is_named(name, requirement, monkeypatch):
    def version(package):
        raise topology.PackageNotFoundError(package)

    monkeypatch.setattr(topology, "version", version)
    with pytest.raises(InputError) as caught:
        topology_of(name)
    assert f"run `pip install '{requirement}'`" in str(caught.value)


def test_topology_excludes_other_device_flags(capsys):
    assert main(["plan", "--topology", "v5e:2x2", "--device", "v5e"]) == 2
    assert "leave out --device and --device-count" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("name", PACKAGES)
def test_plan_uses_the_devices_own_compiler(name):
    if find_spec(PACKAGES[name]) is None:
        pytest.skip(f"{PACKAGES[name]} is not installed, so nothing compiles for {name}")
    absent = topology_of(name)
    plan = plan_of(CONFIG, len(absent.devices), 128, devices=absent.devices)
    assert absent.compiler.split()[0] == PACKAGES[name].replace("_", "-")
    assert plan.temporaries > 0
    assert min(plan.phases[phase].sent for phase in ("sample", "score", "update")) > 0


def test_nonexistent_slice_is_refused():
    if find_spec("libtpu") is None:
        pytest.skip("libtpu is not installed, so slices of TPUs cannot be checked")
    with pytest.raises(InputError, match=r"the compiler rejects --topology v5e:2x3: .*not divisible"):
        topology_of("v5e:2x3")
