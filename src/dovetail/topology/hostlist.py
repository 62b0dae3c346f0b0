# SPDX-License-Identifier: Apache-2.0
"""Slurm's hostlist expressions: `gpu[01-04,7],login` is gpu01, gpu02, gpu03, gpu04, gpu7 and login."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import product

from dovetail.topology.fabric import MOST_NODES, FabricError

_PART = re.compile(r"(?:[^\[\],]|\[[^\[\]]*\])+")
_PIECE = re.compile(r"\[([^\[\]]*)\]|([^\[\],]+)")
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?", re.ASCII)
_NUMBERED = re.compile(r"(.*?)(\d{1,9})", re.ASCII | re.DOTALL)
_LONGEST = 1 << 20


def expand(expression: str) -> list[str]:
    """The names, in order. Raises FabricError for what is no hostlist, or names more than MOST_NODES."""
    names: list[str] = []
    rest = expression[:_LONGEST].strip()
    parts = [part.strip() for part in _PART.findall(rest)]
    if len(expression) > _LONGEST or _PART.sub("", rest) != "," * (len(parts) - 1) or not all(parts):
        raise FabricError(f"{expression[:60]!r} is no hostlist such as node[01-16,20]: correct it")
    for part in parts:
        choices = [list(_numbers(piece[1])) if piece[1] is not None else [piece[2]] for piece in _PIECE.finditer(part)]
        size = 1
        for one in choices:
            size *= len(one)
        if len(names) + size > MOST_NODES:
            raise FabricError(f"{part[:60]!r} names more than {MOST_NODES:,} nodes: split the file")
        names += map("".join, product(*choices))
    return names


def _numbers(ranges: str) -> Iterator[str]:
    for one in ranges.split(","):
        found = _RANGE.fullmatch(one.strip())
        if found is None:
            raise FabricError(f"[{ranges[:60]}] is no list of numbers and ranges such as [1-4,7]: correct it")
        first, last = int(found[1]), int(found[2] or found[1])
        if last < first or last - first >= MOST_NODES:
            raise FabricError(f"the range {one} is empty or has more than {MOST_NODES:,} numbers: correct it")
        yield from (f"{number:0{len(found[1])}d}" for number in range(first, last + 1))


def compress(names: Iterable[str]) -> str:
    """A hostlist of these names, whose `expand` is the same set."""
    numbered: dict[tuple[str, int], list[int]] = {}
    plain = []
    for name in dict.fromkeys(names):
        found = _NUMBERED.fullmatch(name)
        if found is None:
            plain.append(name)
        else:
            numbered.setdefault((found[1], len(found[2])), []).append(int(found[2]))
    return ",".join([*(_group(prefix, width, sorted(found)) for (prefix, width), found in numbered.items()), *plain])


def _group(prefix: str, width: int, numbers: list[int]) -> str:
    """Numbers of `width` digits, as ranges."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    shown = [f"{a:0{width}d}" if a == b else f"{a:0{width}d}-{b:0{width}d}" for a, b in runs]
    return f"{prefix}{shown[0]}" if len(numbers) == 1 else f"{prefix}[{','.join(shown)}]"
