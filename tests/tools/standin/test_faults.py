# SPDX-License-Identifier: Apache-2.0
"""What happens to a machine while somebody watches it: events, lost GPUs, failing and slow calls; in one process, in
several, and in one that is killed."""

import ctypes
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pynvml as nvml
import pytest

from tests.paths import ROOT
from tests.patience import PATIENCE_S
from tools.standin import HostError, Standin
from tools.standin.fixture import MakeStandin

XID = nvml.nvmlEventTypeXidCriticalError
NO_INSTANCE = 0xFFFFFFFF


def open_all() -> list[nvml.c_nvmlDevice_t]:
    nvml.nvmlInit()
    return [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]


def watch(gpus: list[nvml.c_nvmlDevice_t], types: int = XID) -> nvml.c_nvmlEventSet_t:
    events = nvml.nvmlEventSetCreate()
    for gpu in gpus:
        nvml.nvmlDeviceRegisterEvents(gpu, types, events)
    return events


def event(events: nvml.c_nvmlEventSet_t, timeout_ms: int = 0) -> tuple[int, int, int, int]:
    event = nvml.nvmlEventSetWait(events, timeout_ms)
    return nvml.nvmlDeviceGetIndex(event.device), event.eventData, event.gpuInstanceId, event.computeInstanceId


def number(handle: nvml.c_nvmlDevice_t) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value


def run(machine: Standin, program: str) -> subprocess.Popen[str]:
    """A process that uses the machine as an agent does, by its environment alone."""
    argv = [sys.executable, "-c", "import pynvml as nvml\nnvml.nvmlInit()\n" + textwrap.dedent(program)]
    return subprocess.Popen(argv, env=os.environ | machine.environment, stdout=subprocess.PIPE, text=True, cwd=ROOT)


def test_xids_come_in_order_and_once(standin: MakeStandin) -> None:
    machine = standin("small-2numa")
    events = watch(open_all())
    machine.xid(3, 79)
    machine.xid(0, 94, gi=9, ci=0)
    assert event(events) == (3, 79, NO_INSTANCE, NO_INSTANCE)
    assert event(events) == (0, 94, 9, 0)
    with pytest.raises(nvml.NVMLError_Timeout):
        event(events)


def test_only_what_was_registered_comes_and_only_from_then_on(standin: MakeStandin) -> None:
    machine = standin("small-2numa")
    gpus = open_all()
    events = watch([gpus[1]])
    machine.xid(2, 48)
    nvml.nvmlDeviceRegisterEvents(gpus[2], XID, events)
    machine.ecc(1, uncorrected=1)
    machine.xid(2, 63)
    assert event(events) == (2, 63, NO_INSTANCE, NO_INSTANCE)
    with pytest.raises(nvml.NVMLError_Timeout):
        event(events)
    supported = nvml.nvmlDeviceGetSupportedEventTypes(gpus[0])
    assert supported & XID
    with pytest.raises(nvml.NVMLError_NotSupported):
        nvml.nvmlDeviceRegisterEvents(gpus[0], supported | 1 << 40, events)


def test_two_sets_hear_the_same_and_a_freed_one_nothing(standin: MakeStandin) -> None:
    machine = standin("small-2numa")
    gpus = open_all()
    one, other = watch(gpus), watch(gpus)
    machine.xid(5, 62)
    assert event(one) == event(other) == (5, 62, NO_INSTANCE, NO_INSTANCE)
    nvml.nvmlEventSetFree(one)
    with pytest.raises(nvml.NVMLError_InvalidArgument):
        event(one)


def test_ecc_errors_are_counted_and_sent_as_events(standin: MakeStandin) -> None:
    machine = standin("dgx-h100")
    gpus = open_all()
    events = watch(gpus, nvml.nvmlEventTypeSingleBitEccError | nvml.nvmlEventTypeDoubleBitEccError)
    machine.ecc(4, corrected=3, uncorrected=1)
    kinds = [nvml.nvmlEventSetWait(events, 0).eventType for _ in range(2)]
    assert kinds == [nvml.nvmlEventTypeSingleBitEccError, nvml.nvmlEventTypeDoubleBitEccError]
    assert [nvml.nvmlDeviceGetTotalEccErrors(gpus[4], kind, 0) for kind in (0, 1)] == [3, 1]
    machine.set(4, rows_pending=1, rows_uncorrected=2)
    assert nvml.nvmlDeviceGetRemappedRows(gpus[4]) == (0, 2, 1, 0)


