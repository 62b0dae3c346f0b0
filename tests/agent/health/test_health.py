# SPDX-License-Identifier: Apache-2.0
"""A GPU is unhealthy from its event until its remedy was applied, and no other GPU is."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import threading
from collections.abc import AsyncIterator, Callable, Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from dovetail.agent import checkpoint
from dovetail.agent.checkpoint import CheckpointError, CheckpointFile
from dovetail.agent.health.exit_test import ExitTest
from dovetail.agent.health.gpu_events import EventsRead, GpuEvent, GpuEvents
from dovetail.agent.health.watch import HealthReport, HealthWatch, Unhealthy
from dovetail.agent.health.watched import IGNORED, Watched, watched
from dovetail.agent.health.xids import Action
from dovetail.agent.machine.nvml import Nvml
from tests.patience import PATIENCE_S
from tools.standin import Standin
from tools.standin.fixture import MakeStandin
from tools.standin.standin import RIGHTS


class Machine:
    """A stand-in host, and the agents' watches of it, one after the other."""

    def __init__(self, standin: Standin, folder: Path) -> None:
        self.standin = standin
        self.uuids = [gpu.uuid for gpu in standin.description.gpus]
        self.folder = folder
        self.sysfs, self.proc = folder / "kernel/sys", folder / "kernel/proc"
        self.load_driver()
        for gpu in standin.description.gpus:
            self.device(gpu.index).mkdir(parents=True)
        self.boot("first")
        self.held: Collection[str] = ()
        self.holders_error: OSError | None = None
        self.report = HealthReport()
        self.reported: tuple[Unhealthy, ...] | None = None
        self.reports = 0
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def load_driver(self) -> None:
        """As the kernel does it: what is made anew has another inode."""
        module = self.sysfs / "module/nvidia"
        fresh = self.folder / f"module-{len(list(self.folder.iterdir()))}"
        fresh.mkdir()
        module.parent.mkdir(parents=True, exist_ok=True)
        if module.exists():
            module.rename(self.folder / f"old-{fresh.name}")
        fresh.rename(module)

    def device(self, gpu: int) -> Path:
        return self.sysfs / "bus/pci/devices" / self.standin.description.gpus[gpu].device.bdf

    def boot(self, name: str) -> None:
        file = self.proc / "sys/kernel/random/boot_id"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{name}\n")

    async def holders(self) -> Collection[str]:
        if self.holders_error:
            raise self.holders_error
        return self.held

    def _heard(self, report: HealthReport) -> None:
        self.report, self.reported = report, report.unhealthy
        self.reports += 1
        self._changed.set()

    async def start(
        self,
        look_s: float = 0.1,
        watching: Watched | None = None,
        clean_s: float = 0,
        open_library: Callable[[], Nvml] = Nvml,
        **options: Any,
    ) -> HealthWatch:
        await self.stop()
        self.reported, self.reports = None, 0
        watch = HealthWatch(
            self._heard,
            checkpoint=self.folder / "health.json",
            holders=self.holders,
            watched=watching or watched({}),
            events=GpuEvents(self.sysfs, look_s, open_library),
            clean_s=clean_s,
            proc=self.proc,
            **options,
        )
        self._task = asyncio.create_task(watch.run())
        await self.until(lambda: self.reported is not None)
        return watch

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError, CheckpointError):
                await self._task
            self._task = None
        # A wait that is under way ends when something happens.
        for thread in [thread for thread in threading.enumerate() if thread.name == "nvml-events"]:
            while thread.is_alive():
                self.standin.xid(0, 43)
                await asyncio.to_thread(thread.join, 0.05)

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not holds():
                if self._task is not None and self._task.done():
                    self._task.result()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), 0.05)
                self._changed.clear()

    async def looks(self, number: int = 2) -> None:
        """So many more looks of the watch are over."""
        async with asyncio.timeout(PATIENCE_S):
            for _ in range(number):
                self.standin.set(0, utilization=1)
                await asyncio.sleep(0.12)

    @property
    def unhealthy(self) -> set[tuple[str, str]]:
        return {(fault.uuid, fault.code) for fault in self.reported or ()}

    async def is_unhealthy(self, *wanted: tuple[str, str]) -> None:
        try:
            await self.until(lambda: self.unhealthy == {*wanted})
        except TimeoutError:
            raise AssertionError(f"unhealthy: {self.reported}") from None


