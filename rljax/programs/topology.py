"""Absent devices whose compilers are installed: TPU slices (`libtpu`) and H100s (JAX's CUDA plugin).

Programs compile for these devices, so their memory and communication can be measured, but nothing can run.
"""

import os
import re
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

from jax.experimental import topologies

from rljax.errors import InputError

TPU_KINDS = ("v5e", "v5p", "v6e")
H100 = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048 core_count: 132 fpus_per_core: 128
  shared_memory_per_block: 49152 shared_memory_per_core: 233472 shared_memory_per_block_optin: 232448
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
  memory_bandwidth: 3352320000000 l2_cache_size: 52428800 clock_rate_ghz: 1.98 device_memory_size: 84942979072
  cuda_compute_capability { major: 9 }
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 10 patch: 0 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""
"""Description of an H100 SXM5 board for XLA: the manufacturer's figures, as a `GpuTargetConfigProto`."""
LIBTPU_VARIABLES = {
    "TPU_SKIP_MDS_QUERY": "1",  # do not query the metadata server of a cloud machine
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_ID": "0",
    "TPU_WORKER_HOSTNAMES": "localhost",
}
"""Environment variables that let `libtpu` load on a machine without a TPU; any accelerator type will do."""


class Topology(NamedTuple):
    """Devices that programs can be compiled for."""

    devices: list[Any]
    """The devices, which need not be present."""
    kind: str
    """Kind of the devices, a key of `rljax.programs.roofline.DEVICES`."""
    compiler: str
    """Package that compiles for these devices, and its version."""


def topology_of(name: str) -> Topology:
    """Return absent devices to compile for.

    Args:
        name: a slice of TPUs, such as "v5e:2x2" or "v5p:2x2x2", several equal slices, such as "2xv5e:2x2", or a number of GPUs on
            one machine, such as "h100x8".

    Raises:
        InputError: the name is unknown, there is no such slice, or the compiler's package is not installed.
    """
    gpus = re.fullmatch(r"h100x(\d+)", name)
    slices = re.fullmatch(rf"(?:([2-9]|\d\d+)x)?((?P<kind>{'|'.join(TPU_KINDS)}):[\dx]+)", name)
    if gpus and int(gpus.group(1)):
        compiler = _package_version("jax-cuda13-plugin", "jax[cuda13]", name)
        options = {"topology": f"1x1x{gpus.group(1)}", "target_config": H100}
        return Topology(_devices("cuda", "1x1x1", name, options), "h100", compiler)
    if slices:
        compiler = _package_version("libtpu", "jax[tpu]", name)
        for variable, value in LIBTPU_VARIABLES.items():
            os.environ.setdefault(variable, value)
        options = {} if slices.group(1) is None else {"num_slices": int(slices.group(1))}
        return Topology(_devices("tpu", slices.group(2), name, options), slices["kind"], compiler)
    raise InputError(
        f"--topology {name!r} is unknown; name a slice of TPUs ({', '.join(TPU_KINDS)}) such as v5e:2x2 or v5p:2x2x2, several "
        "such as 2xv5e:2x2, or H100s on one machine such as h100x8."
    )


def _package_version(package: str, requirement: str, name: str) -> str:
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        raise InputError(
            f"--topology {name} needs the compiler of these devices; run `pip install '{requirement}'`, or plan with the compiler "
            "for CPUs: --device and --device-count in place of --topology."
        ) from None


def _devices(platform: str, shape: str, name: str, options: dict[str, Any]) -> list[Any]:
    try:
        return list(topologies.get_topology_desc(platform=platform, topology_name=shape, **options).devices)
    except (RuntimeError, NotImplementedError, ValueError) as error:  # JaxRuntimeError is a RuntimeError
        raise InputError(f"the compiler rejects --topology {name}: {str(error).splitlines()[0]}") from error