def test_a_wait_ends_when_something_happens_or_its_time_is_up(standin: MakeStandin) -> None:
    machine = standin("small-2numa")
    events = watch(open_all())
    before = time.monotonic()
    with pytest.raises(nvml.NVMLError_Timeout):
        event(events, 60)
    assert time.monotonic() - before >= 0.06
    later = threading.Timer(0.1, machine.xid, (7, 119))
    later.start()
    assert event(events, 60_000) == (7, 119, NO_INSTANCE, NO_INSTANCE)
    later.join()


def test_other_calls_answer_while_one_waits_and_closing_ends_the_wait(standin: MakeStandin) -> None:
    standin("small-2numa")
    gpus = open_all()
    events = watch(gpus)
    ended: list[int] = []

    def wait() -> None:
        try:
            nvml.nvmlEventSetWait(events, 60_000)
        except nvml.NVMLError as error:
            ended.append(error.value)

    waiter = threading.Thread(target=wait)
    waiter.start()
    time.sleep(0.05)
    assert nvml.nvmlDeviceGetUUID(gpus[0]).startswith("GPU-")
    nvml.nvmlShutdown()
    waiter.join(30)
    assert ended == [nvml.NVML_ERROR_UNINITIALIZED]


def test_a_lost_gpu_is_counted_and_answers_nothing_until_it_is_back(standin: MakeStandin) -> None:
    machine = standin("dgx-a100")
    gpus = open_all()
    events = watch(gpus)
    machine.xid(2, 79)
    machine.lose(2)
    event = nvml.nvmlEventSetWait(events, 0)
    # Nothing can be asked of its handle any more: whoever wants to know which GPU it was compares handles.
    assert (number(event.device), event.eventData) == (number(gpus[2]), 79)
    for call in (
        lambda: nvml.nvmlEventSetWait(events, 60_000),
        lambda: nvml.nvmlDeviceGetUUID(gpus[2]),
        lambda: nvml.nvmlDeviceGetTopologyCommonAncestor(gpus[0], gpus[2]),
        lambda: nvml.nvmlDeviceGetHandleByIndex(2),
    ):
        with pytest.raises(nvml.NVMLError_GpuIsLost):
            call()
    assert nvml.nvmlDeviceGetCount() == 8
    assert nvml.nvmlDeviceGetIndex(gpus[3]) == 3
    machine.restore(2)
    assert nvml.nvmlDeviceGetIndex(nvml.nvmlDeviceGetHandleByIndex(2)) == 2


def test_a_gpu_that_is_taken_out_is_missing_when_the_library_is_opened_anew(standin: MakeStandin) -> None:
    machine = standin("dgx-a100")
    gpus = open_all()
    uuid = nvml.nvmlDeviceGetUUID(gpus[2])
    bdf = machine.description.gpus[2].device.bdf
    machine.remove(2)
    assert not (machine.sysfs / "bus/pci/devices" / bdf).exists()
    with pytest.raises(nvml.NVMLError_GpuIsLost):
        nvml.nvmlDeviceGetUUID(gpus[2])
    nvml.nvmlShutdown()
    left = open_all()
    assert len(left) == 7
    assert nvml.nvmlDeviceGetUUID(left[2]) == machine.description.gpus[3].uuid
    with pytest.raises(nvml.NVMLError_NotFound):
        nvml.nvmlDeviceGetHandleByUUID(uuid.encode())
    nvml.nvmlShutdown()
    machine.clear()
    assert nvml.nvmlDeviceGetUUID(open_all()[2]) == uuid
    assert (machine.sysfs / "bus/pci/devices" / bdf / "vendor").read_text() == "0x10de\n"


def test_calls_fail_on_demand(standin: MakeStandin) -> None:
    machine = standin("dgx-h100")
    gpus = open_all()
    machine.fail("nvmlDeviceGetMemoryInfo", nvml.NVML_ERROR_UNKNOWN, gpu=1)
    machine.fail("nvmlDeviceGetUUID", nvml.NVML_ERROR_NO_PERMISSION, times=2)
    machine.fail("nvmlDeviceGetHandleByIndex", nvml.NVML_ERROR_NO_PERMISSION, gpu=3)
    assert nvml.nvmlDeviceGetHandleByIndex(2)
    with pytest.raises(nvml.NVMLError_NoPermission):
        nvml.nvmlDeviceGetHandleByIndex(3)
    assert nvml.nvmlDeviceGetMemoryInfo(gpus[0]).total
    for version in (None, nvml.nvmlMemory_v2):
        with pytest.raises(nvml.NVMLError_Unknown):
            nvml.nvmlDeviceGetMemoryInfo(gpus[1], version)
    for _ in range(2):
        with pytest.raises(nvml.NVMLError_NoPermission):
            nvml.nvmlDeviceGetUUID(gpus[0])
    assert nvml.nvmlDeviceGetUUID(gpus[0])
    machine.clear()
    assert nvml.nvmlDeviceGetMemoryInfo(gpus[1]).total
    with pytest.raises(ValueError, match="did you mean nvmlDeviceGetUUID"):
        machine.fail("nvmlDeviceGetUUIDs", 1)


