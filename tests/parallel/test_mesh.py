"""Meshes of simulated devices, and the sharding of parameters and rows over them."""

import math
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from rljax.errors import InputError
from rljax.parallel import check_rows, make_mesh, put_rows, shardings
from rljax.parallel.mesh import arrange_slices


def test_all_devices_are_used_by_default():
    assert dict(make_mesh(None, 1).shape) == {"data": 8, "fsdp": 1, "tensor": 1}
    assert dict(make_mesh(None, 4).shape) == {"data": 2, "fsdp": 4, "tensor": 1}


def test_mesh_has_a_tensor_axis():
    assert dict(make_mesh(None, 2, 2).shape) == {"data": 2, "fsdp": 2, "tensor": 2}


def test_smaller_mesh_uses_the_first_devices():
    assert list(make_mesh(1, 2).devices.flat) == jax.devices()[:2]


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ((3, 4), "replicas=3 x fsdp=4 x tensor=1 needs 12 devices, but there are 8"),
        ((2, 2, 4), "replicas=2 x fsdp=2 x tensor=4 needs 16 devices"),
        ((None, 3), "fsdp=3 x tensor=1 does not divide the 8 devices"),
        ((None, 2, 3), "fsdp=2 x tensor=3 does not divide the 8 devices"),
        ((0, 1), "has an axis below 1"),
        ((1, 0), "has an axis below 1"),
        ((1, 1, 0), "has an axis below 1"),
    ],
)
def test_meshes_that_do_not_fit_are_refused(axes, message):
    with pytest.raises(InputError, match=message):
        make_mesh(*axes)


def fake_devices(slices, per_slice):
    """Return fake devices of several slices, numbered slice by slice."""
    return [
        SimpleNamespace(
            id=slice_ * per_slice + index, slice_index=slice_, platform="gpu", device_kind="GPU", process_index=slice_
        )
        for slice_ in range(slices)
        for index in range(per_slice)
    ]


@pytest.mark.parametrize(
    ("axes", "slices", "crossed"),
    [
        ({"data": 2, "fsdp": 4, "tensor": 1}, 2, {"data"}),
        ({"data": 4, "fsdp": 1, "tensor": 2}, 4, {"data"}),
        ({"data": 1, "fsdp": 4, "tensor": 2}, 2, {"fsdp"}),
        ({"data": 2, "fsdp": 4, "context": 2, "tensor": 1}, 4, {"data", "fsdp"}),
    ],
)
def test_slices_split_the_data_axis_first(axes, slices, crossed):
    count = math.prod(axes.values())
    arranged = arrange_slices(axes, fake_devices(slices, count // slices))
    assert arranged.shape == tuple(axes.values())
    slice_indices = np.vectorize(lambda device: device.slice_index)(arranged)
    assert sorted(device.id for device in arranged.flat) == list(range(count))
    actual = {name for axis, name in enumerate(axes) if (slice_indices != slice_indices.take([0], axis=axis)).any()}
    assert actual == crossed, "only neighbors along these axes are in different slices"


@pytest.mark.parametrize(
    ("axes", "devices", "message"),
    [
        (
            {"data": 1, "fsdp": 1, "tensor": 8},
            fake_devices(2, 4),
            "cannot be divided over 2 slices; choose replicas as a mult",
        ),
        ({"data": 1, "fsdp": 6, "tensor": 1}, fake_devices(2, 4)[:6], "uses 2 devices of one slice and 4 of another"),
    ],
)
def test_meshes_that_slices_do_not_divide_are_refused(axes, devices, message):
    with pytest.raises(InputError, match=message):
        arrange_slices(axes, devices)


def test_rows_that_devices_do_not_divide_are_refused():
    check_rows(make_mesh(None, 1), rows=16)
    check_rows(make_mesh(None, 1, 4), rows=2)
    with pytest.raises(InputError, match="rows is 12 rows, which cannot be split evenly over 8 devices"):
        check_rows(make_mesh(None, 1), rows=12)


def test_parameters_are_sharded_over_fsdp_and_replicated_over_data():
    mesh = make_mesh(2, 4)
    tree = {"matrix": jnp.zeros((3, 8, 16)), "odd": jnp.zeros((3, 5)), "scalar": jnp.zeros(())}
    specs = jax.tree.map(lambda sharding: sharding.spec, shardings(mesh, tree))
    assert specs == {
        "matrix": PartitionSpec(None, None, "fsdp"),
        "odd": PartitionSpec(None, None),
        "scalar": PartitionSpec(),
    }


def test_rows_are_sharded_over_every_device():
    rows = put_rows(make_mesh(2, 4), jnp.zeros((16, 3)))
    assert {shard.data.shape for shard in rows.addressable_shards} == {(2, 3)}
    stacked = put_rows(make_mesh(2, 4), jnp.zeros((5, 16, 3)), leading=1)
    assert {shard.data.shape for shard in stacked.addressable_shards} == {(5, 2, 3)}


def test_rows_are_replicated_over_tensor():
    rows = put_rows(make_mesh(2, 2, 2), jnp.arange(8))
    assert [shard.data.tolist() for shard in rows.addressable_shards] == [[0, 1]] * 2 + [[2, 3]] * 2 + [[4, 5]] * 2 + [
        [6, 7]
    ] * 2
