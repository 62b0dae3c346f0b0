# SPDX-License-Identifier: Apache-2.0
"""The queues that exist: found by name, and what runs and waits in one in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from dovetail.cli.output import count, gpus
from dovetail.core.queues.types import GPU
from dovetail.views.amounts import listed
from dovetail.views.names import nearest

if TYPE_CHECKING:
    from dovetail.kube.queue_changes import QueueView

UNREPORTED = "no scheduler has reported what runs and waits there"


def named(queues: dict[str, QueueView], name: str) -> QueueView:
    """The queue of this name. Raises ClickException."""
    if name not in queues:
        there = f"; there are {', '.join(sorted(queues))}" if queues else ""
        raise click.ClickException(f"queue {name} has no object{nearest(name, queues)}{there}")
    return queues[name]


def above(queues: dict[str, QueueView], name: str) -> str:
    """The queue above this one that stops it; "" for none."""
    from dovetail.core.queues.tree import Tree

    tree = Tree()
    for one in queues.values():
        tree.put(one.queue)
    by = tree.stopped_by(queues[name].queue.parent)
    return by.name if by is not None else ""


def allocated(found: QueueView) -> str:
    """What the queue holds: its GPUs, or where it holds none what else it holds."""
    milli = dict(found.allocated).get(GPU, 0)
    return f"{gpus(milli)} GPU{'s' if milli != 1000 else ''}" if milli else listed(found.allocated)


def inside(found: QueueView) -> str:
    """What runs and what waits in the queue, by its status."""
    if found.ready is None:
        return UNREPORTED
    runs = f"what runs there goes on ({allocated(found)})" if found.allocated else "nothing runs there"
    return f"{waits(found.pending_jobs)}, {runs}"


def waits(jobs: int) -> str:
    """`no job waits`, `2 jobs wait`."""
    return f"{count(jobs, 'job')} wait{'s' if jobs == 1 else ''}" if jobs else "no job waits"
