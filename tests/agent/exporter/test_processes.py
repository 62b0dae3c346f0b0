# SPDX-License-Identifier: Apache-2.0
"""Processes on GPUs are joined with pods by their cgroups, and those of no holder are found."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from dovetail.agent.exporter.owners import NodePod
from dovetail.agent.exporter.processes import (
    MOST_PROCESSES,
    Foreign,
    Origin,
    Origins,
    OwnProcess,
    PodUse,
    ProcessUse,
    process_use,
)
from dovetail.agent.exporter.reading import Owner, Process

UID = "1f2e3d4c-0000-4000-8000-00000000abcd"
OTHER = "aaaaaaaa-0000-4000-8000-000000000001"
STATIC = "0123456789abcdef0123456789abcdef"
CONTAINER = "f" * 64
PODS = {
    ("ns", "p"): NodePod("ns", "p", (UID,)),
    ("ns", "q"): NodePod("ns", "q", (OTHER,)),
}
OWNERS = {"GPU-a": (Owner("ns", "p", UID, "main", 1.0),)}


def _process(proc: Path, pid: int, cgroup: str, comm: str = "python") -> None:
    folder = proc / str(pid)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cgroup").write_text(cgroup)
    (folder / "comm").write_text(f"{comm}\n")


@pytest.mark.parametrize(
    ("cgroup", "uid"),
    [
        (f"0::/kubepods/besteffort/pod{UID}/{CONTAINER}\n", UID),
        (f"0::/kubepods/pod{UID}/{CONTAINER}\n", UID),
        (
            f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UID.replace('-', '_')}.slice/"
            f"cri-containerd-{CONTAINER}.scope\n",
            UID,
        ),
        (f"0::/../../kubepods-pod{UID.replace('-', '_')}.slice/crio-{CONTAINER}.scope\n", UID),
        (f"0::/kubelet/kubepods/burstable/pod{STATIC}/{CONTAINER}\n", STATIC),
        (f"12:memory:/kubepods/pod{UID}/{CONTAINER}\n11:cpu:/kubepods/pod{UID}/{CONTAINER}\n", UID),
        # A pod names cgroups below its own: the outermost counts.
        (f"0::/kubepods/pod{UID}/{CONTAINER}/pod{OTHER}/x\n", UID),
        ("0::/system.slice/sshd.service\n", ""),
        ("0::/\n", ""),
        (f"0::/user.slice/pod{UID[:-1]}/x\n", ""),
    ],
)
def test_a_cgroup_names_its_pod(tmp_path: Path, cgroup: str, uid: str) -> None:
    _process(tmp_path, 7, cgroup)
    assert Origins(tmp_path).of([7]) == {7: Origin(uid)}


def test_programs_of_the_driver_count_as_such_only_outside_of_pods(tmp_path: Path) -> None:
    _process(tmp_path, 1, "0::/system.slice/x\n", "nvidia-cuda-mps")
    _process(tmp_path, 2, f"0::/kubepods/pod{UID}/x\n", "nvidia-cuda-mps")
    _process(tmp_path, 3, "0::/user.slice\n", "python")
    assert Origins(tmp_path).of([1, 2, 3, 4]) == {1: Origin(system=True), 2: Origin(UID), 3: Origin()}


def test_a_pid_that_is_reused_is_read_again(tmp_path: Path) -> None:
    now_s = [0.0]
    origins = Origins(tmp_path, lambda: now_s[0])
    _process(tmp_path, 7, f"0::/kubepods/pod{UID}/x\n")
    assert origins.of([7])[7].uid == UID
    _process(tmp_path, 7, f"0::/kubepods/pod{OTHER}/x\n")
    assert origins.of([7])[7].uid == UID
    # It was not listed meanwhile, or a minute has passed.
    origins.of([])
    assert origins.of([7])[7].uid == OTHER
    _process(tmp_path, 7, f"0::/kubepods/pod{UID}/x\n")
    now_s[0] = 60.0
    assert origins.of([7])[7].uid == UID


def test_the_number_of_processes_is_bounded(tmp_path: Path) -> None:
    _process(tmp_path, 1, "0::/\n")
    assert Origins(tmp_path).of(range(1, MOST_PROCESSES + 2)).keys() == {1}


def _use(processes: Iterable[Process], origins: dict[int, Origin]) -> ProcessUse:
    return process_use(processes, origins, OWNERS, PODS, {"MIG-1": "GPU-a"})


def test_memory_and_sm_time_are_summed_by_pod() -> None:
    processes = [Process(1, "GPU-a", 10, 30), Process(2, "GPU-a", 5, None), Process(3, "GPU-a", None, 20)]
    found = _use(processes, {pid: Origin(UID) for pid in (1, 2, 3)})
    assert found.uses == (PodUse("GPU-a", "ns", "p", UID, 15, 50),)
    assert found.foreign == ()
    assert found.own == tuple(OwnProcess("GPU-a", pid, memory, "ns", "p") for pid, memory in ((1, 10), (2, 5), (3, 0)))


def test_processes_without_devices_are_distinguished() -> None:
    processes = [Process(pid, "GPU-a", pid, None) for pid in range(1, 6)]
    origins = {
        1: Origin(UID), 2: Origin(OTHER), 3: Origin(), 4: Origin("cccccccc-0000-4000-8000-000000000002"),
        5: Origin(system=True),
    }  # fmt: skip
    found = process_use(processes, origins, OWNERS, PODS, {})
    holders = ("owner", "other_pod", "no_pod", "gone", "system")
    assert found.counts == {("GPU-a", holder): 1 for holder in holders}
    assert found.memory_bytes == {("GPU-a", holder): pid for pid, holder in enumerate(holders, start=1)}
    assert found.foreign == (
        Foreign("GPU-a", 2, "other_pod", 2, "ns", "q", OTHER),
        Foreign("GPU-a", 3, "no_pod", 3),
        Foreign("GPU-a", 4, "gone", 4, pod_uid="cccccccc-0000-4000-8000-000000000002"),
    )


def test_an_owner_of_an_instance_may_have_processes_on_its_gpu() -> None:
    owners = {"MIG-1": (Owner("ns", "p", UID, "main", 1.0),)}
    processes = [Process(1, "GPU-a", 1, None), Process(1, "MIG-1", 1, None)]
    found = process_use(processes, {1: Origin(UID)}, owners, PODS, {"MIG-1": "GPU-a"})
    assert found.foreign == ()
    assert [one.uuid for one in found.uses] == ["GPU-a", "MIG-1"]


def test_a_process_that_ended_meanwhile_is_left_out() -> None:
    assert process_use([Process(1, "GPU-a", 1, None)], {}, OWNERS, PODS, {}).counts == {}
