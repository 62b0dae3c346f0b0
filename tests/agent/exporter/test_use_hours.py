# SPDX-License-Identifier: Apache-2.0
"""The use of GPUs by pods, hour by hour."""

from __future__ import annotations

import threading
import time
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.agent.checkpoint import CheckpointFile
from dovetail.agent.exporter import use_hours as module
from dovetail.agent.exporter.host_use import HostUse, HostUsed
from dovetail.agent.exporter.reading import DeviceReading, GpuReading, Owner, Owners
from dovetail.agent.exporter.shared_use import PartUse, SharedUse
from dovetail.agent.exporter.use_hours import KEPT_HOURS, LONGEST_S, UseHours, UseMemory
from dovetail.history.agent_use import credible
from dovetail.history.records import HOUR_MS, UseHour
from tests.patience import PATIENCE_S

SM, TENSOR, DRAM, ENGINE = (f"DCGM_FI_PROF_{name}_ACTIVE" for name in ("SM", "PIPE_TENSOR", "DRAM", "GR_ENGINE"))
UTILIZATION, MEMORY = "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_FB_USED"
BUSY = {SM: 0.8, TENSOR: 0.6, DRAM: 0.4, ENGINE: 1.0, MEMORY: 4096.0}
BUSY_MILLI = 670
"""0.35 x 0.8 + 0.35 x 0.6 + 0.2 x 0.4 + 0.1 x 1.0, in thousandths."""


class Clocks:
    """The monotonic clock and the wall clock, which begins ten seconds before an hour is full."""

    def __init__(self) -> None:
        self.s = 1000.0
        self.ahead_ms = 5 * HOUR_MS - 10_000 - 1_000_000

    @property
    def wall_ms(self) -> int:
        return round(self.s * 1000) + self.ahead_ms


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    found = Clocks()
    monkeypatch.setattr(time, "monotonic", lambda: found.s)
    return found