@pytest.fixture
async def machine(standin: MakeStandin, tmp_path: Path) -> AsyncIterator[Machine]:
    folder = tmp_path / "agent"
    folder.mkdir()
    made = Machine(standin("small-2numa"), folder)
    yield made
    await made.stop()


# Events


async def test_an_xid_makes_its_gpu_unhealthy_at_once_with_its_remedy(machine: Machine) -> None:
    """Long before the next look."""
    await machine.start(look_s=60)
    assert machine.reported == ()
    machine.standin.xid(3, 95)
    await machine.is_unhealthy((machine.uuids[3], "xid-95"))
    (fault,) = machine.reported or ()
    assert fault.message.startswith("XID 95, uncontained memory error: reset the GPU (nvidia-smi --gpu-reset")


async def test_errors_of_applications_make_no_gpu_unhealthy(machine: Machine) -> None:
    await machine.start()
    for xid in sorted(IGNORED | {63, 92, 137}):
        machine.standin.xid(0, xid)
    machine.standin.ecc(1, corrected=5)
    machine.standin.xid(2, 79)
    await machine.is_unhealthy((machine.uuids[2], "xid-79"))
    assert machine.reports == 2


async def test_a_double_bit_ecc_error_makes_its_gpu_unhealthy(machine: Machine) -> None:
    await machine.start()
    machine.standin.ecc(1, uncorrected=1)
    await machine.is_unhealthy((machine.uuids[1], "ecc-double-bit"))


async def test_several_errors_are_several_illnesses_and_the_same_twice_is_one(machine: Machine) -> None:
    await machine.start()
    for xid in (48, 95, 48):
        machine.standin.xid(1, xid)
    await machine.is_unhealthy((machine.uuids[1], "xid-48"), (machine.uuids[1], "xid-95"))


async def test_an_event_of_a_mig_instance_hits_it_alone(machine: Machine) -> None:
    machine.standin.divide(2, [("3g.20gb", 0), ("1g.5gb", 4), ("1g.5gb", 5)])
    hit = machine.standin.parts(2)[1]
    await machine.start()
    machine.standin.xid(2, 95, hit.gi, hit.cis[0])
    await machine.until(lambda: len(machine.unhealthy) == 1)
    ((uuid, code),) = machine.unhealthy
    assert uuid.startswith("MIG-") and code == "xid-95"
    with Nvml() as nvml:
        instance = nvml.call("nvmlDeviceGetHandleByUUID", uuid)
        assert nvml.call("nvmlDeviceGetGpuInstanceId", instance) == hit.gi
    # Without saying which instance it is about all of them.
    machine.standin.xid(2, 119)
    await machine.is_unhealthy((uuid, "xid-95"), (machine.uuids[2], "xid-119"))


