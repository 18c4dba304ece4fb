"""Count the bytes that a compiled program moves between devices, by reading the program's text."""

import math
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

KINDS = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")
"""Operations that move arrays between devices."""

_ARRAY = re.compile(r"\b([a-z]+[0-9a-z]*)\[([0-9,]*)\]")
_HEADER = re.compile(r"^(?:ENTRY )?%([\w.\-]+) \(.*\{$")
_OPERATION = re.compile(rf"^\s*(?:ROOT )?%[\w.\-]+ = (.*?) ({'|'.join(KINDS)})(?:-start)?\(")
_CALLED = re.compile(r"(?:calls|to_apply|body|condition|true_computation|false_computation)=%([\w.\-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_CONDITION = re.compile(r"condition=%([\w.\-]+)")
_COMPARED = re.compile(r"^\s*ROOT .* compare\(%[\w.\-]+, %([\w.\-]+)\), direction=LT")
_CHANNEL = re.compile(r"channel_id=(\d+)")


class Collective(NamedTuple):
    """One operation of a program that moves arrays between devices."""

    kind: str
    """One of `KINDS`."""
    size: int
    """Bytes of the operation's result on one device."""
    devices: int
    """Number of devices in each group that exchanges data."""
    times: int
    """Number of times that the operation runs: the product of the trip counts of the loops around it."""

    @property
    def sent(self) -> float:
        """Bytes that each device sends in all runs of the operation, if the devices of a group form a ring.

        ::

            all-gather, all-to-all  s (n - 1) / n        reduce-scatter  s (n - 1)
            all-reduce              2 s (n - 1) / n      permute         s

        Example:
            >>> Collective("all-gather", 800, 8, 2).sent, Collective("reduce-scatter", 100, 8, 1).sent
            (1400.0, 700.0)
        """
        size, n = self.size, self.devices
        bytes_per_run = {
            "all-gather": size * (n - 1) / n,
            "all-to-all": size * (n - 1) / n,
            "all-reduce": 2 * size * (n - 1) / n,
            "reduce-scatter": float(size * (n - 1)),
            "collective-permute": float(size),
        }
        return self.times * bytes_per_run[self.kind]


def collectives(text: str) -> list[Collective]:
    """Find the operations of a program that move arrays between devices; groups of one device move nothing, and are left out.

    A loop with an unknown trip count counts as one trip. If an operation runs concurrently with others, the TPU compiler lists its
    steps separately; steps with the same channel are one operation.

    Args:
        text: text of a compiled program, from `jax.stages.Compiled.as_text`.
    """
    bodies = _split_computations(text)
    times = _count_runs(bodies)
    found: dict[str, Collective] = {}
    for name, lines in bodies.items():
        for index, line in enumerate(lines):
            operation = _OPERATION.match(line)
            if operation and name in times:
                result, kind = operation.groups()
                devices, channel = _group_size(line), _CHANNEL.search(line)
                key = f"{name} {index}" if channel is None else f"{kind} {channel.group(1)}"
                if devices > 1:
                    found.setdefault(key, Collective(kind, _bytes(result, line, kind), devices, times[name]))
    return list(found.values())


def count_line_runs(text: str) -> Iterator[tuple[str, int]]:
    """Yield the lines of a compiled program's operations, each with the number of times that the line runs.

    Example:
        >>> list(count_line_runs("ENTRY %main () -> f32[] {\\n  %a = f32[] constant(1)\\n}"))
        [('  %a = f32[] constant(1)', 1)]
    """
    bodies = _split_computations(text)
    times = _count_runs(bodies)
    for name in bodies.keys() & times.keys():
        for line in bodies[name]:
            yield line, times[name]


def _split_computations(text: str) -> dict[str, list[str]]:
    """Return the lines of each computation by name; the entry computation is called ENTRY."""
    bodies: dict[str, list[str]] = {}
    name = ""
    for line in text.splitlines():
        header = _HEADER.match(line)
        if header:
            name = "ENTRY" if line.startswith("ENTRY") else header.group(1)
            bodies[name] = []
        elif name and line.strip() not in ("", "}"):
            bodies[name].append(line)
    return bodies


def _find_called(line: str) -> Iterator[str]:
    yield from _CALLED.findall(line)
    for branches in _BRANCHES.findall(line):
        yield from re.findall(r"%([\w.\-]+)", branches)


def _count_runs(bodies: Mapping[str, list[str]]) -> dict[str, int]:
    """Return the number of times that each computation runs."""
    times: dict[str, int] = {}

    def visit(name: str, count: int) -> None:
        times[name] = times.get(name, 0) + count
        for line in bodies[name]:
            for called in _find_called(line):
                visit(called, count * _count_trips(line, bodies))

    visit("ENTRY", 1)
    return times


def _count_trips(line: str, bodies: Mapping[str, list[str]]) -> int:
    """Count how many times a line runs the computations that it calls: for a loop, the known trip count or the counter's bound."""
    known, condition = _TRIPS.search(line), _CONDITION.search(line)
    if known:
        return int(known.group(1))
    if condition is None:
        return 1
    lines = bodies[condition.group(1)]
    bounds = [bound for line in lines if (compared := _COMPARED.match(line)) for bound in compared.groups()]
    named = re.compile(rf"%{re.escape(bounds[0])} = .* constant\((\d+)\)") if bounds else None
    counts = [int(count) for line in lines if named for count in named.findall(line)]
    return counts[0] if counts else 1


def _bytes(result: str, line: str, kind: str) -> int:
    """Return the bytes of a result.

    The type of an asynchronous operation lists the operands before the results and, on TPUs, extra scalars after the results;
    operands and scalars are not counted.
    """
    is_started = f" {kind}-start(" in line and kind != "all-reduce"
    arrays = [(item, shape) for item, shape in _ARRAY.findall(result) if shape or not is_started]
    sizes = [math.prod(int(size) for size in shape.split(",") if size) * item_bits(item) // 8 for item, shape in arrays]
    return sum(sizes[len(sizes) // 2 :]) if is_started else sum(sizes)


def item_bits(item: str) -> int:
    """Return the number of bits of an element type of the compiler: usually the first number in the type's name.

    Example:
        >>> [item_bits(item) for item in ("f32", "bf16", "c128", "f8e4m3b11fnuz", "s4", "pred", "token")]
        [32, 16, 128, 8, 4, 8, 0]
    """
    bits = re.search(r"\d+", item)
    return {"pred": 8, "token": 0, "opaque": 0}[item] if bits is None else int(bits.group())


def _group_size(line: str) -> int:
    """Return the number of devices per group, which the compiler writes in one of three notations."""
    if " collective-permute" in line:
        return 2
    axes = re.search(r"replica_groups=mesh\[([^\]]*)\].*?\{((?:'[^']*'(?::\(\d+\)\d+)?(?:, ?)?)*)\}", line)
    if axes:
        sizes = {name: int(size) for name, size in re.findall(r"'([^']+)'=(\d+)", axes.group(1))}
        parts = re.findall(r"'([^']+)'(?::\(\d+\)(\d+))?", axes.group(2))  # an axis, or a part of an axis
        return math.prod(int(part) if part else sizes[name] for name, part in parts)
    shape = re.search(r"replica_groups=\[(\d+),(\d+)\]", line)
    if shape:
        return int(shape.group(2))
    listed = re.search(r"replica_groups=\{\{([\d,]*)\}", line)
    if listed:
        return len(listed.group(1).split(","))
    raise ValueError(f"the groups of this operation cannot be read: {line.strip()[:200]}")
