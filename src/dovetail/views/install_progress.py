# SPDX-License-Identifier: Apache-2.0
"""What an installation still waits for until its first GPU node is ready, in the order in which it comes."""

from __future__ import annotations

from collections.abc import Iterator

from dovetail.views.installation import OPERATOR, SCHEDULER
from dovetail.views.status import StatusView

_SHOWN = 3


def missing(view: StatusView) -> tuple[str, ...]:
    """What is missing, the first of it the most basic; empty when a first node is ready."""
    return tuple(_operator(view)) or tuple(_stack(view)) or (*_scheduler(view), *_nodes(view))


def refused(view: StatusView) -> str:
    """Why waiting is in vain: the spec contradicts itself, or does not count; "" else."""
    if view.stack is None:
        return ""
    accepted = view.stack.condition("Accepted")
    if view.stack.current and accepted.status == "False":
        return f"GPUStack {view.stack.name}: {accepted.reason}: {accepted.message}"
    return ""


def _operator(view: StatusView) -> Iterator[str]:
    found = [one for one in view.components if one.name == OPERATOR]
    if not any(one.ready for one in found):
        yield f"operator: {found[0].message or 'no pod is ready'}" if found else "operator: it is not installed"


def _stack(view: StatusView) -> Iterator[str]:
    if view.stack is None:
        yield "GPUStack: there is none"
    elif not view.stack.current:
        yield f"GPUStack {view.stack.name}: the operator has not read it yet"
    elif (applied := view.stack.condition("Applied")).status != "True":
        yield f"GPUStack {view.stack.name}: {applied.reason or 'nothing is applied yet'}: {applied.message}".rstrip(
            ": "
        )


def _scheduler(view: StatusView) -> Iterator[str]:
    for one in view.components:
        if one.name == SCHEDULER and one.desired and not one.ready:
            yield f"scheduler: {one.message}"


def _nodes(view: StatusView) -> Iterator[str]:
    nodes = view.nodes
    if nodes.ready:
        return
    if not nodes.nodes:
        yield "nodes: no GPU node is found, by a label as nvidia.com/gpu.present=true or by the search on the PCI bus"
        return
    steps = ", ".join(f"{step} {number}" for step, number in nodes.steps.items() if number)
    yield f"nodes: none of {nodes.nodes} is ready{f' ({steps})' if steps else ''}"
    for one in view.blocked[:_SHOWN]:
        yield f"node {one.name}: {one.step}: {view.why(one)}; {one.action}"
