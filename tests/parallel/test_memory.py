"""How much memory the devices report."""

from types import SimpleNamespace

import numpy as np
import pytest

from rljax.parallel.memory import agreed_device_bytes, device_bytes

pytestmark = pytest.mark.usefixtures("without_type_checks")


def mesh_of(*memories):
    """Return a mesh of accelerators with these memory statistics."""
    return SimpleNamespace(
        devices=np.array(
            [SimpleNamespace(platform="gpu", process_index=0, memory_stats=lambda stats=stats: stats) for stats in memories]
        )
    )


def test_the_memory_of_a_mesh_is_summed_over_its_devices():
    mesh = mesh_of({"bytes_limit": 3 << 30}, {"bytes_limit": 5 << 30})
    assert device_bytes(mesh) == agreed_device_bytes(mesh) == 8 << 30


@pytest.mark.parametrize("stats", [None, {}, {"bytes_in_use": 7}])
def test_the_memory_is_unknown_if_a_device_does_not_report_it(stats):
    mesh = mesh_of({"bytes_limit": 3 << 30}, stats)
    assert device_bytes(mesh) is agreed_device_bytes(mesh) is None