def test_a_slow_call_delays_no_other_process(standin: MakeStandin) -> None:
    machine = standin("dgx-h100")
    gpus = open_all()
    machine.slow("nvmlDeviceGetSerial", 400)
    machine.fail("nvmlDeviceGetSerial", nvml.NVML_ERROR_TIMEOUT, gpu=1)
    order = []
    slow = threading.Thread(target=lambda: order.append(nvml.nvmlDeviceGetSerial(gpus[0])))
    before = time.monotonic()
    slow.start()
    time.sleep(0.05)
    order.append(nvml.nvmlDeviceGetIndex(gpus[0]))
    slow.join()
    assert order == [0, machine.description.gpus[0].serial]
    assert time.monotonic() - before >= 0.4
    with pytest.raises(nvml.NVMLError_Timeout):
        nvml.nvmlDeviceGetSerial(gpus[1])


def test_a_library_of_another_version_than_the_module_cannot_be_opened(standin: MakeStandin) -> None:
    machine = standin("dgx-h100")
    machine.mismatch("535.104.05")
    with pytest.raises(nvml.NVMLError_LibRmVersionMismatch):
        nvml.nvmlInit()
    with pytest.raises(nvml.NVMLError_Uninitialized):
        nvml.nvmlDeviceGetCount()
    assert "535.104.05" in (machine.proc / "driver/nvidia/version").read_text()
    machine.clear()
    assert len(open_all()) == 8
    assert machine.description.driver in (machine.proc / "driver/nvidia/version").read_text()