async def test_an_event_of_an_instance_that_it_may_not_see_is_one_of_the_whole_gpu(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(RIGHTS, "none")
    machine.standin.divide(2, [("3g.20gb", 0)])
    await machine.start()
    machine.standin.xid(2, 95, 13, 0)
    await machine.is_unhealthy((machine.uuids[2], "xid-95"))


async def test_an_event_of_a_removed_instance_makes_no_gpu_unhealthy(machine: Machine) -> None:
    machine.standin.divide(2, [("3g.20gb", 0)])
    await machine.start()
    machine.standin.xid(2, 95, 13, 0)
    machine.standin.xid(0, 95)
    await machine.is_unhealthy((machine.uuids[0], "xid-95"))


async def test_where_the_instance_cannot_be_found_out_the_gpu_is_hit(machine: Machine) -> None:
    machine.standin.divide(2, [("3g.20gb", 0)])
    part = machine.standin.parts(2)[0]
    machine.standin.fail("nvmlDeviceGetMaxMigDeviceCount", pynvml.NVML_ERROR_UNKNOWN, gpu=2)
    await machine.start()
    machine.standin.xid(2, 95, part.gi, part.cis[0])
    await machine.is_unhealthy((machine.uuids[2], "xid-95"))


async def test_events_are_passed_on_in_the_midst_of_a_look(machine: Machine) -> None:
    """So that slow calls do not delay them."""
    events = GpuEvents(machine.sysfs, 0.0)
    seen = iter(events)
    assert isinstance(next(seen), EventsRead)
    machine.standin.xid(5, 79)
    first = next(seen)
    assert first == GpuEvent(machine.uuids[5], pynvml.nvmlEventTypeXidCriticalError, 79)
    assert isinstance(next(seen), EventsRead)
    events.stop()
    assert [*seen] == []


async def test_a_gpu_without_events_is_reported_and_healthy(machine: Machine) -> None:
    machine.standin.fail("nvmlDeviceGetSupportedEventTypes", pynvml.NVML_ERROR_NOT_SUPPORTED, gpu=1)
    watch = await machine.start()
    assert machine.reported == ()
    ((uuid, reason),) = watch.unwatched
    assert uuid == machine.uuids[1]
    assert reason.startswith("nvmlDeviceGetSupportedEventTypes")
    machine.standin.xid(0, 79)
    await machine.is_unhealthy((machine.uuids[0], "xid-79"))


# GPUs that are gone


async def test_a_lost_gpu_is_found_by_the_wait_and_the_others_are_watched_on(machine: Machine) -> None:
    await machine.start(look_s=60)
    machine.standin.lose(6)
    await machine.is_unhealthy((machine.uuids[6], "lost"))
    machine.standin.xid(0, 95)
    await machine.is_unhealthy((machine.uuids[6], "lost"), (machine.uuids[0], "xid-95"))


async def test_a_gpu_that_is_lost_in_the_midst_of_a_look_takes_no_other_with_it(machine: Machine) -> None:
    events = GpuEvents(machine.sysfs, 0.0)
    seen = iter(events)
    assert isinstance(next(seen), EventsRead)
    machine.standin.lose(0)
    # The look that is due begins with the first GPU, and between two it waits for events.
    for _ in range(3):
        look = next(seen)
        assert isinstance(look, EventsRead)
        assert [gpu.fault.code for gpu in look.gpus if gpu.fault] in (["lost"], [])
        assert len(look.gpus) >= len(machine.uuids) - 1
    events.stop()
    assert [*seen] == []


async def test_a_lost_gpu_is_well_when_it_answers_again(machine: Machine) -> None:
    await machine.start()
    machine.standin.lose(6)
    await machine.is_unhealthy((machine.uuids[6], "lost"))
    machine.standin.restore(6)
    await machine.is_unhealthy()
    machine.standin.xid(6, 95)
    await machine.is_unhealthy((machine.uuids[6], "xid-95"))


async def test_a_gpu_that_is_taken_out_is_missed_also_by_the_next_agent(machine: Machine) -> None:
    await machine.start()
    machine.standin.remove(7)
    await machine.is_unhealthy((machine.uuids[7], "lost"))
    await machine.start()
    await machine.is_unhealthy((machine.uuids[7], "lost"))
    # Until a boot without it.
    machine.boot("second")
    await machine.start()
    await machine.is_unhealthy()


async def test_only_the_gpu_that_does_not_answer_is_unhealthy(machine: Machine) -> None:
    machine.standin.fail("nvmlDeviceGetMemoryInfo", pynvml.NVML_ERROR_UNKNOWN, gpu=4)
    machine.standin.fail("nvmlDeviceGetMemoryInfo", pynvml.NVML_ERROR_RESET_REQUIRED, gpu=5)
    await machine.start()
    await machine.is_unhealthy((machine.uuids[4], "nvml"), (machine.uuids[5], "reset-required"))
    machine.standin.clear()
    await machine.is_unhealthy()


async def test_unsupported_calls_do_not_make_a_gpu_unhealthy(machine: Machine) -> None:
    for call in ("nvmlDeviceGetMemoryInfo", "nvmlDeviceGetFieldValues", "nvmlDeviceGetTotalEnergyConsumption"):
        machine.standin.fail(call, pynvml.NVML_ERROR_NOT_SUPPORTED)
    await machine.start()
    await machine.looks()
    assert machine.reported == ()


# NVML as a whole


@pytest.mark.parametrize(
    ("call", "code", "message"),
    [
        ("nvmlEventSetWait", pynvml.NVML_ERROR_UNKNOWN, "nvmlEventSetWait_v2"),
        ("nvmlDeviceGetMemoryInfo", pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "the nvidia kernel module is not loaded"),
        ("nvmlDeviceGetCount", pynvml.NVML_ERROR_UNINITIALIZED, "nvmlDeviceGetCount"),
    ],
)
async def test_all_gpus_are_unhealthy_while_nvml_fails(machine: Machine, call: str, code: int, message: str) -> None:
    await machine.start()
    machine.standin.fail(call, code)
    if call == "nvmlDeviceGetCount":
        # It is only asked when the library is opened.
        machine.standin.fail("nvmlEventSetWait", code, times=1)
    await machine.is_unhealthy(*((uuid, "nvml") for uuid in machine.uuids))
    machine.standin.clear()
    await machine.is_unhealthy()
    machine.standin.xid(1, 95)
    await machine.is_unhealthy((machine.uuids[1], "xid-95"))


async def test_a_driver_update_without_a_reboot_makes_all_known_gpus_unhealthy(machine: Machine) -> None:
    await machine.start()
    await machine.stop()
    machine.standin.mismatch()
    await machine.start()
    await machine.is_unhealthy(*((uuid, "nvml") for uuid in machine.uuids))
    assert "of different versions" in (machine.reported or ())[0].message


async def test_illnesses_of_events_are_there_again_when_nvml_is(machine: Machine) -> None:
    await machine.start()
    machine.standin.xid(1, 95)
    await machine.is_unhealthy((machine.uuids[1], "xid-95"))
    machine.standin.fail("nvmlEventSetWait", pynvml.NVML_ERROR_UNKNOWN)
    await machine.until(lambda: (machine.uuids[0], "nvml") in machine.unhealthy)
    machine.standin.clear()
    await machine.is_unhealthy((machine.uuids[1], "xid-95"))


# Getting well


async def test_a_restart_of_the_agent_clears_no_fault(machine: Machine) -> None:
    await machine.start()
    machine.standin.xid(1, 95)
    await machine.is_unhealthy((machine.uuids[1], "xid-95"))
    before = machine.reported
    await machine.start()
    await machine.looks()
    assert machine.reported == before


async def test_a_reboot_heals_all(machine: Machine) -> None:
    await machine.start()
    for gpu, xid in enumerate((94, 95, 79)):
        machine.standin.xid(gpu, xid)
    machine.held = machine.uuids
    await machine.until(lambda: len(machine.unhealthy) == 3)
    machine.boot("second")
    await machine.start()
    assert machine.reported == ()


async def a_reload_of_the_driver(machine: Machine) -> None:
    machine.load_driver()


async def a_new_pci_device(machine: Machine) -> None:
    device = machine.device(1)
    device.rename(machine.folder / "old-device")
    device.mkdir()


async def an_energy_counter_that_began_anew(machine: Machine) -> None:
    machine.standin.set(1, energy_mj=5)


@pytest.mark.parametrize("reset", [a_reload_of_the_driver, a_new_pci_device, an_energy_counter_that_began_anew])
@pytest.mark.parametrize("meanwhile", [False, True], ids=["under the agent", "without an agent"])
async def test_a_reset_heals_what_a_reset_heals(
    machine: Machine, reset: Callable[[Machine], Any], meanwhile: bool
) -> None:
    machine.standin.set(1, energy_mj=1_000_000)
    await machine.start()
    machine.standin.xid(1, 95)
    machine.standin.xid(1, 79)
    await machine.is_unhealthy((machine.uuids[1], "xid-95"), (machine.uuids[1], "xid-79"))
    if meanwhile:
        await machine.stop()
    await reset(machine)
    if meanwhile:
        await machine.start()
    await machine.is_unhealthy((machine.uuids[1], "xid-79"))


async def test_an_energy_counter_means_nothing_without_persistence_mode(machine: Machine) -> None:
    """Then the driver lets go of an idle GPU, and counts from zero when a process opens it."""
    machine.standin.set(1, energy_mj=1_000_000, persistence=0)
    await machine.start()
    machine.standin.xid(1, 95)
    await machine.is_unhealthy((machine.uuids[1], "xid-95"))
    machine.standin.set(1, energy_mj=5)
    await machine.looks()
    assert machine.unhealthy == {(machine.uuids[1], "xid-95")}


async def test_a_contained_error_is_over_when_no_pod_holds_the_gpu(machine: Machine) -> None:
    machine.held = {machine.uuids[1]}
    await machine.start()
    machine.standin.xid(1, 94)
    await machine.is_unhealthy((machine.uuids[1], "xid-94"))
    await machine.looks()
    machine.holders_error = OSError("the kubelet does not answer")
    machine.held = ()
    await machine.looks()
    assert machine.unhealthy == {(machine.uuids[1], "xid-94")}
    machine.holders_error = None
    await machine.is_unhealthy()


async def test_it_is_held_as_long_as_one_of_its_instances_is(machine: Machine) -> None:
    machine.standin.divide(1, [("1g.5gb", 4)])
    with Nvml() as nvml:
        parent = nvml.call("nvmlDeviceGetHandleByUUID", machine.uuids[1])
        instance = nvml.call("nvmlDeviceGetUUID", nvml.call("nvmlDeviceGetMigDeviceHandleByIndex", parent, 0))
    machine.held = {instance}
    await machine.start()
    machine.standin.xid(1, 94)
    await machine.is_unhealthy((machine.uuids[1], "xid-94"))
    await machine.looks()
    assert machine.unhealthy == {(machine.uuids[1], "xid-94")}
    machine.held = ()
    await machine.is_unhealthy()


class Newer(Nvml):
    """A driver that requests recovery actions, as drivers since 565 do: `action` for the GPU `uuid`."""

    uuid = ""
    action = 0
    reset = 0

    def call(self, name: str, *arguments: Any) -> Any:
        if name != "nvmlDeviceGetFieldValues":
            return super().call(name, *arguments)
        handle, fields = arguments
        wanted = (self.action, self.reset) if super().call("nvmlDeviceGetUUID", handle) == self.uuid else (0, 0)
        assert fields == [pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, pynvml.NVML_FI_DEV_RESET_STATUS]
        return [SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(uiVal=value)) for value in wanted]


