# SPDX-License-Identifier: Apache-2.0
"""What `dovetail nodes` prints."""

from __future__ import annotations

from dovetail.cli.columns import NODE_STYLES
from dovetail.cli.console import Console, Table, prose
from dovetail.cli.output import count, foreign, span
from dovetail.views.node_types import BEYOND_BUDGET, READY, NodeHealthView


def show_more(
    answer: tuple[NodeHealthView, ...], now_ms: int, console: Console, *, devices: bool = False, budget: int = 0
) -> None:
    """Print what stands below the list: with `devices` the GPUs of the node, then maintenance, the spare nodes, and the
    nodes that are not ready. `budget`: how many nodes may be quarantined."""
    if not answer:
        console.print("No GPU node is listed.")
        return
    if devices and answer[0].devices:
        table = Table("GPU", "uuid", "product", "state", "since", "code", prose("why"), prose("next"))
        for gpu in answer[0].devices:
            named = (str(gpu.index), _text(gpu.uuid), _text(gpu.product), _styled(gpu.state))
            table.add_row(*named, _since(gpu.since_ms, now_ms), _text(gpu.code), _text(gpu.reason), _text(gpu.next))
        console.print(table)
    for one in answer:
        if one.maintenance:
            console.print(f"{one.node} is in maintenance, by {_text(one.maintenance)}")
    if spares := sorted(one.node for one in answer if one.spare):
        from dovetail.topology.hostlist import compress

        console.print(f"spares of their domain, held for the gangs that run there: {compress(spares)}")
    _show_blocked(answer, now_ms, console, whole=devices)
    if any(one.quarantine == BEYOND_BUDGET for one in answer):
        console.print(f"The scheduler's budget allows {count(budget, 'quarantined node')} at a time.")


def _show_blocked(answer: tuple[NodeHealthView, ...], now_ms: int, console: Console, *, whole: bool) -> None:
    """The nodes that are not ready; of one node alone (`whole`) also what shows it, and its last validation."""
    found = [(one.node, one.readiness) for one in answer if one.readiness is not None]
    blocked = [(name, one) for name, one in found if one.step != READY]
    if blocked:
        table = Table("not ready", "step", "since", "reason", prose("what is missing"), prose("what to do"))
        for name, one in blocked:
            since = _since(one.since_ms, now_ms)
            table.add_row(name, _text(one.step), since, _text(one.reason), _text(one.message), _text(one.action))
        console.print(table)
    if whole:
        for _, one in found:
            if one.evidence and one.step != READY:
                console.print(f"Shown by {_text(one.evidence)}{f': {_text(one.line)}' if one.line else ''}")
            if one.validated_ms:
                devices = f"chosen {_text(one.chosen)}, allocated {_text(one.allocated)}"
                console.print(f"Validated {_since(one.validated_ms, now_ms)} ago: {devices}")


def _text(text: str) -> str:
    """Text of another writer; "-" for none."""
    return foreign(text) or "-"


def _since(since_ms: int, now_ms: int) -> str:
    return span(max(0, now_ms - since_ms)) if since_ms else "-"


def _styled(state: str) -> str:
    return f"[{NODE_STYLES[state]}]{state}[/]"
