# SPDX-License-Identifier: Apache-2.0
"""`dovetail install --plan`: what becomes of NVIDIA's stack, before anything is written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dovetail.cli.cluster import run
from dovetail.cli.console import Console, Table, prose, right
from dovetail.cli.markup import escape
from dovetail.cli.output import count, versioned, write_json
from dovetail.kube.api.config import ClusterConfig
from dovetail.operator.coexistence.survey import FunctionGroup, InstallPlan, survey

_SHOWN = 5
_WORDS = {
    "Foreign": "NVIDIA's stack keeps it",
    "Dovetail": "Dovetail does it",
    "Queued": "Dovetail takes it over, node by node",
    "Blocked": "cannot be taken over yet",
    "Leaving": "NVIDIA's pod is leaving",
    "Starting": "the agent begins",
    "Returning": "the agent is leaving",
    "Failed": "the takeover failed",
}
_HOW = (
    "On each node one function moves after the other: exporter, labels, mig, allocation. NVIDIA's component is "
    "switched off by a node label, its pod ends, and the agent begins; the canary goes first, then as many nodes at a "
    "time as spec.upgrade permits. Pods that run keep their GPUs. The way back: take the name out of spec.takeOver."
)


def show_plan(config: ClusterConfig, stack: Mapping[str, Any] | None, output: str) -> None:
    """Print the plan for this GPUStack, a document; None: for that of the cluster. Raises ClickException."""
    plan = run(survey(config, stack), config.server)
    if output == "json":
        write_json(versioned("InstallPlan", plan))
    else:
        show(plan, Console())


def show(plan: InstallPlan, console: Console) -> None:
    """Print a plan as text."""
    for problem in plan.problems:
        console.print(f"[red]{escape(problem)}[/]")
    for unread in plan.unread:
        console.print(f"[yellow]Not all could be read: {escape(unread)}[/]")
    if not plan.components:
        console.print("No component of NVIDIA's stack was found: Dovetail does everything.")
        return
    table = Table("component", "runs as", "version", "of", right("nodes"), "becomes", prose("note"))
    for one in plan.components:
        fate = "[green]Dovetail's[/]" if one.taken_over else "stays"
        cells = (one.component, one.object, one.version, one.managed_by)
        table.add_row(*(escape(cell) or "-" for cell in cells), str(one.nodes), fate, escape(one.note))
    console.print(table)
    table = Table("function", prose("what happens"), prose("nodes"))
    for group in plan.functions:
        table.add_row(group.function, escape(_text(group)), escape(_named(group.nodes)))
    if plan.functions:
        console.print(table)
    for action in _to_do(plan.functions):
        console.print(f"[yellow]You have to:[/] {escape(action)}")
    if any(one.taken_over for one in plan.components):
        console.print(_HOW)


def _text(group: FunctionGroup) -> str:
    words = _WORDS[group.state]
    return f"{words}: {group.message} ({group.reason})" if group.message else words


def _named(nodes: Iterable[str]) -> str:
    names = list(nodes)
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{count(len(names), 'node')}: {', '.join(names[:_SHOWN])}{more}"


def _to_do(groups: Iterable[FunctionGroup]) -> list[str]:
    """What a person has to do, each once."""
    actions = (one.action for one in groups if one.state == "Blocked" and not one.action.startswith("none"))
    return list(dict.fromkeys(actions))
