# SPDX-License-Identifier: Apache-2.0
"""Reader of what nccl-tests write (`all_reduce_perf` and others): the bus bandwidth.

Rules
- A line of the table begins with the size in bytes, the number of elements and the type. The columns are named above
  the table; versions differ in them (`root`, `error` or `#wrong`), and in whether the test runs in place, too.
- mpirun may put a tag before each line (`[1,0]<stdout>:`), and others may write between the lines.
- The largest size counts, of out-of-place and in-place the faster one: small messages measure latency.
- A result that was checked and is wrong is none, and neither is a table without a line.

Source: src/common.cu of NVIDIA/nccl-tests, versions 2.0 to 2.18.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct

from dovetail.topology.fabric import FabricError

_TAG = re.compile(r"^\s*\[\d+,\d+\]\s*<(?:stdout|stderr)>:")
_ROW = re.compile(r"^\s*(\d{1,18})\s+(\d{1,18})\s+([a-z]\w*)\s+(.*)$")
_BAD = re.compile(r"#\s*Out of bounds values\s*:\s*(\d+)\s+FAILED")
_LONGEST = 512
_MOST_LINES = 200_000
_BUS, _WRONG = "busbw", "#wrong"


class NcclResult(Struct, frozen=True):
    """The bus bandwidth of the largest message, of so many bytes, in MB/s (10^6 bytes)."""

    size: int
    mbps: int


def read(text: str) -> NcclResult:
    """Raises FabricError, with what to do."""
    columns: Sequence[str] = ()
    best: NcclResult | None = None
    for number, raw in enumerate(text.splitlines()):
        line = _TAG.sub("", raw[:_LONGEST]).rstrip()
        if number >= _MOST_LINES:
            break
        if bad := _BAD.search(line):
            raise FabricError(f"{bad[1]} values of the result are wrong: check GPUs and links before their speed")
        if line.lstrip().startswith("#") or (not columns and "busbw" in line):
            words = line.replace("# ", " ", 1).split()
            if _BUS in words and "size" in words:
                columns = words[words.index("size") :]
        elif (row := _ROW.match(line)) and columns:
            found = _result(int(row[1]), columns, line.split())
            if found is not None and (best is None or found.size >= best.size):
                best = found
    if best is None:
        raise FabricError("no line of a table of nccl-tests: see the logs of the job")
    return best


def _result(size: int, columns: Sequence[str], cells: Sequence[str]) -> NcclResult | None:
    """None for a line that is none of the table, or is cut. Raises FabricError."""
    if len(cells) != len(columns):
        return None
    rates = []
    for name, cell in zip(columns, cells, strict=True):
        rate = _number(cell)
        if name == _WRONG and rate:
            raise FabricError(f"{cell} values of {size} bytes are wrong: check GPUs and links before their speed")
        if name == _BUS and rate is not None:
            rates.append(rate)
    return NcclResult(size, round(max(rates) * 1000)) if rates else None


def _number(cell: str) -> float | None:
    """None for `N/A`, and for what is no number of a bandwidth."""
    return float(cell) if re.fullmatch(r"\d{1,9}(\.\d{1,9})?(e[+-]\d{1,2})?", cell) else None