@pytest.fixture
def newer(monkeypatch: pytest.MonkeyPatch, machine: Machine) -> type[Newer]:
    monkeypatch.setattr(Newer, "uuid", machine.uuids[1])
    return Newer


async def test_what_the_driver_asks_for_lasts_as_long_as_it_asks(
    machine: Machine, newer: type[Newer], monkeypatch: pytest.MonkeyPatch
) -> None:
    await machine.start(look_s=60, open_library=newer)
    monkeypatch.setattr(newer, "action", pynvml.NVML_GPU_RECOVERY_ACTION_NODE_REBOOT)
    # The notice of a change; by itself it makes no GPU unhealthy.
    machine.standin.xid(1, 154)
    await machine.is_unhealthy((machine.uuids[1], "recovery"))
    assert "reboot the node" in (machine.reported or ())[0].message
    monkeypatch.setattr(newer, "action", 0)
    machine.standin.xid(1, 154)
    await machine.is_unhealthy()


async def test_an_error_is_over_when_the_driver_no_longer_asks_for_what_it_asked(
    machine: Machine, newer: type[Newer], monkeypatch: pytest.MonkeyPatch
) -> None:
    await machine.start(open_library=newer)
    monkeypatch.setattr(newer, "action", pynvml.NVML_GPU_RECOVERY_ACTION_GPU_RESET)
    machine.standin.xid(1, 119)
    machine.standin.xid(2, 119)
    unhealthy = {(machine.uuids[1], "recovery"), (machine.uuids[1], "xid-119"), (machine.uuids[2], "xid-119")}
    await machine.is_unhealthy(*unhealthy)
    # Also after a restart of the agent.
    await machine.start(open_library=newer)
    await machine.is_unhealthy(*unhealthy)
    monkeypatch.setattr(newer, "action", 0)
    # For the other GPU the driver never requested a recovery.
    await machine.is_unhealthy((machine.uuids[2], "xid-119"))


