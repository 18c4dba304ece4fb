"""Functions that hosts call together, on one host and on two that communicate over the loopback interface."""

import json
import re
import socket
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from two_hosts import free_address, run_on_two_hosts

from rljax.errors import InputError
from rljax.parallel import (
    agree,
    any_host,
    copy_from_first,
    divide,
    fetch,
    hosts,
    is_first,
    make_mesh,
    put_rows,
    run_on_first,
    run_together,
    shardings,
)
from rljax.parallel.joining import check_rendezvous, join

PROGRAM = '''
"""Call every function that hosts call together; each host prints its results."""
import json, signal, sys
import jax, numpy as np
from rljax.errors import InputError
from rljax.parallel import agree, any_host, divide, fetch, is_first, make_mesh, of_first, on_first, put_rows, together
from rljax.parallel.hosts import min_over_hosts
from rljax.parallel.joining import join

_, address, _, hosts, _, host = sys.argv[1:]
join(address, hosts=int(hosts), host=int(host))
mesh, calls, written = make_mesh(None, 1), [], []

def judge(rows):
    calls.extend(rows.tolist())
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
first = of_first({"x": np.asarray(int(host) + 7), "nan": np.float32("nan"), "flag": np.asarray([is_first()])})
on_first(lambda: written.append("file"))
print(json.dumps({
    "calls": calls,
    "shared": {name: array.tolist() for name, array in shared.items()},
    "dtypes": [str(array.dtype) for array in shared.values()],
    "any": [any_host(not is_first()), any_host(False)],
    "min_over_hosts": [min_over_hosts((7 - int(host)) * 2**30), min_over_hosts(None if is_first() else 2**30)],
    "copy_from_first": {name: array.tolist() for name, array in first.items()},
    "of_first_dtypes": {name: str(array.dtype) for name, array in first.items()},
    "fetched": {name: array.tolist() for name, array in fetch({"rows": rows, "sum": rows.sum(), "host": np.ones(2)}).items()},
    "terminates": signal.getsignal(signal.SIGTERM) == signal.SIG_DFL,
    "agreed": [refusal(lambda: agree("number", "1")), refusal(lambda: agree("host", host))],
    "written": written,
    "refusal": refusal(lambda: together(fail_on_the_second)),
    "mesh": refusal(lambda: make_mesh(1, 1)),
}))
'''


@pytest.fixture(scope="module")
def two_hosts_results(tmp_path_factory):
    program = tmp_path_factory.mktemp("hosts") / "program.py"
    program.write_text(PROGRAM)
    processes = run_on_two_hosts([str(program)])
    assert [process.returncode for process in processes] == [0, 0], [process.stdout[-2000:] for process in processes]
    return [json.loads(process.stdout.splitlines()[-1]) for process in processes]


def test_divide_gives_both_hosts_all_results(two_hosts_results):
    assert [host["calls"] for host in two_hosts_results] == [[0, 1, 2], [3, 4, 0]]
    for host in two_hosts_results:
        assert host["shared"]["twice"] == [0, 2, 4, 6, 8]
        assert host["shared"]["odd"] == [False, True, False, True, False]
        assert host["shared"]["wide"] == [[row] * 3 for row in range(5)]
        assert host["dtypes"] == ["bool", "float32", "float32"]


def test_hosts_agree_on_values(two_hosts_results):
    for host in two_hosts_results:
        assert host["any"] == [True, False]
        assert host["min_over_hosts"] == [6 * 2**30, None]
        assert host["copy_from_first"] == {"x": 7, "nan": pytest.approx(np.nan, nan_ok=True), "flag": [True]}
        assert host["of_first_dtypes"] == {"x": "int32", "nan": "float32", "flag": "bool"}
        assert host["agreed"] == [
            None,
            ["InputError", "The hosts do not have the same host; start all of them with the same arguments and files."],
        ]


def test_join_keeps_the_default_sigterm_handler(two_hosts_results):
    assert [host["terminates"] for host in two_hosts_results] == [True, True]


def test_fetch_gathers_arrays_of_both_hosts(two_hosts_results):
    for host in two_hosts_results:
        assert host["fetched"] == {"rows": [0, 1, 2, 3], "sum": 6, "host": [1, 1]}


