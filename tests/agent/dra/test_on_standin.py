# SPDX-License-Identifier: Apache-2.0
"""Claims on a machine that answers NVML's calls: found as the agent finds it, divided through the binding."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dovetail.agent.cdi import CdiFolder
from dovetail.agent.dra.offer import Offered, offered
from dovetail.agent.dra.partitions import NvmlPartitions
from dovetail.agent.dra.prepared import Prepared, WantedClaim
from dovetail.agent.machine.discovery import discover
from dovetail.agent.machine.driver_files import DriverFiles
from dovetail.agent.machine.host import Host
from dovetail.agent.machine.nvml import IN_USE, Nvml, NvmlError
from dovetail.agent.machine.sysfs import Sysfs
from tools.standin import Standin


class Machine:
    """A stand-in whose first two GPUs are in MIG mode."""

    def __init__(self, made: Standin, nvml: Nvml, folder: Path) -> None:
        self.standin = made
        self._nvml = nvml
        for number in range(2):
            made.divide(number, [])
        files = DriverFiles(made.driver_root, made.dev, made.proc)
        checkpoint = folder / "plugin/claims.json"
        self.prepared = Prepared(checkpoint, CdiFolder(folder / "cdi"), files, NvmlPartitions(nvml), lambda *_: None)
        self.look()

    def look(self) -> Host:
        self.prepared.host = discover(self._nvml, Sysfs(self.standin.sysfs, self.standin.proc))
        return self.prepared.host

    def devices(self) -> dict[str, Offered]:
        return {each.name: each for each in offered(self.prepared.host, True, self.prepared.made)}

    def prepare(self, uid: str, *names: str) -> None:
        devices = self.devices()
        self.prepared.prepare(uid, "ns", uid, [WantedClaim(devices[name], "r") for name in names])

    def parts(self, gpu: int) -> list[tuple[str, int, int]]:
        """Profile, start, and how many compute instances."""
        return sorted((part.profile, part.start, len(part.cis)) for part in self.standin.parts(gpu))


@pytest.fixture
def machine(request: pytest.FixtureRequest, standin: Callable[[str], Standin], tmp_path: Path) -> Iterator[Machine]:
    """A DGX A100, or the host that the test names."""
    made = standin(getattr(request, "param", "dgx-a100"))
    with Nvml() as nvml:
        yield Machine(made, nvml, tmp_path)


def small(machine: Machine, gpu: int, start: int) -> str:
    """A partition of the smallest plain profile."""
    return next(
        name
        for name, each in machine.devices().items()
        if each.partition and each.gpu.index == gpu and each.partition.start == start and "-me-" not in name
    )


@pytest.mark.parametrize("machine", ["dgx-a100", "dgx-h100"], indirect=True)
def test_all_places_of_gpus_in_mig_mode_and_the_others_whole_are_offered(machine: Machine) -> None:
    kinds = [(each.gpu.index, each.partition is not None) for each in machine.devices().values()]
    assert {index for index, part in kinds if part} == {0, 1}
    assert [index for index, part in kinds if not part] == list(range(2, 8))
    assert kinds.count((0, True)) == 25


@pytest.mark.parametrize("machine", ["dgx-a100", "dgx-h100"], indirect=True)
@pytest.mark.slow
def test_an_instance_is_made_at_its_place_and_destroyed(machine: Machine) -> None:
    name = small(machine, 1, 3)
    machine.prepare("a", name, "gpu-4")
    assert [(start, computes) for _, start, computes in machine.parts(1)] == [(3, 1)]
    divided = machine.look().gpus[1]
    (instance,) = divided.mig or ()
    assert machine.prepared.records["a"].devices[0].uuid == instance.uuid
    assert machine.prepared.made == {(divided.uuid, instance.profile, 3): instance.uuid}
    assert len(machine.devices()) == 25 * 2 + 6
    machine.prepared.unprepare("a")
    assert machine.parts(1) == []


def test_a_gpu_filled_with_small_instances_has_no_place_for_more(machine: Machine) -> None:
    names = [small(machine, 0, start) for start in range(7)]
    for start, name in enumerate(names):
        machine.prepare(f"claim-{start}", name)
    assert [start for _, start, _ in machine.parts(0)] == list(range(7))
    for start in range(7):
        machine.prepared.unprepare(f"claim-{start}")
    assert machine.parts(0) == []


@pytest.mark.parametrize("call", ["nvmlGpuInstanceCreateComputeInstance", "nvmlDeviceCreateGpuInstanceWithPlacement"])
def test_a_creation_that_fails_half_way_leaves_nothing(call: str, machine: Machine) -> None:
    name = small(machine, 0, 0)
    machine.standin.fail(call, IN_USE)
    with pytest.raises(NvmlError):
        machine.prepare("a", name)
    assert machine.parts(0) == []
    assert machine.prepared.records == {}
    machine.standin.clear()
    machine.prepare("a", name)
    assert len(machine.parts(0)) == 1


def test_what_a_process_left_half_made_is_destroyed_at_the_next_start(machine: Machine) -> None:
    name = small(machine, 0, 0)
    machine.standin.fail("nvmlGpuInstanceCreateComputeInstance", IN_USE)
    machine.standin.fail("nvmlGpuInstanceDestroy", IN_USE)
    with pytest.raises(NvmlError):
        machine.prepare("a", name)
    assert [computes for _, _, computes in machine.parts(0)] == [0]
    machine.standin.clear()
    machine.prepared.recover()
    assert machine.parts(0) == []
    assert machine.prepared.records == {}


def test_an_instance_that_a_process_uses_is_not_destroyed(machine: Machine) -> None:
    machine.prepare("a", small(machine, 0, 0))
    machine.standin.fail("nvmlComputeInstanceDestroy", IN_USE)
    with pytest.raises(NvmlError, match="nvmlComputeInstanceDestroy"):
        machine.prepared.unprepare("a")
    machine.standin.clear()
    machine.prepared.unprepare("a")
    assert machine.parts(0) == []


def test_after_a_reboot_a_claim_has_a_new_instance(machine: Machine) -> None:
    name = small(machine, 0, 0)
    machine.prepare("a", name)
    machine.standin.reboot()
    for number in range(2):
        machine.standin.divide(number, [])
    machine.look()
    machine.prepared.recover()
    assert machine.prepared.records == {}
    machine.prepare("a", name)
    assert len(machine.parts(0)) == 1
