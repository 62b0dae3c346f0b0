# SPDX-License-Identifier: Apache-2.0
"""What pods use of a device that they share: all of it is known, or nothing."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from dovetail.agent.exporter.reading import DeviceReading, GpuReading, Owner, Process
from dovetail.agent.exporter.shared_use import PartUse, SharedUse

UIDS = {name: f"{name * 8}-0000-4000-8000-000000000000" for name in "abc"}
MIB = 1 << 20


class Node:
    """Processes on one GPU, each of a pod, or of none with ""."""

    def __init__(self, proc: Path) -> None:
        self.proc = proc
        self.now_s = 0.0
        self.use = SharedUse(proc, lambda: self.now_s)
        self.processes: list[Process] = []
        self._write(2, "", "kthreadd")

    def _write(self, pid: int, pod: str, comm: str) -> None:
        (self.proc / str(pid)).mkdir(parents=True)
        (self.proc / str(pid) / "cgroup").write_text(f"0::/kubepods/pod{UIDS[pod]}/x\n" if pod else "0::/\n")
        (self.proc / str(pid) / "comm").write_text(comm)

    def run(self, pod: str, sm: int | None, mib: int = 0, comm: str = "python", uuid: str = "g") -> None:
        pid = 10 + len(self.processes)
        self._write(pid, pod, comm)
        self.processes.append(Process(pid, uuid, mib * MIB, sm))

    def read(self, utilization: float = 0.0, **shares: float) -> dict[str, PartUse]:
        """By the letters of the pods."""
        device = DeviceReading("g", 0, "", "", 0, "", None, None, "", {"DCGM_FI_DEV_GPU_UTIL": utilization})
        owners = [Owner("ns", pod, UIDS[pod], "main", share) for pod, share in shares.items()]
        found = self.use.of(device, GpuReading((device,), tuple(self.processes), 0.0, {}), owners)
        names = {uid: name for name, uid in UIDS.items()}
        return {names[uid]: part for uid, part in found.items()}


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_each_pod_has_the_use_of_its_processes_as_a_part_of_what_it_holds(node: Node) -> None:
    node.run("a", 10, 100)
    node.run("a", 5, 50)
    node.run("b", 60, 4000)
    assert node.read(75, a=0.5, b=0.25, c=0.25) == {
        "a": PartUse(0.3, 150), "b": PartUse(1.0, 4000), "c": PartUse(0.0, 0)
    }  # fmt: skip


def test_a_gpu_that_nobody_uses_is_idle_for_all(node: Node) -> None:
    assert node.read(4, a=0.5, b=0.5) == {"a": PartUse(0.0, 0), "b": PartUse(0.0, 0)}
    node.run("a", 0, 300)
    assert node.read(4, a=0.5, b=0.5)["a"] == PartUse(0.0, 300)


@pytest.mark.parametrize(
    ("pod", "sm", "comm"),
    [("a", None, "python"), ("c", 0, "python"), ("", 0, "python"), ("", 0, "nvidia-cuda-mps-server")],
    ids=["not reported", "a pod that holds nothing", "no pod", "MPS"],
)
def test_what_one_process_hides_is_not_measured_of_any(node: Node, pod: str, sm: int | None, comm: str) -> None:
    node.run("a", 30)
    assert node.read(30, a=0.5, b=0.5)
    node.run(pod, sm, comm=comm)
    assert node.read(30, a=0.5, b=0.5) == {}


def test_use_that_no_process_shows_is_not_measured(node: Node) -> None:
    node.run("a", 0)
    assert node.read(4, a=0.5, b=0.5) and node.read(5, a=0.5, b=0.5) == {}


def test_processes_of_other_gpus_and_those_that_have_ended_are_left_out(node: Node) -> None:
    node.run("c", 90, uuid="other")
    node.run("a", 20)
    node.run("b", 20)
    shutil.rmtree(node.proc / "12")
    assert node.read(20, a=0.5, b=0.5) == {"a": PartUse(0.4, 0), "b": PartUse(0.0, 0)}


def test_without_the_processes_of_the_host_nothing_is_known(node: Node) -> None:
    (node.proc / "2" / "comm").write_text("python")
    assert node.read(0, a=0.5, b=0.5) == {}


@st.composite
def _processes(draw: DrawFn) -> list[tuple[str, int]]:
    return draw(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 100)), max_size=6))


@settings(max_examples=30)
@given(_processes(), st.integers(1, 1000), st.integers(0, 100))
def test_no_pod_uses_more_than_it_holds(
    tmp_path_factory: pytest.TempPathFactory, processes: list[tuple[str, int]], milli: int, utilization: int
) -> None:
    node = Node(tmp_path_factory.mktemp("proc"))
    for pod, sm in processes:
        node.run(pod, sm)
    found = node.read(utilization, a=milli / 1000, b=0.5, c=0.1)
    assert all(0 <= part.use <= 1 for part in found.values())
    assert found.keys() in (set(), set("abc"))
    if found:
        assert all((found[pod].use > 0) == any(sm for of, sm in processes if of == pod) for pod in "abc")
