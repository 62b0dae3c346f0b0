# SPDX-License-Identifier: Apache-2.0
"""Which process of the tests gets which of them, for `--dist loadfile`.

Rules
- A file is given out as a whole: its fixtures, a cluster among them, are made once.
- Half of the processes begin with the files that need a control plane: each of them runs one or two, and more at a time
  starve each other on a small machine, until probes and leases time out. The others begin with those that need none,
  the ones with long tests first, and take files with a control plane when there are no others.
- Files with tests on a real node go to one process, the first, which begins with them.
- A process yields to those with a control plane while it runs tests without one (`tests.order`).
- Files that apply deploy/ to the plane of their process come after all others that use a plane: its policies hold for
  what comes later, too.
- A test at which a process died failed, and is not run again; others take over what the process had left.
- Each process gets its files in the order of their ranks, and ends what later files do not use (`tests.order`); files
  with a control plane that come after others are the last that it gets.
"""

from __future__ import annotations

import pytest
from xdist.remote import Producer
from xdist.scheduler.loadscope import LoadScopeScheduling
from xdist.workermanage import WorkerController

from tests.order import needs_node, needs_plane, rank

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
        going_on = [one for one in self.assigned_work if not one.shutting_down]
        number = going_on.index(node)
        files = [file for file in self.workqueue if number == 0 or not needs_node(file)]
        if number >= max(1, len(going_on) // 2):
            files = [file for file in files if not needs_plane(file)] or files
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
        while self.workqueue and not node.shutting_down and self._left.get(node, 0) <= _MOST_PENDING:
            self._assign_work_unit(node)
        if not self.workqueue:
            super()._reschedule(node)

    def remove_node(self, node: WorkerController) -> str | None:
        """Give the files of a process that died to the others, and return the test that it ran. KeyError where the
        process is not known."""
        files = self.assigned_work.pop(node)
        self._left.pop(node, None)
        running = next((nodeid for unit in files.values() for nodeid, done in unit.items() if not done), None)
        if running is not None:
            files[self._split_scope(running)][running] = True
            # A process that gets a file of which nothing is left would report nothing, and would get nothing more.
            self.workqueue.update({file: unit for file, unit in files.items() if not all(unit.values())})
            for other in self.assigned_work:
                self._reschedule(other)
        return running
