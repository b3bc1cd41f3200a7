"""Messages of a program: bytes of the collectives in compiled HLO.

Of a conditional one branch counts: the one that a constant chooses, else by default the first, of
a predicate the false one, where no fallback is taken. A loop counts as often as XLA knows it runs.
"""

import math
import re
from collections.abc import Callable

import numpy as np

COLLECTIVES = ("all-reduce", "all-gather", "all-to-all", "collective-permute", "reduce-scatter")
_OPCODES = "|".join((*COLLECTIVES, "conditional", "while"))
_HEAD = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_LINE = re.compile(rf"^\s*(?:ROOT )?%?[\w.\-]+ = (.+?) ({_OPCODES})(-start)?\((.*)$")
_ARRAY = re.compile(r"\b(pred|bf16|[sufc]\d+)\[([\d,]*)\]")
_CONSTANT = re.compile(r"(%[\w.\-]+) = (?:s32|pred)\[\] constant\((\w+)\)")
_BOOLEANS = {"false": 0, "true": 1}
_CALLED = re.compile(r"(?:to_apply|calls)=%?([\w.\-]+)")


def sent_bytes(hlo: str, workers: int, fallback: bool = False) -> float:
    """Bytes that a worker sends in one run of the program, mean over `workers`, each a device.

    Counted as rings do: 2 (n - 1) / n of what is all-reduced, (n - 1) / n of what an all-gather
    gives or an all-to-all takes; a permutation sends what does not stay. fallback: of conditionals
    on data the second branch, of a predicate the true one. Raises ValueError for what is not
    understood.
    """
    bodies, entry = _computations(hlo)
    constants = {name: _BOOLEANS.get(text, text) for name, text in _CONSTANT.findall(hlo)}

    def of_body(name: str) -> float:
        return sum(of_line(line) for line in bodies[name])

    def of_line(line: str) -> float:
        match = _LINE.match(line)
        if match is None:
            return sum(of_body(name) for name in _CALLED.findall(line))
        result, opcode, start, rest = match.groups()
        if start:
            raise ValueError(f"{opcode}-start: asynchronous collectives are not read; found {line}")
        if opcode == "conditional":
            chosen = int(constants.get(rest.partition(",")[0].split()[-1], fallback))
            return of_body(_branches(rest)[chosen])
        if opcode == "while":
            return _repeated(line, of_body)
        return _collective(opcode, _size(result), rest, workers)

    return of_body(entry)


def _computations(hlo: str) -> tuple[dict[str, list[str]], str]:
    """(instructions by the name of their computation, name of the first one to run)."""
    bodies, entry, name = {}, None, None
    for line in hlo.splitlines():
        head = _HEAD.match(line)
        if head is not None:
            name = head[2]
            bodies[name] = []
            entry = name if head[1] else entry
        elif name is not None:
            bodies[name].append(line)
    if entry is None:
        raise ValueError("the text has no ENTRY computation; pass compiled.as_text()")
    return bodies, entry


def _branches(rest: str) -> list[str]:
    named = re.search(r"branch_computations=\{([^}]*)\}", rest)
    if named is not None:
        return [name.strip().lstrip("%") for name in named[1].split(",")]
    found = (re.search(rf"{which}_computation=%?([\w.\-]+)", rest) for which in ("false", "true"))
    return [match[1] for match in found]


def _repeated(line: str, of_body: Callable[[str], float]) -> float:
    inside = of_body(re.search(r"body=%?([\w.\-]+)", line)[1])
    times = re.search(r'"known_trip_count":\{"n":"(\d+)"', line)
    if inside and times is None:
        raise ValueError(f"a loop of unknown length holds collectives: {line}")
    return inside * int(times[1]) if inside else 0.0


def _size(shapes: str) -> int:
    """Bytes of all arrays in the text of a shape or of a tuple of shapes."""
    total = 0
    for dtype, dims in _ARRAY.findall(shapes):
        bits = 8 if dtype == "pred" else int(re.search(r"\d+$", dtype)[0])
        entries = 1
        for dim in filter(None, dims.split(",")):
            entries *= int(dim)
        total += entries * bits // 8
    return total


def _collective(opcode: str, size: int, rest: str, workers: int) -> float:
    """Bytes that a worker sends for a result of `size` bytes."""
    if opcode == "collective-permute":
        pairs = re.findall(r"\{(\d+),(\d+)\}", re.search(r"source_target_pairs=(\S+)", rest)[1])
        return size * sum(source != target for source, target in pairs) / workers
    n = len(groups(rest, workers)[0])
    times = {
        "all-reduce": 2 * (n - 1) / n,
        "all-gather": (n - 1) / n,
        "all-to-all": (n - 1) / n,
        "reduce-scatter": n - 1,
    }
    return size * times[opcode]


def groups(line: str, devices: int) -> list[list[int]]:
    """Return the devices that a collective joins; all of them where it names none.

    XLA lists them, counts them through a turned grid, or names axes of a mesh.
    """
    listed = re.search(r"replica_groups=\{\{([\d,{}]+)\}\}", line)
    counted = re.search(r"replica_groups=\[\d+,(\d+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", line)
    named = re.search(r"replica_groups=mesh\[(.+?)\] \{(.+?)\}", line)
    if listed:
        return [_numbers(group) for group in listed[1].split("},{")]
    if counted:
        size, shape = int(counted[1]), _numbers(counted[2])
        order = _numbers(counted[3]) if counted[3] else range(len(shape))
    elif named:
        sizes = {axis: int(length) for axis, length in re.findall(r"'(.+?)'=(\d+)", named[1])}
        axes, joined = list(sizes), re.findall(r"'(.+?)'", named[2])
        size, shape = math.prod(sizes[axis] for axis in joined), list(sizes.values())
        apart = [axis for axis in axes if axis not in joined]
        order = [axes.index(axis) for axis in (*apart, *joined)]
    elif re.search(r"replica_groups=(?!\{\})", line):
        raise ValueError(f"groups of devices in a form that is not read: {line}")
    else:
        return [list(range(devices))]
    return np.arange(math.prod(shape)).reshape(shape).transpose(order).reshape(-1, size).tolist()


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]
