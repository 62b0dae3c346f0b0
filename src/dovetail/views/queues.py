# SPDX-License-Identifier: Apache-2.0
"""Queues by name, and the first waiting job of each."""

from __future__ import annotations

from dovetail.core.queues.types import Queue
from dovetail.core.state import State
from dovetail.views.names import JobNotFound, nearest, some


def queue_named(state: State, name: str) -> Queue:
    """The queue of this name. Raises JobNotFound."""
    queues = state.shares.tree.queues
    if name not in queues:
        others = nearest(name, queues) or f"; there are {some(sorted(queues), 10)}"
        raise JobNotFound(f"queue {name} does not exist{others}")
    return queues[name]


def inside(state: State, queue: str, above: str) -> bool:
    """Whether a queue is `above` or below it; "" is above all. A queue that does not exist is below none."""
    tree = state.shares.tree
    return not above or (queue in tree.queues and above in tree.path(queue))


def heads(state: State) -> dict[str, str]:
    """For each queue with waiting jobs in it or below it, its first workload in queue order."""
    tree, found = state.shares.tree, dict[str, str]()
    for workload in state.queue.ordered():
        queue = state.shares.pod_queues.of(state.workloads.members(workload)[0])
        for name in tree.path(queue) if queue in tree.queues else ():
            found.setdefault(name, workload)
    return found
