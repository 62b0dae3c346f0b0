# SPDX-License-Identifier: Apache-2.0
"""Which process of the tests gets which of them, for `--dist loadfile`.

Rules
- A file is given out as a whole: its fixtures, a cluster among them, are made once.
- Files with tests on a real node go to one process, the first, which begins with them: two nodes at a time starve each
  other on a small machine. The others begin with files that wait for a control plane, then come those with long tests:
  at the end of a run files are short, so that all processes end together.
- Files that apply deploy/ to the plane of their process come after all others that use a plane: its policies hold for
  what comes later, too.
- Each process gets its files in the order of their ranks, and ends what later files do not use (`tests.order`).
"""

from __future__ import annotations

import pytest
from xdist.remote import Producer
from xdist.scheduler.loadscope import LoadScopeScheduling
from xdist.workermanage import WorkerController

from tests.order import rank

_MOST_PENDING = 2


class ByFile(LoadScopeScheduling):
    """As pytest-xdist's `loadfile`, with the rules above; what a process has left is counted as tests end."""

    def __init__(self, config: pytest.Config, log: Producer | None = None) -> None:
        super().__init__(config, log)
        self._left: dict[WorkerController, int] = {}
        self._index: dict[str, int] = {}

    def _split_scope(self, nodeid: str) -> str:
        return nodeid.partition("::")[0]

    def schedule(self) -> None:
        if self.collection is None and self.collection_is_completed:
            collected = next(iter(self.registered_collections.values()))
            self._index = {nodeid: number for number, nodeid in enumerate(collected)}
        super().schedule()

    def _next_file(self, node: WorkerController) -> str | None:
        """The next file for a process; None where there is none for it."""
        first = node is next(iter(self.assigned_work))
        files = (file for file in self.workqueue if first or rank(file))
        return min(files, key=rank, default=None)

    def _assign_work_unit(self, node: WorkerController) -> None:
        file = self._next_file(node)
        if file is None:
            node.shutdown()
            return
        unit = self.workqueue.pop(file)
        self.assigned_work[node][file] = unit
        waiting = [self._index[nodeid] for nodeid, done in unit.items() if not done]
        self._left[node] = self._left.get(node, 0) + len(waiting)
        node.send_runtest_some(waiting)

    def mark_test_complete(self, node: WorkerController, item_index: int, duration: float = 0) -> None:
        nodeid = self.registered_collections[node][item_index]
        self.assigned_work[node][self._split_scope(nodeid)][nodeid] = True
        self._left[node] -= 1
        self._reschedule(node)

    def _reschedule(self, node: WorkerController) -> None:
        if not self.workqueue:
            super()._reschedule(node)
        elif not node.shutting_down and self._left.get(node, 0) <= _MOST_PENDING:
            self._assign_work_unit(node)

    def remove_node(self, node: WorkerController) -> str | None:
        self._left.pop(node, None)
        return super().remove_node(node)
