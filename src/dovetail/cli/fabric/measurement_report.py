# SPDX-License-Identifier: Apache-2.0
"""What `dovetail fabric measure` prints."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.cli.console import Console, Table
from dovetail.cli.fabric.measurement import MeasurePlan
from dovetail.cli.output import count, foreign
from dovetail.topology.fabric_measured import GroupResult, SlowResult, slow_of
from dovetail.topology.hostlist import compress

_MOST_ROWS = 40


def show_plan(plan: MeasurePlan) -> None:
    """The groups, with what is expected of each."""
    rows = [
        [one.level or "all nodes", one.shape, foreign(compress(one.nodes)), _rate(expected)]
        for one, expected in zip(plan.groups, plan.expected, strict=True)
    ]
    console = Console()
    console.print_rows(Table("level", "shape", "nodes", "expected"), rows, _MOST_ROWS)
    out = f"; {count(plan.left_out, 'node')} with another number of GPUs left out" if plan.left_out else ""
    console.print(f"{count(len(rows), 'job')} with {count(plan.gpus, 'GPU')} on each node{out}")


def show_results(results: Sequence[GroupResult], percent: int) -> tuple[SlowResult, ...]:
    """The results, those that are the furthest below what is expected first, and what is slow by them."""
    console = Console()
    order = sorted(results, key=lambda one: (one.mbps or 0) / max(one.expected_mbps, 1))
    rows = [
        [
            one.group.level or "all nodes",
            one.group.shape,
            foreign(compress(one.group.nodes)),
            foreign(one.why) if one.mbps is None else _rate(one.mbps),
            _rate(one.expected_mbps),
        ]
        for one in order
    ]
    console.print_rows(Table("level", "shape", "nodes", "measured", "expected"), rows, _MOST_ROWS)
    slow = slow_of(results, percent)
    for one in slow:
        where = f"{one.level} {one.name}" if one.level else one.name
        console.print(foreign(f"slow: {where}: {_rate(one.mbps)} of {_rate(one.expected_mbps)}"))
    failed = sum(one.mbps is None for one in results)
    without = f", {failed} without a result" if failed else ""
    console.print(f"{count(len(results), 'group')} measured{without}; {len(slow)} slow")
    return slow


def _rate(mbps: int) -> str:
    return f"{mbps / 1000:.1f} GB/s" if mbps else "-"