def test_on_first_runs_on_the_first_host_only(two_hosts_results):
    assert [host["written"] for host in two_hosts_results] == [["file"], []]


def test_together_fails_on_both_hosts(two_hosts_results):
    assert two_hosts_results[0]["refusal"] == [
        "InputError",
        "Host 1 (of hosts 0 to 1) failed; see its output for the reason.",
    ]
    assert two_hosts_results[1]["refusal"] == ["ValueError", "here"]


def test_mesh_without_a_device_of_each_host_is_refused(two_hosts_results):
    for host in two_hosts_results:
        assert host["mesh"][0] == "InputError"
        assert "has no device of host 1" in host["mesh"][1]


def test_single_process_is_the_first_host():
    done = []
    assert is_first()
    assert any_host(True)
    assert not any_host(False)
    assert copy_from_first({"x": 3})["x"] == 3
    agree("settings", "{}")
    run_on_first(lambda: done.append(1))
    assert done == [1]
    np.testing.assert_array_equal(divide(3, lambda rows: rows + 1), [1, 2, 3])
    with pytest.raises(KeyError, match="mine"):
        run_together(lambda: {}["mine"])


def test_fetched_arrays_are_complete():
    rows = put_rows(make_mesh(4, 2), np.arange(16.0).reshape(8, 2))
    fetched = fetch({"rows": rows, "host": np.ones(2)})
    assert isinstance(fetched["rows"], np.ndarray)
    np.testing.assert_array_equal(fetched["rows"], np.arange(16.0).reshape(8, 2))


def test_integer_arrays_are_replicated_and_float_arrays_sharded():
    mesh = make_mesh(1, 2)
    key, weight = jax.ShapeDtypeStruct((2,), jnp.uint32), jax.ShapeDtypeStruct((2,), jnp.float32)
    assert shardings(mesh, [key, weight]) == [
        NamedSharding(mesh, PartitionSpec(None)),
        NamedSharding(mesh, PartitionSpec("fsdp")),
    ]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (("here:1", None, 0), "cannot be joined: set the address as ADDRESS:PORT"),
        (("here:1", 2, None), "cannot be joined"),
        (("here:1", 2, 2), "cannot be joined"),
        (("here", 2, 0), "cannot be joined"),
        (("auto", 2, None), "hosts and host must be left out"),
        (("here:", 2, 0), "cannot be joined"),
        (("here:x", 2, 0), "cannot be joined"),
        ((":4321", 2, 0), "cannot be joined"),
        (("auto", None, None), "could not be joined: .*before any JAX calls"),
    ],
)
def test_invalid_host_settings_are_refused(settings, message):
    address, hosts, host = settings
    jax.devices()
    with pytest.raises(InputError, match=message):
        join(address, hosts=hosts, host=host)


def test_port_in_use_is_refused():
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=f"Host 0 cannot listen on port {port} .*; choose another port"):
            join(f"127.0.0.1:{port}", hosts=2, host=0)


def test_first_host_is_found_at_an_ipv6_address():
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as first:
        check_rendezvous("[::1]", first.getsockname()[1], is_first=False, patience=0.3)


def test_missing_first_host_is_reported():
    address = free_address()
    with pytest.raises(InputError, match=f"Host 0 was not found at {address} in 0.3 s .*; start host 0"):
        join(address, hosts=2, host=1, patience=0.3)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems return memory by themselves")
@pytest.mark.parametrize(("size", "trims"), [(hosts.TRIM_THRESHOLD - 1, []), (hosts.TRIM_THRESHOLD, [0])])
def test_only_large_processes_return_freed_memory(monkeypatch, size, trims):
    calls = []
    monkeypatch.setattr(hosts, "_resident_bytes", lambda: size)
    monkeypatch.setattr(hosts.ctypes, "CDLL", lambda name: SimpleNamespace(malloc_trim=calls.append))
    hosts.return_freed_memory()
    assert calls == trims


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_resident_memory_matches_proc_self_status():
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    expected = 1024 * int(re.search(r"VmRSS:\s*(\d+)", status)[1])
    assert hosts._resident_bytes() == pytest.approx(expected, rel=0.05)
