# SPDX-License-Identifier: Apache-2.0
"""Claims on a node: prepared, unprepared, and what is left of them when the process stops anywhere."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from dovetail.agent.cdi import CdiError, Edits, Mount
from dovetail.agent.checkpoint import CheckpointError
from dovetail.agent.dra.configs import ClaimError
from dovetail.agent.dra.prepared import TakenDevice
from dovetail.agent.dra.timeslices import set_slice
from dovetail.agent.machine.host import Unread
from dovetail.agent.machine.nvml import DRIVER_NOT_LOADED, NvmlError
from tests.agent.dra.device_node import STEP, Node, gpu, host
from tests.paths import ROOT

SMALL, OTHER, HALF = "gpu-0-mig-1g5gb-19-3", "gpu-0-mig-1g5gb-19-6", "gpu-0-mig-3g20gb-9-0"


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """Two GPUs that can be divided, two that are whole."""
    return make(tmp_path)


def make(root: Path) -> Node:
    return Node(root, host(gpu(0, ()), gpu(1, ()), gpu(2), gpu(3)))


def specification(node: Node, uid: str) -> dict[str, object]:
    return msgspec.json.decode((node.root / f"cdi/dovetail.dev-claim_{uid}.json").read_bytes())


def test_a_whole_gpu_is_its_node_and_the_drivers_files(node: Node) -> None:
    node.prepare("a", "gpu-2")
    found = specification(node, "a")
    assert found["kind"] == "dovetail.dev/claim"
    (device,) = found["devices"]
    assert device["name"] == "a-gpu-2"
    assert [each["path"] for each in device["containerEdits"]["deviceNodes"]] == ["/dev/nvidia2"]
    assert "NVIDIA_VISIBLE_DEVICES=void" in found["containerEdits"]["env"]
    assert node.troubles() == []


def test_what_containers_get_for_their_network_is_in_the_file_and_stays_as_it_was_prepared(node: Node) -> None:
    network = Edits(env=(("NCCL_SOCKET_IFNAME", "=eth0"),), mounts=(Mount("/a", "/etc/nccl.conf"),))
    (wanted,) = node.wanted("gpu-2")
    node.prepared.prepare("a", "ns", "claim-a", [replace(wanted, network=network)])
    before = specification(node, "a")
    (device,) = before["devices"]
    assert "NCCL_SOCKET_IFNAME==eth0" in device["containerEdits"]["env"]
    assert "/etc/nccl.conf" in [each["containerPath"] for each in device["containerEdits"]["mounts"]]
    node.restart()
    node.prepared.prepare("a", "ns", "claim-a", [wanted])
    assert specification(node, "a") == before


def test_an_instance_is_made_for_the_claim_and_ends_with_it(node: Node) -> None:
    node.prepare("a", SMALL)
    assert list(node.silicon.live().values()) == [("GPU-0", "1g.5gb", 3)]
    nodes = specification(node, "a")["devices"][0]["containerEdits"]["deviceNodes"]
    assert [each["path"] for each in nodes] == [
        "/dev/nvidia0",
        "/dev/nvidia-caps/nvidia-cap2",
        "/dev/nvidia-caps/nvidia-cap3",
    ]
    assert nodes[1]["major"] == 236
    node.prepared.unprepare("a")
    assert node.silicon.live() == {}
    assert node.troubles() == []


def test_the_second_time_changes_nothing(node: Node) -> None:
    node.prepare("a", SMALL, "gpu-1-mig-7g40gb-0-0")
    before = node.prepared.records["a"]
    node.prepare("a", SMALL, "gpu-1-mig-7g40gb-0-0")
    assert node.prepared.records["a"] == before
    assert node.troubles() == []
    node.prepared.unprepare("a")
    node.prepared.unprepare("a")
    node.prepared.unprepare("never prepared")
    assert node.troubles() == []


def test_what_overlaps_is_refused_as_long_as_it_is_prepared(node: Node) -> None:
    node.prepare("a", SMALL)
    with pytest.raises(TakenDevice, match=r"gpu-0-mig-3g20gb-9-0 is still prepared for the claim ns/claim-a"):
        node.prepare("b", HALF)
    assert node.troubles() == []
    node.prepare("c", OTHER)
    node.prepared.unprepare("a")
    node.prepare("b", HALF)
    assert node.troubles() == []


def test_a_whole_gpu_is_not_prepared_twice(node: Node) -> None:
    node.prepare("a", "gpu-2")
    with pytest.raises(TakenDevice):
        node.prepare("b", "gpu-3", "gpu-2")
    assert list(node.prepared.records) == ["a"]
    assert node.troubles() == []


def test_admin_access_looks_at_what_others_use(node: Node) -> None:
    node.prepare("a", "gpu-2", SMALL)
    node.prepared.prepare("b", "ns", "b", node.wanted("gpu-2", SMALL, admin=True))
    node.prepared.unprepare("b")
    assert list(node.silicon.live().values()) == [("GPU-0", "1g.5gb", 3)]
    with pytest.raises(ClaimError, match="does not exist"):
        node.prepared.prepare("b", "ns", "b", node.wanted(OTHER, admin=True))
    assert node.troubles() == []


def test_another_allocation_of_the_same_claim_takes_the_place_of_the_first(node: Node) -> None:
    node.prepare("a", SMALL)
    node.prepare("a", "gpu-3")
    assert [device.name for device in node.prepared.records["a"].devices] == ["gpu-3"]
    assert node.troubles() == []


def test_an_instance_of_another_program_is_used_and_stays(node: Node) -> None:
    there = node.silicon.make(node.found.gpus[0], node.devices()[SMALL].partition)
    node.prepared.host = node.silicon.seen(node.found)
    assert SMALL in node.devices() and HALF not in node.devices()
    node.prepare("a", SMALL)
    assert node.prepared.records["a"].devices[0].uuid == there.uuid
    node.restart()
    node.prepared.unprepare("a")
    assert node.troubles([there.uuid]) == []


def test_a_failure_leaves_nothing(node: Node) -> None:
    (node.root / "driver/dev/nvidia0").unlink()
    with pytest.raises(Exception, match=r"dev/nvidia0, the device node of GPU GPU-0, does not exist"):
        node.prepare("a", SMALL)
    assert node.prepared.records == {}
    assert node.troubles() == []


REFUSALS = {
    "nvidia-smi is not there": lambda: set_slice(["/no/such/program"], "GPU-2", 2),
    "nvidia-smi fails": lambda: set_slice(["false"], "GPU-2", 2),
    "nvidia-smi hangs": lambda: _hangs(),
}


def _hangs() -> None:
    raise ClaimError("timeSlicingConfig.interval: nvidia-smi did not end in 20 s")


@pytest.mark.parametrize("why", REFUSALS)
def test_a_time_slice_that_cannot_be_set_fails_only_its_claim(why: str, node: Node) -> None:
    sets: list[tuple[str, int]] = []

    def refuse(uuid: str, interval: int) -> None:
        sets.append((uuid, interval))
        REFUSALS[why]()

    works = node.silicon.interval
    node.silicon.interval = refuse  # type: ignore[method-assign]
    node.restart()
    for _ in range(2):
        with pytest.raises(ClaimError, match=r"timeSlicingConfig\.interval"):
            node.prepare("a", "gpu-2", interval=2)
        assert node.prepared.records == {} and node.troubles() == []
    if why != "nvidia-smi hangs":
        assert {interval for _, interval in sets} == {2}, "there is nothing to be put back"
    node.prepare("b", "gpu-2")
    node.prepared.unprepare("b")
    node.restart()
    node.prepare("b", "gpu-2")
    node.silicon.interval = works  # type: ignore[method-assign]
    node.restart()
    node.prepared.unprepare("b")
    node.prepare("a", "gpu-2", interval=2)
    assert node.silicon.intervals == {node.found.gpus[2].uuid: 2} and node.troubles() == []


def test_a_time_slice_that_cannot_be_restored_blocks_no_claim_and_is_restored_later(node: Node) -> None:
    node.prepare("a", "gpu-2", interval=2)
    works = node.silicon.interval

    def refuse(uuid: str, interval: int) -> None:
        REFUSALS["nvidia-smi fails"]()

    node.silicon.interval = refuse  # type: ignore[method-assign]
    node.restart()
    node.prepared.unprepare("a")
    assert node.prepared.records == {}
    node.prepare("b", "gpu-2")
    node.restart()
    assert list(node.prepared.records) == ["b"]
    node.silicon.interval = works  # type: ignore[method-assign]
    node.restart()
    assert node.silicon.intervals == {} and node.troubles() == []


def test_a_record_of_a_release_that_gave_up_makes_way(node: Node) -> None:
    """It was half done, with a time slice that could not be put back."""
    node.prepare("a", "gpu-2", interval=2)
    record = node.prepared.records["a"]
    node.prepared._put(replace(record, complete=False))

    def refuse(uuid: str, interval: int) -> None:
        REFUSALS["nvidia-smi fails"]()

    node.silicon.interval = refuse  # type: ignore[method-assign]
    node.restart()
    node.prepare("b", "gpu-2")
    assert list(node.prepared.records) == ["b"]


def test_a_cdi_folder_that_cannot_be_written_is_named(node: Node) -> None:
    (node.root / "cdi").write_text("a file")
    with pytest.raises(CdiError, match=r"cannot (write|read|remove) .*/cdi"):
        node.prepare("a", "gpu-2")
    (node.root / "cdi").unlink()
    node.restart()
    assert node.troubles() == []


def test_a_checkpoint_of_another_program_is_refused(node: Node) -> None:
    node.prepare("a", "gpu-2")
    path = node.root / "plugin/claims.json"
    path.write_bytes(path.read_bytes().replace(b"gpu-2", b"gpu-3"))
    with pytest.raises(CheckpointError, match="checksum is wrong"):
        node.restart()


def test_an_instance_in_use_stays_and_so_does_its_claim(node: Node) -> None:
    node.prepare("a", SMALL)
    node.silicon.busy = set(node.silicon.live())
    with pytest.raises(NvmlError, match="in use"):
        node.prepared.unprepare("a")
    with pytest.raises(NvmlError, match="in use"):
        node.prepare("b", HALF)
    node.silicon.busy = set()
    node.prepare("b", HALF)
    assert list(node.prepared.records) == ["b"]
    assert node.troubles() == []


def test_the_pod_of_a_dead_gpu_can_end_and_its_devices_wait(node: Node) -> None:
    node.prepare("a", SMALL)
    node.silicon.dead = NvmlError("nvmlDeviceGetHandleByUUID", DRIVER_NOT_LOADED, "")
    node.prepared.unprepare("a")
    assert node.cdi.names() == frozenset()
    with pytest.raises(NvmlError):
        node.prepare("b", HALF)
    node.silicon.dead = None
    node.prepared.finish()
    assert node.prepared.records == {}
    assert node.troubles() == []


def test_a_gpu_that_is_gone_took_its_instances_along(node: Node) -> None:
    node.prepare("a", SMALL)
    node.silicon.reboot()
    node.found = host(gpu(1, ()), gpu(2))
    node.prepared.host = node.found
    node.prepared.unprepare("a")
    assert node.troubles() == []


def test_while_no_gpu_can_be_read_running_claims_stay(node: Node) -> None:
    node.prepare("a", SMALL, "gpu-2")
    node.found = host()
    node.restart()
    assert node.prepared.records["a"].complete
    node.found = host(gpu(0, ()), gpu(1, ()), gpu(2), gpu(3))
    node.restart()
    assert node.troubles() == []


def test_claims_stay_while_the_instances_of_a_gpu_are_unknown(node: Node) -> None:
    node.prepare("a", SMALL)
    first, *others = node.found.gpus
    readable, node.found = (
        node.found,
        replace(
            node.found,
            gpus=(replace(first, mig=None), *others),
            unread=(Unread("gpus[0].mig", "nvmlDeviceGetMigMode: lost"),),
        ),
    )
    node.restart()
    assert node.prepared.records["a"].complete
    node.prepared.unprepare("a")
    assert not node.prepared.records["a"].complete
    node.found = readable
    node.restart()
    assert node.troubles() == []


def test_after_a_reboot_files_are_written_again_and_lost_instances_forgotten(node: Node) -> None:
    node.prepare("whole", "gpu-2")
    node.prepare("part", SMALL)
    node.silicon.reboot()
    for path in (node.root / "cdi").iterdir():
        path.unlink()
    node.restart()
    assert list(node.prepared.records) == ["whole"]
    assert node.troubles() == []
    node.prepare("part", SMALL)
    assert node.troubles() == []


def test_files_of_claims_that_are_not_on_record_are_removed_at_the_start(node: Node) -> None:
    node.prepare("a", "gpu-2")
    (node.root / "cdi/dovetail.dev-claim_b.json").write_text('{"kind": "dovetail.dev/claim"}')
    (node.root / "cdi/dovetail.dev-claim_c.json.new").write_text('{"ki')
    (node.root / "cdi/nvidia.com-gpu.json").write_text("{}")
    node.restart()
    assert node.troubles() == []
    assert (node.root / "cdi/nvidia.com-gpu.json").exists()


def test_a_time_slice_is_set_and_put_back(node: Node) -> None:
    node.prepare("a", "gpu-2", interval=3)
    assert node.silicon.intervals == {"GPU-2": 3}
    node.prepared.unprepare("a")
    assert node.silicon.intervals == {}


def test_nvidia_smi_is_asked_for_a_time_slice(tmp_path: Path) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(
        f'#!/bin/sh\necho "$@" > {tmp_path}/asked\n[ "$3" = GPU-1 ] || {{ echo No such GPU; exit 6; }}\n'
    )
    program.chmod(0o755)
    set_slice([str(program)], "GPU-1", 2)
    assert (tmp_path / "asked").read_text() == "compute-policy -i GPU-1 --set-timeslice=2\n"
    with pytest.raises(ClaimError, match="No such GPU"):
        set_slice([str(program)], "GPU-9", 2)
    with pytest.raises(ClaimError, match="nowhere/nvidia-smi, which is not there"):
        set_slice(["/nowhere/nvidia-smi"], "GPU-1", 2)


class Killed(BaseException):
    """Nothing catches it, as nothing catches kill -9."""


class Steps:
    """Counts what changes something below `root`, and stops before the step `at`."""

    def __init__(self, root: Path, at: int) -> None:
        self._root = str(root)
        self._at = at
        self.count = 0

    def __call__(self, event: str, args: tuple[object, ...]) -> None:
        if event == STEP or (self._writes(event, args) and "silicon" not in str(args[0])):
            self.count += 1
            if self.count == self._at:
                raise Killed(f"before {event} {args}")

    def _writes(self, event: str, args: tuple[object, ...]) -> bool:
        if not args or not str(args[0]).startswith(self._root):
            return False
        if event == "open":
            return bool(int(str(args[2])) & (os.O_WRONLY | os.O_RDWR))
        return event in ("os.rename", "os.remove", "os.mkdir")


_listening: list[Steps] = []


@contextmanager
def stopped_before(root: Path, at: int) -> Iterator[Steps]:
    if not _hooked:
        # An audit hook stays for the life of the process, so there is one.
        sys.addaudithook(lambda event, args: _listening[-1](event, args) if _listening else None)
        _hooked.append(True)
    _listening.append(Steps(root, at))
    try:
        yield _listening[-1]
    finally:
        _listening.pop()


_hooked: list[bool] = []

Work = Callable[[Node], None]
CHANGES: dict[str, tuple[Work, Work]] = {
    "a whole GPU is prepared": (lambda n: None, lambda n: n.prepare("a", "gpu-2")),
    "an instance is made": (lambda n: None, lambda n: n.prepare("a", SMALL)),
    "several devices are prepared": (lambda n: None, lambda n: n.prepare("a", SMALL, "gpu-1-mig-7g40gb-0-0", "gpu-3")),
    "a time slice is set": (lambda n: None, lambda n: n.prepare("a", "gpu-2", interval=2)),
    "beside another": (lambda n: n.prepare("b", OTHER), lambda n: n.prepare("a", SMALL)),
    "another allocation": (lambda n: n.prepare("a", SMALL), lambda n: n.prepare("a", HALF)),
    "a whole GPU is unprepared": (lambda n: n.prepare("a", "gpu-2"), lambda n: n.prepared.unprepare("a")),
    "an instance is destroyed": (lambda n: n.prepare("a", SMALL), lambda n: n.prepared.unprepare("a")),
    "several are destroyed": (lambda n: n.prepare("a", SMALL, OTHER, "gpu-3"), lambda n: n.prepared.unprepare("a")),
    "a time slice is put back": (lambda n: n.prepare("a", "gpu-2", interval=2), lambda n: n.prepared.unprepare("a")),
}


@pytest.mark.slow
@pytest.mark.parametrize("before, change", CHANGES.values(), ids=CHANGES)
def test_a_process_that_stops_before_any_step_leaves_all_in_order(before: Work, change: Work, tmp_path: Path) -> None:
    at = 0
    while True:
        at += 1
        node = make(tmp_path / str(at))
        before(node)
        kept = set(node.prepared.records) - {"a"}
        try:
            with stopped_before(node.root, at) as steps:
                change(node)
        except Killed:
            node.restart()
            assert node.troubles() == [], at
            assert kept <= set(node.prepared.records)
            change(node)
            assert node.troubles() == [], at
            assert _state(node) == _state_of(before, change, tmp_path), at
            continue
        assert steps.count == at - 1 >= 4
        return


@pytest.mark.slow
@pytest.mark.parametrize("name", ["another allocation", "a time slice is put back"])
def test_a_start_that_stops_before_any_step_is_made_up_for_by_the_next(name: str, tmp_path: Path) -> None:
    before, change = CHANGES[name]
    first, last = 1, _steps(before, change, tmp_path)
    for at in range(first, last + 1):
        second = 0
        while True:
            second += 1
            node = make(tmp_path / f"{at}-{second}")
            before(node)
            with pytest.raises(Killed), stopped_before(node.root, at):
                change(node)
            try:
                with stopped_before(node.root, second):
                    node.restart()
            except Killed:
                node.restart()
                assert node.troubles() == [], (at, second)
                continue
            break


def _steps(before: Work, change: Work, tmp_path: Path) -> int:
    node = make(tmp_path / "counted")
    before(node)
    with stopped_before(node.root, 0) as steps:
        change(node)
    return steps.count


def _state_of(before: Work, change: Work, tmp_path: Path) -> object:
    node = make(tmp_path / "whole")
    if not node.prepared.records and not node.silicon.live():
        before(node)
        change(node)
    return _state(node)


def _state(node: Node) -> object:
    records = {uid: [device.name for device in each.devices] for uid, each in node.prepared.records.items()}
    return records, sorted(node.silicon.live().values()), node.silicon.intervals


@pytest.mark.slow
def test_a_driver_killed_repeatedly_prepares_nothing_twice_and_loses_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.agent.dra.kills", str(tmp_path), "--kills", "40", "--seed", "11"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("40 kills")