def test_opening_can_fail_and_does_without_a_machine(standin: MakeStandin, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = standin("dgx-h100")
    machine.fail("nvmlInit", nvml.NVML_ERROR_DRIVER_NOT_LOADED, times=1)
    with pytest.raises(nvml.NVMLError_DriverNotLoaded):
        nvml.nvmlInit()
    nvml.nvmlInit()
    nvml.nvmlShutdown()
    monkeypatch.setenv("DOVETAIL_STANDIN", "/nonexistent")
    with pytest.raises(nvml.NVMLError_DriverNotLoaded):
        nvml.nvmlInit()


def test_modes_and_telemetry_are_kept(standin: MakeStandin) -> None:
    machine = standin("dgx-h100")
    gpu = open_all()[0]
    nvml.nvmlDeviceSetComputeMode(gpu, nvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS)
    assert nvml.nvmlDeviceGetComputeMode(gpu) == nvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS
    with pytest.raises(nvml.NVMLError_NotSupported):
        nvml.nvmlDeviceSetComputeMode(gpu, nvml.NVML_COMPUTEMODE_EXCLUSIVE_THREAD)
    nvml.nvmlDeviceSetPersistenceMode(gpu, 0)
    assert nvml.nvmlDeviceGetPersistenceMode(gpu) == 0
    machine.set(0, temperature_c=83, power_mw=650_000, utilization=97, memory_utilization=40, used_mib=1000)
    machine.process(0, pid=5, memory_mib=24, mode=nvml.NVML_PROCESS_MODE_MPS)
    assert nvml.nvmlDeviceGetTemperature(gpu, 0) == 83
    assert nvml.nvmlDeviceGetPowerUsage(gpu) == 650_000
    rates = nvml.nvmlDeviceGetUtilizationRates(gpu)
    assert (rates.gpu, rates.memory) == (97, 40)
    assert nvml.nvmlDeviceGetMemoryInfo(gpu, nvml.nvmlMemory_v2).used >> 20 == 1024
    assert nvml.nvmlDeviceGetComputeRunningProcesses(gpu) == []
    assert [process.pid for process in nvml.nvmlDeviceGetMPSComputeRunningProcesses(gpu)] == [5]
    with pytest.raises(AttributeError):
        machine.set(0, temperature=1)


def test_another_process_sees_what_happens_here(standin: MakeStandin) -> None:
    machine = standin("small-2numa")
    watcher = run(
        machine,
        """
        gpu = nvml.nvmlDeviceGetHandleByIndex(6)
        events = nvml.nvmlEventSetCreate()
        nvml.nvmlDeviceRegisterEvents(gpu, nvml.nvmlEventTypeXidCriticalError, events)
        print("ready", flush=True)
        print(nvml.nvmlEventSetWait(events, 60000).eventData, flush=True)
        """,
    )
    assert watcher.stdout is not None
    assert watcher.stdout.readline() == "ready\n"
    machine.xid(6, 95)
    assert watcher.communicate(timeout=PATIENCE_S)[0] == "95\n"


def test_a_layout_outlives_the_process_that_made_it(standin: MakeStandin) -> None:
    machine = standin("small-2numa")
    maker = run(
        machine,
        """
        gpu = nvml.nvmlDeviceGetHandleByIndex(4)
        nvml.nvmlDeviceSetMigMode(gpu, 1)
        nvml.nvmlGpuInstanceCreateComputeInstance(nvml.nvmlDeviceCreateGpuInstance(gpu, 9), 2)
        print(nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, 0)))
        """,
    )
    uuid = maker.communicate(timeout=PATIENCE_S)[0].strip()
    nvml.nvmlInit()
    device = nvml.nvmlDeviceGetHandleByUUID(uuid.encode())
    assert nvml.nvmlDeviceGetName(device).endswith("MIG 3g.20gb")
    again = Standin(machine.folder, "small-2numa")
    assert again.parts(4) == machine.parts(4) != ()
    with pytest.raises(HostError, match="holds another machine"):
        Standin(machine.folder, "dgx-a100")


def test_the_first_process_makes_the_machine_and_the_others_use_it(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as threads:
        machines = list(threads.map(lambda _: Standin(tmp_path, "small-2numa"), range(4)))
    machines[0].divide(0, [("7g.40gb", 0)])
    assert {machine.parts(0)[0].profile for machine in machines} == {"7g.40gb"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dev", "host.json", "proc", "state"]


@pytest.mark.slow
def test_killed_at_any_point_the_machine_is_whole_and_unlocked(standin: MakeStandin) -> None:
    machine = standin("small-2numa")
    nvml.nvmlInit()
    gpu = nvml.nvmlDeviceGetHandleByIndex(0)
    mig = machine.proc / "driver/nvidia/capabilities/gpu0/mig"
    for turn in range(12):
        changer = run(
            machine,
            """
            gpu = nvml.nvmlDeviceGetHandleByIndex(0)
            nvml.nvmlDeviceSetMigMode(gpu, 1)
            for number in range(8):
                try:
                    instance = nvml.nvmlDeviceGetGpuInstanceById(gpu, 7 + number)
                    nvml.nvmlComputeInstanceDestroy(nvml.nvmlGpuInstanceCreateComputeInstance(instance, 0))
                    nvml.nvmlGpuInstanceDestroy(instance)
                except nvml.NVMLError:
                    pass
            print("ready", flush=True)
            while True:
                made = [nvml.nvmlDeviceCreateGpuInstance(gpu, 19) for _ in range(7)]
                parts = [nvml.nvmlGpuInstanceCreateComputeInstance(each, 0) for each in made]
                for part in parts:
                    nvml.nvmlComputeInstanceDestroy(part)
                for each in made:
                    nvml.nvmlGpuInstanceDestroy(each)
            """,
        )
        assert changer.stdout is not None
        assert changer.stdout.readline() == "ready\n"
        time.sleep(0.003 * (turn % 4))
        changer.send_signal(signal.SIGKILL)
        changer.wait()
        changer.stdout.close()
        parts = machine.parts(0)
        slices = [part.start for part in parts]
        assert len(slices) == len(set(slices)) <= 7
        assert all(part.gi == 7 + part.start and part.cis in ((), (0,)) for part in parts)
        # Whoever opens the library next finds the files for the instances put right.
        nvml.nvmlShutdown()
        nvml.nvmlInit()
        assert {path.parent.name for path in mig.glob("gi*/access")} == {f"gi{part.gi}" for part in parts}
        for part in parts:
            instance = nvml.nvmlDeviceGetGpuInstanceById(gpu, part.gi)
            if not part.cis:
                nvml.nvmlGpuInstanceCreateComputeInstance(instance, 0)
        machine.reset(0)
        nvml.nvmlDeviceSetMigMode(gpu, 1)