async def test_a_reset_that_the_driver_requires(
    machine: Machine, newer: type[Newer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(newer, "reset", 1)
    await machine.start(open_library=newer)
    await machine.is_unhealthy((machine.uuids[1], "reset-required"))


# Letting go


class Counted(Nvml):
    """How many have the library open."""

    opened = 0

    def __enter__(self) -> Nvml:
        Counted.opened += 1
        return super().__enter__()

    def __exit__(self, *details: Any) -> None:
        Counted.opened -= 1
        super().__exit__(*details)


async def test_while_it_is_paused_it_holds_nothing_and_afterwards_it_finds_what_happened(machine: Machine) -> None:
    watch = await machine.start(open_library=Counted)
    assert Counted.opened == 1
    async with watch.paused():
        assert Counted.opened == 0
        machine.standin.lose(4)
        await machine.looks()
        assert machine.reported == ()
    await machine.is_unhealthy((machine.uuids[4], "lost"))


async def test_it_can_be_paused_while_nvml_fails(machine: Machine) -> None:
    machine.standin.mismatch()
    watch = await machine.start()
    async with watch.paused():
        machine.standin.clear()
    machine.standin.xid(0, 43)
    await machine.until(lambda: machine.reported == ())


# What is remembered


DAMAGE: dict[str, Callable[[str], str]] = {
    "cut off": lambda text: text[: len(text) // 2],
    "no checkpoint": lambda text: "{}",
    "empty": lambda text: "",
    "of another release": lambda text: text.replace('"version":1', '"version":9'),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
async def test_a_damaged_checkpoint_is_set_aside_and_gpus_are_judged_anew(
    machine: Machine, damage: Callable[[str], str], caplog: pytest.LogCaptureFixture
) -> None:
    await machine.start()
    machine.standin.xid(1, 95)
    await machine.is_unhealthy((machine.uuids[1], "xid-95"))
    await machine.stop()
    file = machine.folder / "health.json"
    damaged = damage(file.read_text())
    file.write_text(damaged)
    machine.standin.fail("nvmlDeviceGetMemoryInfo", pynvml.NVML_ERROR_UNKNOWN, gpu=2)
    watch = await machine.start()
    await machine.is_unhealthy((machine.uuids[2], "nvml"))
    assert (machine.folder / "health.json.damaged").read_text() == damaged
    (fault,) = watch.faults
    assert "health.json" in fault and "set aside as health.json.damaged" in fault and fault in caplog.text
    assert "drain" not in fault
    # From then on it is remembered as ever.
    machine.standin.xid(0, 95)
    await machine.is_unhealthy((machine.uuids[2], "nvml"), (machine.uuids[0], "xid-95"))
    watch = await machine.start()
    await machine.is_unhealthy((machine.uuids[2], "nvml"), (machine.uuids[0], "xid-95"))
    assert watch.faults == ()


async def test_a_fault_from_a_changed_checkpoint_stays(machine: Machine) -> None:
    await machine.start()
    machine.standin.xid(1, 95)
    await machine.is_unhealthy((machine.uuids[1], "xid-95"))
    await machine.stop()
    file = machine.folder / "health.json"
    file.write_text(file.read_text().replace("XID 95", "xid 95"))
    watch = await machine.start()
    await machine.is_unhealthy((machine.uuids[1], "xid-95"))
    assert "its checksum is wrong" in watch.faults[0]
    await machine.start()
    await machine.is_unhealthy((machine.uuids[1], "xid-95"))


async def test_where_no_new_file_can_be_written_the_old_one_is_written_over(machine: Machine) -> None:
    await machine.start()
    (machine.folder / "health.json.new").mkdir()
    machine.standin.xid(1, 95)
    await machine.is_unhealthy((machine.uuids[1], "xid-95"))
    watch = await machine.start()
    await machine.is_unhealthy((machine.uuids[1], "xid-95"))
    assert watch.faults == ()


async def test_a_failed_write_of_the_checkpoint_is_reported_until_it_succeeds(
    machine: Machine, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    watch = await machine.start()
    with monkeypatch.context() as disk:
        disk.setattr(checkpoint, "replace_file", full)
        disk.setattr(checkpoint, "_write_over", full)
        machine.standin.xid(1, 95)
        await machine.is_unhealthy((machine.uuids[1], "xid-95"))
        await machine.until(lambda: bool(watch.faults))
        reports = machine.reports
        await machine.looks(3)
        assert machine.reports == reports
        (fault,) = watch.faults
        assert fault.startswith("a restart of the agent will forget which GPUs are unhealthy: cannot write ")
        assert fault.endswith("health.json: No space left on device") and caplog.text.count(fault) == 1
    await machine.until(lambda: watch.faults == ())
    await machine.start()
    await machine.is_unhealthy((machine.uuids[1], "xid-95"))


# Which errors count


async def test_switched_off_it_watches_nothing(machine: Machine) -> None:
    watching = watched({"DP_DISABLE_HEALTHCHECKS": "all"})
    assert watching.none
    machine.standin.lose(1)
    await machine.start(watching=watching)
    assert machine.reported == ()


@pytest.mark.parametrize(
    ("variables", "left"),
    [
        ({"DP_DISABLE_HEALTHCHECKS": "95"}, {"ecc-double-bit", "xid-119"}),
        ({"DP_DISABLE_HEALTHCHECKS": "xids"}, set()),
        ({"DP_DISABLE_HEALTHCHECKS": "xids", "DP_ENABLE_HEALTHCHECKS": "119"}, {"xid-119"}),
        ({"DP_DISABLE_HEALTHCHECKS": "all"}, set()),
        ({}, {"ecc-double-bit", "xid-95", "xid-119"}),
    ],
)
async def test_what_a_check_found_that_is_switched_off_is_no_illness_any_more(
    machine: Machine, variables: dict[str, str], left: set[str]
) -> None:
    await machine.start()
    machine.standin.xid(1, 95)
    machine.standin.xid(1, 119)
    machine.standin.ecc(1, uncorrected=1)
    await machine.is_unhealthy(*((machine.uuids[1], code) for code in ("xid-95", "xid-119", "ecc-double-bit")))
    await machine.start(watching=watched(variables))
    assert machine.unhealthy == {(machine.uuids[1], code) for code in left}
    # Nor when it is switched on again: it was released.
    await machine.start()
    assert machine.unhealthy == {(machine.uuids[1], code) for code in left}


async def test_switched_off_for_events_it_still_misses_lost_gpus(machine: Machine) -> None:
    await machine.start(watching=watched({"DP_DISABLE_HEALTHCHECKS": "xids"}))
    machine.standin.xid(0, 95)
    machine.standin.ecc(0, uncorrected=1)
    machine.standin.lose(1)
    await machine.is_unhealthy((machine.uuids[1], "lost"))


async def test_an_error_that_is_made_to_count_ends_with_its_application(machine: Machine) -> None:
    machine.held = {machine.uuids[0]}
    await machine.start(watching=watched({"DP_ENABLE_HEALTHCHECKS": "43"}))
    machine.standin.xid(0, 43)
    await machine.is_unhealthy((machine.uuids[0], "xid-43"))
    machine.held = ()
    await machine.is_unhealthy()


# Quarantine


async def test_a_gpu_that_was_reset_is_offered_after_the_clean_period_and_the_exit_test(machine: Machine) -> None:
    """A new error, a failed test, and a restart of the agent delay it; a pod delays the test."""
    passes = machine.folder / "passes"
    script = f"echo $DOVETAIL_GPU_UUID >> {machine.folder}/tested; echo 'cell 7 is stuck'; echo; test -e {passes}"
    test = ExitTest(("sh", "-c", script), 10)
    machine.held = {machine.uuids[1]}
    await machine.start(exit_test=test)
    machine.standin.xid(1, 95)
    await machine.is_unhealthy((machine.uuids[1], "xid-95"))
    await machine.until(lambda: machine.uuids[1] in machine.report.held)
    (fault,) = machine.reported or ()
    assert fault.next.startswith("reset the GPU")
    machine.load_driver()
    await machine.until(lambda: "it is offered again if" in (machine.reported or (fault,))[0].next)
    await machine.looks()
    assert not (machine.folder / "tested").exists()
    machine.held = ()
    await machine.until(lambda: "cell 7 is stuck" in (machine.reported or (fault,))[0].message)
    assert {*(machine.folder / "tested").read_text().split()} == {machine.uuids[1]}
    await machine.start(exit_test=test, clean_s=600)
    await machine.looks()
    (again,) = machine.reported or ()
    assert again.message.endswith("(the exit test failed: cell 7 is stuck)") and again.since_ms == fault.since_ms
    machine.standin.xid(1, 95)
    await machine.until(lambda: (machine.reported or (again,))[0].next.startswith("reset the GPU"))
    machine.load_driver()
    passes.touch()
    await machine.start(exit_test=test)
    await machine.is_unhealthy()


async def test_a_node_that_was_rebooted_is_on_probation(machine: Machine) -> None:
    await machine.start()
    machine.standin.xid(0, 79)
    machine.standin.xid(1, 94)
    machine.held = {machine.uuids[1]}
    await machine.is_unhealthy((machine.uuids[0], "xid-79"), (machine.uuids[1], "xid-94"))
    machine.boot("second")
    await machine.start(clean_s=600)
    await machine.is_unhealthy((machine.uuids[0], "xid-79"))
    (fault,) = machine.reported or ()
    assert fault.action is Action.QUARANTINE_NODE and fault.next.startswith("it is offered again if no error occurs")
    await machine.start(clean_s=0)
    await machine.is_unhealthy()


async def test_a_checkpoint_of_an_earlier_release_is_read(machine: Machine) -> None:
    await machine.start()
    machine.standin.xid(1, 95)
    await machine.is_unhealthy((machine.uuids[1], "xid-95"))
    await machine.stop()
    file = CheckpointFile(machine.folder / "health.json", dict[str, Any])
    content = file.read()
    assert content is not None
    for record in content["records"]:
        for added in ("clean_since_ms", "tested", "failure"):
            del record[added]
    file.write(content)
    watch = await machine.start()
    await machine.is_unhealthy((machine.uuids[1], "xid-95"))
    assert watch.faults == ()
