# SPDX-License-Identifier: Apache-2.0
"""Each test is run once, also where a process of the tests dies."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.distribution import ByFile

FILES = {
    "tests/test_words.py": 1, "tests/test_names.py": 4, "tests/test_arrows.py": 1, "tests/test_mirror.py": 3,
    "tests/test_forked.py": 2, "tests/test_needs.py": 1, "tests/node/test_real_node.py": 2,
    "tests/live/test_placing.py": 2, "tests/contract/test_pods.py": 3,
}  # fmt: skip
TESTS = [f"{file}::test_{number}" for file, count in FILES.items() for number in range(count)]


class Worker:
    """As a process of pytest-xdist: it runs a test when it knows the next one, or that there is none."""

    def __init__(self, name: str) -> None:
        self.gateway = SimpleNamespace(id=name)
        self.shutting_down = False
        self.waiting: list[int] = []

    def send_runtest_some(self, indices: list[int]) -> None:
        self.waiting += indices

    def shutdown(self) -> None:
        self.shutting_down = True


class Run:
    def __init__(self, processes: int) -> None:
        config: Any = SimpleNamespace(
            getvalue=lambda name: ["popen"] * processes if name == "tx" else "loadfile",
            option=SimpleNamespace(loadscopereorder=False),
        )
        self._scheduler = ByFile(config)
        self._workers: list[Worker] = []
        self.ran: list[str] = []
        self.failed: list[str] = []
        for number in range(processes):
            self._start(f"gw{number}")
        self._scheduler.schedule()

    def _start(self, name: str) -> None:
        worker: Any = Worker(name)
        self._workers.append(worker)
        self._scheduler.add_node(worker)
        self._scheduler.add_node_collection(worker, TESTS)

    def _die(self, worker: Any) -> None:
        self._workers.remove(worker)
        died_at = self._scheduler.remove_node(worker)
        assert died_at is not None
        self.failed.append(died_at)
        self._start(f"{worker.gateway.id}-again")
        self._scheduler.schedule()

    def to_the_end(self, deadly: tuple[str, ...]) -> None:
        """Run until no process can go on. `deadly` are tests at which a process dies."""
        progress = True
        while progress:
            progress = False
            for worker in list(self._workers):
                if not worker.waiting or (len(worker.waiting) == 1 and not worker.shutting_down):
                    continue
                progress = True
                index = worker.waiting[0]
                if TESTS[index] in deadly:
                    self._die(worker)
                else:
                    self.ran.append(TESTS[index])
                    del worker.waiting[0]
                    one: Any = worker
                    self._scheduler.mark_test_complete(one, index)
            if self._scheduler.tests_finished:
                for worker in self._workers:
                    progress |= not worker.shutting_down
                    worker.shutdown()

    @property
    def tests_finished(self) -> bool:
        return self._scheduler.tests_finished


@pytest.mark.parametrize("processes", [1, 2, 3, 4])
def test_all_tests_are_run_once(processes: int) -> None:
    run = Run(processes)
    run.to_the_end(())
    assert sorted(run.ran) == sorted(TESTS)
    assert run.tests_finished


@pytest.mark.parametrize("processes", [1, 2, 3, 4])
@pytest.mark.parametrize("deadly", TESTS)
def test_a_test_at_which_a_process_dies_fails_and_all_others_are_run_once(deadly: str, processes: int) -> None:
    run = Run(processes)
    run.to_the_end((deadly,))
    assert run.failed == [deadly]
    assert sorted([*run.ran, deadly]) == sorted(TESTS)
    assert run.tests_finished


def test_several_processes_may_die() -> None:
    run = Run(3)
    run.to_the_end(tuple(TESTS[::4]))
    assert sorted(run.failed) == sorted(TESTS[::4])
    assert sorted([*run.ran, *run.failed]) == sorted(TESTS)