class Node:
    def __init__(self, folder: Path, clocks: Clocks) -> None:
        self.clocks = clocks
        self.hours = UseHours(folder / "use.json", "n1", lambda: clocks.wall_ms)

    def held(self, **pods: str) -> None:
        """The pods that hold the GPUs; several are separated by a comma."""
        by_device = {
            gpu: tuple(Owner("ns", uid, uid, "main", 1.0) for uid in uids.split(",")) for gpu, uids in pods.items()
        }
        self.hours.owned(Owners(by_device, self.clocks.s))

    def read(self, gpu: str = "a", parent: str = "", **values: float) -> None:
        self.hours.apply(
            GpuReading(
                (DeviceReading(gpu, 0, "", "", 0, parent, None, None, "", values or BUSY),), (), self.clocks.s, {}
            )
        )

    def used(self) -> dict[tuple[str, str, int], UseHour]:
        return {(one.gpu, one.pod_uid, one.hour_ms // HOUR_MS): one for one in self.hours.since(0)}


@pytest.fixture
def node(tmp_path: Path, clocks: Clocks) -> Node:
    return Node(tmp_path, clocks)


def test_a_reading_counts_for_the_time_since_the_last_one_in_its_hours(node: Node, clocks: Clocks) -> None:
    node.held(a="p")
    for _ in range(3):
        node.read()
        clocks.s += 15
    used = node.used()
    # Of the 30 s between the readings 10 s are before the full hour.
    assert {key: one.measured_ms for key, one in used.items()} == {("a", "p", 4): 10_000, ("a", "p", 5): 20_000}
    for one in used.values():
        assert one.use == BUSY_MILLI * one.measured_ms and one.idle_ms == 0
        assert one.memory_peak_mib == 4096
        assert one.used_until_ms == min((one.hour_ms // HOUR_MS + 1) * HOUR_MS, clocks.wall_ms - 15_000)
        assert one.histogram[BUSY_MILLI // 50] == one.measured_ms == sum(one.histogram)
        assert one.activity == {
            "sm": 800 * one.measured_ms, "tensor": 600 * one.measured_ms, "dram": 400 * one.measured_ms,
            "engine": 1000 * one.measured_ms,
        }  # fmt: skip


def test_a_gpu_below_the_threshold_is_idle(node: Node, clocks: Clocks) -> None:
    node.held(a="p")
    for utilization in (0, 4, 5):
        node.read(**{UTILIZATION: utilization})
        clocks.s += 2
    # Parts that are not reported are those of the utilization; the threshold is 5 %.
    (one,) = node.used().values()
    assert (one.idle_ms, one.measured_ms, one.use) == (2000, 4000, (40 + 50) * 2000)
    assert one.used_until_ms == clocks.wall_ms - 2000
    assert one.activity == {"utilization": (40 + 50) * 2000}


def test_power_is_a_part_of_the_limit_in_force(node: Node, clocks: Clocks) -> None:
    node.held(a="p")
    power, limit = "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_ENFORCED_POWER_LIMIT"
    for values in ({}, {power: 350.0, limit: 700.0}, {power: 350.0}, {power: 350.0, limit: 0.0}):
        node.read(**BUSY, **values)
        clocks.s += 2
    (one,) = node.used().values()
    assert (one.measured_ms, one.activity["power"]) == (6000, 500 * 2000)


@pytest.mark.parametrize("values", [{MEMORY: 1.0}, {SM: 0.5, TENSOR: 0.5}], ids=["nothing", "parts"])
def test_a_gpu_that_does_not_report_its_use_is_not_measured(
    node: Node, clocks: Clocks, values: dict[str, float]
) -> None:
    node.held(a="p")
    for _ in range(2):
        node.read(**values)
        clocks.s += 1
    assert node.used() == {}


def test_a_time_without_readings_is_not_measured(node: Node, clocks: Clocks) -> None:
    node.held(a="p")
    node.read()
    clocks.s += LONGEST_S + 1
    node.read()
    clocks.s += 1
    node.read()
    assert [one.measured_ms for one in node.used().values()] == [1000]


def test_a_reading_that_comes_twice_counts_once(node: Node, clocks: Clocks) -> None:
    node.held(a="p")
    for _ in range(3):
        node.read()
        node.read()
        clocks.s += 5
    assert sum(one.measured_ms for one in node.used().values()) == 10_000


@given(st.lists(st.tuples(st.integers(1, 50), st.sampled_from([0, 0, 0, -HOUR_MS, -90_000, 25 * HOUR_MS, 7_000]))))
def test_a_wall_clock_that_jumps_adds_and_hides_no_time(jumps: list[tuple[int, int]]) -> None:
    """Whatever the hours are, together they have the time that passed, and each is one that a collector accepts."""
    clocks = Clocks()
    clocks.ahead_ms += 100_000 * HOUR_MS  # Jumps do not lead before 1970.
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "monotonic", lambda: clocks.s)
        patch.setattr(module, "KEPT_HOURS", 10_000)
        node = Node(Path(folder), clocks)
        node.held(a="p")
        node.read()
        latest_ms = clocks.wall_ms
        for passed_s, ahead_ms in jumps:
            clocks.s += passed_s
            clocks.ahead_ms += ahead_ms
            latest_ms = max(latest_ms, clocks.wall_ms)
            node.read()
        hours = node.hours.since(0)
        assert sum(one.measured_ms for one in hours) == 1000 * sum(passed_s for passed_s, _ in jumps)
        assert all(credible(one, "n1", latest_ms) for one in hours)


def test_the_time_in_which_the_owner_changes_or_is_not_known_is_not_counted(node: Node, clocks: Clocks) -> None:
    def reads(count: int) -> None:
        for _ in range(count):
            clocks.s += 1
            node.read()
        clocks.s += 0.5

    reads(2)  # Nothing is known of owners yet.
    node.held(a="p")
    reads(3)  # It may have been held for a part of the time before the first one.
    node.held(a="q")
    reads(2)
    node.held(a="q")
    reads(1)  # The same owner: 1.5 s.
    node.hours.owned(None)
    node.held(a="q")
    reads(2)
    node.held()
    reads(2)
    node.hours.owned(None)
    reads(2)
    measured: Counter[str] = Counter()
    for (_, pod, _), one in node.used().items():
        measured[pod] += one.measured_ms
    assert measured == {"p": 2000, "q": 1000 + 1500 + 1000, "": 1000}


def test_of_a_gpu_that_several_pods_share_each_has_its_own_use(
    node: Node, clocks: Clocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = {"p": PartUse(0.3, 700), "q": PartUse(0.04, 20)}
    monkeypatch.setattr(SharedUse, "of", lambda *_: parts)
    node.held(a="p,q")
    for _ in range(3):
        node.read()
        clocks.s += 1
    node.held(a="p,q,r")
    node.read()  # What r has used since then is not known.
    used = {pod: one for (_, pod, _), one in node.used().items()}
    assert used.keys() == {"p", "q"}
    assert (used["p"].measured_ms, used["p"].use, used["p"].idle_ms) == (2000, 300 * 2000, 0)
    assert (used["p"].memory_peak_mib, used["p"].activity) == (700, {"utilization": 300 * 2000})
    assert (used["q"].use, used["q"].idle_ms, used["q"].used_until_ms) == (40 * 2000, 2000, 0)


def test_a_gpu_that_several_pods_share_is_not_measured_where_processes_are_not_seen(
    node: Node, clocks: Clocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SharedUse, "of", lambda *_: {})
    node.held(a="p,q", b="p,p")
    for _ in range(2):
        node.read("a")
        node.read("b")
        clocks.s += 1
    # Two containers of one pod are one user.
    assert node.used().keys() == {("b", "p", 4)}


def test_an_instance_is_used_under_the_uuid_of_its_gpu(node: Node, clocks: Clocks) -> None:
    node.held(**{"MIG-1": "p", "MIG-2": "q"})
    for _ in range(2):
        node.read("MIG-1", parent="a", **{ENGINE: 0.5, SM: 0.5, DRAM: 0.0})
        node.read("MIG-2", parent="a", **{ENGINE: 0.0, SM: 0.0, DRAM: 0.0})
        clocks.s += 1
    # Tensor activity is not reported, nor is utilization: the engine stands for it.
    assert {pod: one.use for (gpu, pod, _), one in node.used().items() if gpu == "a"} == {"p": 400 * 1000, "q": 0}


def test_a_pod_is_idle_that_uses_none_of_its_instances(node: Node, clocks: Clocks) -> None:
    node.held(**{"MIG-1": "p", "MIG-2": "q", "b": "p"})
    for minute in range(90):
        node.read("MIG-1", parent="a", **{UTILIZATION: 0})
        node.read("MIG-2", parent="a", **{UTILIZATION: 90})
        node.read("b", **{UTILIZATION: 90 if minute < 70 else 0})
        clocks.s += 60
    assert node.hours.idle() == {"p": clocks.wall_ms - 21 * 60_000}
    node.hours.owned(None)
    assert node.hours.idle() == {}


def test_a_restarted_agent_goes_on(node: Node, clocks: Clocks, tmp_path: Path) -> None:
    node.held(a="p")
    node.read()
    clocks.s += 5
    node.read()
    node.hours.write(now=True)
    again = Node(tmp_path, clocks)
    again.held(a="p")
    again.read()
    clocks.s += 1
    again.read()
    ((key, one),) = again.used().items()
    assert (key, one.measured_ms) == (("a", "p", 4), 6000) and not again.hours.faults
    assert one.source == node.used()[key].source


def test_a_damaged_file_is_reported_and_another_source_begins(node: Node, clocks: Clocks, tmp_path: Path) -> None:
    node.held(a="p")
    node.read()
    clocks.s += 5
    node.read()
    node.hours.write(now=True)
    (tmp_path / "use.json").write_text("{")
    again = Node(tmp_path, clocks)
    assert again.used() == {} and "counted anew" in " ".join(again.hours.faults)
    again.held(a="p")
    again.read()
    clocks.s += 1
    again.read()
    assert {one.source for one in again.used().values()} != {one.source for one in node.used().values()}


def test_old_hours_go_and_the_number_is_bounded(node: Node, clocks: Clocks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST", 40)
    for hour in range(3 * KEPT_HOURS):
        for pod in ("p", "q"):
            node.held(a=pod)
            node.read()
            clocks.s += 1
            node.read()
        clocks.s += 3598
        used = node.used()
        newest = 4 + hour
        assert len(used) <= 40 and {("a", "p", newest), ("a", "q", newest)} <= used.keys()
        assert min(hour for _, _, hour in used) >= newest - KEPT_HOURS


@given(st.lists(st.tuples(st.integers(1, 70), st.sampled_from(["", "p", "q"]), st.integers(0, 100)), max_size=30))
def test_what_is_measured_adds_up(tmp_path_factory: Any, steps: list[tuple[int, str, int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        clocks = Clocks()
        patch.setattr(time, "monotonic", lambda: clocks.s)
        node = Node(tmp_path_factory.mktemp("use"), clocks)
        node.held()
        node.read(**{UTILIZATION: 0})
        holder, measured, use = "", 0, 0
        for s, pod, percent in steps:
            clocks.s += s
            node.read(**{UTILIZATION: percent})
            if s <= LONGEST_S:
                measured, use = measured + s * 1000, use + s * 1000 * percent * 10
            if pod != holder:
                # The next reading counts again: the owner changes at the moment of the one before.
                node.held(**({"a": pod} if pod else {}))
                holder = pod
        found = node.used().values()
        assert sum(one.measured_ms for one in found) == measured
        assert abs(sum(one.use for one in found) - use) <= len(found) * len(steps)
        assert all(sum(one.histogram) == one.measured_ms >= one.idle_ms for one in found)


class FixedHostUse(HostUse):
    """Reports what is in `used`."""

    def __init__(self) -> None:
        self.used: dict[str, HostUsed] = {}

    def of(self, uid: str, now_s: float) -> HostUsed | None:
        return self.used.get(uid)


def test_cpus_and_memory_of_the_node_are_divided_over_the_devices_of_the_pod(tmp_path: Path, clocks: Clocks) -> None:
    """Of a pod with two GPUs and one that shares a third: CPUs add up, memory is the most so far."""
    node, host = Node(tmp_path, clocks), FixedHostUse()
    node.hours = UseHours(tmp_path / "use.json", "n1", lambda: clocks.wall_ms, host=host)
    clocks.ahead_ms -= 600_000
    node.held(a="p", b="p", c="q")
    for cpu_milli, memory_mib in ((0.0, 0.0), (3000.0, 800.0), (5000.0, 600.0), (0.0, 0.0)):
        host.used = {"p": HostUsed(cpu_milli, memory_mib)} if memory_mib else {}
        for gpu in "abc":
            node.read(gpu)
        clocks.s += 15
    found = {gpu: one for (gpu, _, _), one in node.used().items()}
    assert {one.measured_ms for one in found.values()} == {45_000}
    for gpu in "ab":
        assert found[gpu].activity["host_cpu"] == (1500 + 2500) * 15_000
        assert found[gpu].activity["host_memory"] == 400 * 45_000
    assert not {"host_cpu", "host_memory"} & found["c"].activity.keys()
    assert all(credible(one, "n1", clocks.wall_ms) for one in found.values())


def test_one_thread_at_a_time_writes_the_file(tmp_path: Path, clocks: Clocks, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that hung answers when the agent ends: its thread writes, and so does the end."""
    node = Node(tmp_path, clocks)
    writes, first, go = CheckpointFile.write, threading.Event(), threading.Event()
    inside: list[int] = []
    most: list[int] = []

    def held(self: CheckpointFile[UseMemory], value: UseMemory) -> None:
        inside.append(1)
        most.append(len(inside))
        first.set()
        assert go.wait(PATIENCE_S)
        writes(self, value)
        inside.pop()

    monkeypatch.setattr(CheckpointFile, "write", held)
    threads = [threading.Thread(target=lambda: node.hours.write(now=True), daemon=True) for _ in range(2)]
    threads[0].start()
    assert first.wait(PATIENCE_S)
    threads[1].start()
    threads[1].join(0.1)
    go.set()
    for one in threads:
        one.join(PATIENCE_S)
    assert most == [1, 1]
    assert node.hours.faults == ()
