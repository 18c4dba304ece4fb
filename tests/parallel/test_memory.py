"""The total memory of a mesh's devices, from the limits that the devices report."""

from types import SimpleNamespace

import numpy as np
import pytest

from rljax.parallel.memory import agreed_device_bytes, device_bytes

pytestmark = pytest.mark.usefixtures("without_type_checks")


def fake_mesh(*memories):
    """Return a fake mesh of accelerators that report these memory statistics."""
    return SimpleNamespace(
        devices=np.array(
            [SimpleNamespace(platform="gpu", process_index=0, memory_stats=lambda stats=stats: stats) for stats in memories]
        )
    )


def test_device_bytes_is_summed_over_devices():
    mesh = fake_mesh({"bytes_limit": 3 << 30}, {"bytes_limit": 5 << 30})
    assert device_bytes(mesh) == agreed_device_bytes(mesh) == 8 << 30


@pytest.mark.parametrize("stats", [None, {}, {"bytes_in_use": 7}])
def test_device_bytes_is_none_if_a_device_reports_no_limit(stats):
    mesh = fake_mesh({"bytes_limit": 3 << 30}, stats)
    assert device_bytes(mesh) is agreed_device_bytes(mesh) is None
