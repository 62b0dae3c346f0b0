# SPDX-License-Identifier: Apache-2.0
"""What pods use of GPUs becomes series, and processes that hold nothing are reported once they persist."""

from __future__ import annotations

from pathlib import Path

from dovetail.agent.exporter.accounting import PERSISTS_S, PodAccounting
from dovetail.agent.exporter.owners import NodePod
from dovetail.agent.exporter.processes import HOLDERS
from dovetail.agent.exporter.reading import DeviceReading, GpuReading, Owner, Owners, Process

MIB = 1 << 20
UIDS = {name: f"{name * 8}-0000-4000-8000-000000000000" for name in "abc"}
PODS = {("ns", name): NodePod("ns", name, (uid,)) for name, uid in UIDS.items()}


class Node:
    """Processes on one GPU. `pids` are by pod; "" for a process outside of pods."""

    def __init__(self, proc: Path, *, host: bool = True) -> None:
        self._proc = proc
        self.now_s = 0.0
        self.changes = 0
        self.processes: list[Process] = []
        self.accounting = PodAccounting(lambda: PODS, proc, lambda: self.now_s, self._count)
        self._write(2, "", "kthreadd" if host else "python")

    def _count(self) -> None:
        self.changes += 1

    def _write(self, pid: int, pod: str, comm: str = "python") -> None:
        folder = self._proc / str(pid)
        folder.mkdir()
        (folder / "cgroup").write_text(f"0::/kubepods/pod{UIDS[pod]}/x\n" if pod else "0::/\n")
        (folder / "comm").write_text(comm)

    def run(self, pid: int, pod: str, mib: int, sm: int | None) -> None:
        self._write(pid, pod)
        self.processes.append(Process(pid, "GPU-a", mib * MIB, sm))

    def read(self, *owners: str) -> tuple[dict[tuple[str, str], dict[str, float]], dict[tuple[str, str], float]]:
        """The values of owners, and samples by name and last label."""
        device = DeviceReading("GPU-a", 0, "", "H100", 0, "", None, None, "", {})
        reading = GpuReading((device,), tuple(self.processes), 0.0, {})
        shares = tuple(Owner("ns", name, UIDS[name], "main", 1 / len(owners)) for name in owners)
        found = self.accounting([reading], Owners({"GPU-a": shares} if shares else {}, 0.0))
        return found.values, {(one.name, one.labels[-1][1]): one.value for one in found.samples}


def test_a_pod_has_the_memory_and_sm_use_of_its_processes(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.run(10, "a", 100, 30)
    node.run(11, "a", 50, 5)
    values, samples = node.read("a")
    # A whole GPU's own values are those of the device.
    assert values == {}
    assert samples["dovetail_gpu_pod_memory_used_bytes", UIDS["a"]] == 150 * MIB
    assert samples["dovetail_gpu_pod_sm_ratio", UIDS["a"]] == 0.35
    assert samples["dovetail_gpu_processes", "owner"] == 2


def test_each_owner_of_a_shared_gpu_has_its_own_use(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.run(10, "a", 100, 60)
    node.run(11, "a", 100, 60)
    values, _ = node.read("a", "b")
    assert values == {
        ("GPU-a", UIDS["a"]): {"DCGM_FI_DEV_FB_USED": 200, "DCGM_FI_DEV_GPU_UTIL": 100},
        ("GPU-a", UIDS["b"]): {"DCGM_FI_DEV_FB_USED": 0, "DCGM_FI_DEV_GPU_UTIL": 0},
    }


def test_a_gpu_without_processes_has_zeros(tmp_path: Path) -> None:
    _, samples = Node(tmp_path).read()
    assert samples == {
        **{("dovetail_gpu_processes", holder): 0 for holder in HOLDERS},
        **{("dovetail_gpu_unowned_memory_bytes", holder): 0 for holder in ("other_pod", "no_pod", "gone")},
    }


def test_without_the_hosts_processes_they_have_no_series(tmp_path: Path) -> None:
    node = Node(tmp_path, host=False)
    node.run(10, "a", 100, 30)
    assert node.read("a", "b") == ({}, {})


def test_a_process_without_a_share_is_reported_when_it_persists(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.run(10, "b", 100, None)
    _, samples = node.read("a")
    assert samples["dovetail_gpu_unowned_memory_bytes", "other_pod"] == 100 * MIB
    assert node.accounting.foreign == ()
    node.now_s = PERSISTS_S
    node.read("a")
    assert [(one.pid, one.pod) for one in node.accounting.foreign] == [(10, "b")]
    # It gets a share after all.
    node.read("a", "b")
    assert node.accounting.foreign == ()
    node.now_s = 2 * PERSISTS_S
    node.read("a")
    assert node.accounting.foreign == ()


def test_a_process_that_comes_and_goes_starts_anew(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.run(10, "", 1, None)
    node.read("a")
    processes, node.processes = node.processes, []
    node.now_s = PERSISTS_S - 1
    node.read("a")
    node.processes, node.now_s = processes, PERSISTS_S
    node.read("a")
    assert node.accounting.foreign == ()


def test_a_change_is_reported_at_once_and_the_next_one_after_a_while(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.read("a")
    node.run(10, "b", 100, None)
    node.read("a")
    assert node.changes == 0
    node.now_s = PERSISTS_S
    node.read("a")
    node.read("a")
    assert node.changes == 1
    # It has ended, and that is reported later.
    node.processes.clear()
    node.read("a")
    assert (node.accounting.foreign, node.changes) == ((), 1)
    node.now_s = 2 * PERSISTS_S
    node.read("a")
    node.now_s = 3 * PERSISTS_S
    node.read("a")
    assert node.changes == 2
