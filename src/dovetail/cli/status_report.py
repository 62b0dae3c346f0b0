# SPDX-License-Identifier: Apache-2.0
"""What `dovetail status` prints."""

from __future__ import annotations

from dovetail.cli.console import Console, Table, prose, right
from dovetail.cli.markup import escape
from dovetail.cli.output import count, span
from dovetail.views.status import StatusView, age_ms

_BLOCKED = 10


def show(view: StatusView, now: int, console: Console) -> None:
    """Print the screen."""
    console.print(f"Dovetail is {_state(view)}.")
    if view.stack is not None:
        _stack(view, now, console)
    if view.components:
        leaders = {one.lease: one.holder or "none" for one in view.leaders}
        table = Table("component", "version", right("ready"), "leader", prose("why"))
        for one in view.components:
            version, leader = one.version or _digest(one.image) or "-", leaders.get(one.name, "-")
            table.add_row(one.name, escape(version), f"{one.ready}/{one.desired}", escape(leader), _text(one.message))
        console.print(table)
    nodes = view.nodes
    if nodes.nodes and view.installed:
        console.print(
            f"GPU nodes: {nodes.ready} of {nodes.nodes} ready, {nodes.maintenance} in maintenance, {nodes.repair} in "
            f"repair. GPUs: {nodes.gpus_ready} of {nodes.gpus} ready, {nodes.gpus_in_repair} in repair."
        )
    for name, found in (("Agents", view.versions.get("agent", {})), ("Drivers", view.drivers)):
        if found:
            each = (f"{_text(one)} on {count(number, 'node')}" for one, number in found.items())
            console.print(f"{name}: {', '.join(each)}.")
    if definitions := view.versions.get("definitions"):
        console.print(f"Definitions: release {', '.join(map(_text, definitions))}.")
    _rollout(view, now, console)
    for part in view.foreign:
        taken = "taken over" if part.taken_over else "left to it"
        version = f" {part.version}" if part.version else ""
        console.print(f"Found: {_text(part.component)}{_text(version)} on {count(part.nodes, 'node')}, {taken}.")
    _blocked(view, now, console)
    others = [one for one in view.problems if not one.object.startswith("Node ")]
    if others:
        table = Table("problem", prose("what"), prose("next"))
        for problem in others:
            table.add_row(_text(problem.object), _text(problem.wrong), _text(problem.next))
        console.print(table)
    for text in view.unread:
        console.print(f"[yellow]not read:[/yellow] {_text(text)}")


def _state(view: StatusView) -> str:
    if not view.installed:
        return "[red]not installed[/red]"
    if view.problems:
        return f"[red]broken: {count(len(view.problems), 'problem')}[/red]"
    if view.unread:
        return f"[yellow]not known to be healthy: {count(len(view.unread), 'list')} could not be read[/yellow]"
    return "[green]healthy[/green]"


def _stack(view: StatusView, now: int, console: Console) -> None:
    stack = view.stack
    assert stack is not None
    ready = stack.condition("Ready")
    state = "is being uninstalled" if stack.deleting else "is ready" if ready.status == "True" else "is not ready"
    since = f" since {span(max(0, now - ready.since_ms))}" if ready.since_ms else ""
    why = f": {ready.reason}: {ready.message}".rstrip(": ") if ready.status != "True" and ready.reason else ""
    seen = "" if stack.current else "; the operator has not read the newest spec yet"
    console.print(f"GPUStack {_text(stack.name)} {state}{since}{escape(why)}{seen}.")


def _rollout(view: StatusView, now: int, console: Console) -> None:
    rollout = view.rollout
    if rollout is None or not rollout.phase:
        return
    since = f", since {span(age_ms(rollout.started, now))}" if rollout.started else ""
    working = f"; now on {', '.join(rollout.working)}" if rollout.working else ""
    reason = f": {rollout.reason}" if rollout.reason else ""
    nodes = f"{rollout.updated} of {rollout.total} nodes"
    console.print(_text(f"Rollout {rollout.revision}: {rollout.phase}{reason}, {nodes}{working}{since}."))


def _blocked(view: StatusView, now: int, console: Console) -> None:
    if not view.blocked:
        return
    table = Table("blocked node", "pool", "step", "since", prose("why"), prose("next"))
    rows = []
    for one in view.blocked:
        since = span(age_ms(one.since, now)) if one.since else "-"
        rows.append((_text(one.name), _text(one.pool), _text(one.step), since, _text(view.why(one)), _text(one.action)))
    console.print_rows(table, rows, _BLOCKED)


def _digest(image: str) -> str:
    """The first characters of an image's digest."""
    return image.partition("@sha256:")[2][:12]


def _text(text: str) -> str:
    """Text of another writer: without control characters, and never markup."""
    return escape("".join(c if c.isprintable() else " " for c in text)) or "-"
