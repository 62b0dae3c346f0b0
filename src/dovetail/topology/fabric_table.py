# SPDX-License-Identifier: Apache-2.0
"""Reader of an operator's own table: CSV, with a line for each node.

The first line names the columns: `node`, and a column for each level, from the widest to the narrowest. The name of a
level is a label key (`example.com/row`), or a word (`rack`), which becomes the key `dovetail.dev/rack`. Lines that
begin with `#` are comments. A node has a value in each column."""

from __future__ import annotations

import csv
import io

from dovetail.topology.fabric import (
    MOST_LEVELS,
    FabricError,
    FabricPlacement,
    FabricReading,
    one_place_each,
)

_NODE = "node"
_OURS = "dovetail.dev/"


def read(text: str) -> FabricReading:
    """Raises FabricError."""
    kept = (line if line[:1] != "#" else "\n" for line in io.StringIO(text, newline=""))
    rows = csv.reader(kept, strict=True)
    columns: list[str] = []
    placements = []
    try:
        for row in rows:
            cells = [cell.strip() for cell in row]
            if not any(cells):
                continue
            if not columns:
                columns = _checked(cells, rows.line_num)
                continue
            if len(cells) != len(columns) or not all(cells):
                missing = next((name for name, cell in zip(columns, cells, strict=False) if not cell), None)
                fault = f"no {missing}" if missing else f"{len(cells)} cells for {len(columns)} columns"
                raise FabricError(f"line {rows.line_num}: {fault}: fill it in")
            by_name = dict(zip(columns, cells, strict=True))
            node = by_name.pop(_NODE)
            placements.append(FabricPlacement(node, tuple(by_name.values()), rows.line_num))
    except csv.Error as error:
        raise FabricError(f"line {rows.line_num}: {error}: write it as CSV") from error
    if not placements:
        raise FabricError("no line with a node: write `node,rack`, and below it a line for each node")
    keys = tuple(name if "/" in name else _OURS + name for name in columns if name != _NODE)
    found, findings = one_place_each(placements)
    return FabricReading(found, keys, findings)


def _checked(columns: list[str], line: int) -> list[str]:
    if columns.count(_NODE) != 1 or len(columns) < 2 or len(set(columns)) < len(columns) or not all(columns):
        raise FabricError(
            f"line {line}: the columns must be `node` and at least one level, each with a name of its own"
        )
    if len(columns) - 1 > MOST_LEVELS:
        raise FabricError(f"line {line}: more than {MOST_LEVELS} levels: leave out those that no job needs")
    return columns
