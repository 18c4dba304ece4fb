"""Work that several processes share: in one process here, in two over the loopback."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from two_hosts import on_two_hosts

from rljax.errors import InputError
from rljax.parallel import any_host, divide, fetch, is_first, make_mesh, of_first, on_first, put_rows, shardings, together
from rljax.parallel.hosts import join

PROGRAM = '''
"""Everything that two hosts do together; each prints what it saw."""
import json, sys
import jax, numpy as np
from rljax.errors import InputError
from rljax.parallel import any_host, divide, fetch, is_first, make_mesh, of_first, on_first, put_rows, together
from rljax.parallel.hosts import join

_, address, _, hosts, _, host = sys.argv[1:]
join(address, hosts=int(hosts), host=int(host))
mesh, asked, written = make_mesh(None, 1), [], []

def judge(rows):
    asked.extend(rows.tolist())
    return {"twice": 2.0 * rows, "odd": rows % 2 == 1, "wide": rows[:, None] * np.ones(3, np.float32)}

def fail_on_the_second():
    if not is_first():
        raise ValueError("here")

def refusal(work):
    try:
        work()
    except Exception as error:
        return type(error).__name__, str(error)

rows = put_rows(mesh, np.arange(4.0))
shared = divide(5, judge)
on_first(lambda: written.append("file"))
print(json.dumps({
    "asked": asked,
    "shared": {name: array.tolist() for name, array in shared.items()},
    "dtypes": [str(array.dtype) for array in shared.values()],
    "any": [any_host(not is_first()), any_host(False)],
    "of_first": of_first({"x": np.asarray(int(host) + 7), "nan": np.float32("nan"), "flag": np.asarray([is_first()])})["x"].item(),
    "fetched": fetch({"rows": rows, "sum": rows.sum(), "host": np.ones(2)})["rows"].tolist(),
    "written": written,
    "refusal": refusal(lambda: together(fail_on_the_second)),
    "mesh": refusal(lambda: make_mesh(1, 1)),
}))
'''


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    program = tmp_path_factory.mktemp("hosts") / "program.py"
    program.write_text(PROGRAM)
    ended = on_two_hosts([str(program)])
    assert [process.returncode for process in ended] == [0, 0], [process.stderr[-2000:] for process in ended]
    return [json.loads(process.stdout.splitlines()[-1]) for process in ended]


def test_two_hosts_divide_the_rows_and_know_all_answers(two):
    assert [host["asked"] for host in two] == [[0, 1, 2], [3, 4, 0]]
    for host in two:
        assert host["shared"]["twice"] == [0, 2, 4, 6, 8]
        assert host["shared"]["odd"] == [False, True, False, True, False]
        assert host["shared"]["wide"] == [[row] * 3 for row in range(5)]
        assert host["dtypes"] == ["bool", "float32", "float32"]


def test_two_hosts_agree(two):
    for host in two:
        assert host["any"] == [True, False]
        assert host["of_first"] == 7


def test_two_hosts_fetch_what_is_spread_over_both(two):
    assert [host["fetched"] for host in two] == [[0, 1, 2, 3]] * 2


def test_the_first_of_two_hosts_writes(two):
    assert [host["written"] for host in two] == [["file"], []]


def test_what_fails_on_one_host_stops_both(two):
    assert two[0]["refusal"] == ["InputError", "Host 1 of 2 could not go on; it says why."]
    assert two[1]["refusal"] == ["ValueError", "here"]


def test_a_mesh_without_a_device_of_some_host_is_refused(two):
    for host in two:
        assert host["mesh"][0] == "InputError"
        assert "has no device of host 1" in host["mesh"][1]


def test_one_process_is_the_first_of_one():
    done = []
    assert is_first()
    assert any_host(True)
    assert not any_host(False)
    assert of_first({"x": 3})["x"] == 3
    on_first(lambda: done.append(1))
    assert done == [1]
    np.testing.assert_array_equal(divide(3, lambda rows: rows + 1), [1, 2, 3])
    with pytest.raises(KeyError, match="mine"):
        together(lambda: {}["mine"])


def test_fetched_arrays_are_whole():
    rows = put_rows(make_mesh(4, 2), np.arange(16.0).reshape(8, 2))
    fetched = fetch({"rows": rows, "host": np.ones(2)})
    assert isinstance(fetched["rows"], np.ndarray)
    np.testing.assert_array_equal(fetched["rows"], np.arange(16.0).reshape(8, 2))


def test_whole_numbers_are_repeated_and_floats_spread():
    mesh = make_mesh(1, 2)
    key, weight = jax.ShapeDtypeStruct((2,), jnp.uint32), jax.ShapeDtypeStruct((2,), jnp.float32)
    assert shardings(mesh, [key, weight]) == [
        NamedSharding(mesh, PartitionSpec(None)),
        NamedSharding(mesh, PartitionSpec("fsdp")),
    ]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("here:1", None, 0), "cannot be joined: give the address as ADDRESS:PORT"),
        (("here:1", 2, None), "cannot be joined"),
        (("here:1", 2, 2), "cannot be joined"),
        (("here", 2, 0), "cannot be joined"),
        (("auto", 2, None), "hosts and host are found too"),
        (("127.0.0.1:1", 2, 0), "No other hosts were found from coordinator='127.0.0.1:1': .*before any JAX calls"),
    ],
)
def test_hosts_that_cannot_be_joined_are_refused(given, message):
    address, hosts, host = given
    jax.devices()
    with pytest.raises(InputError, match=message):
        join(address, hosts=hosts, host=host)
