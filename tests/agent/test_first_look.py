# SPDX-License-Identifier: Apache-2.0
"""The agent publishes nothing before its first complete look: slow NVML changes nothing on the node."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pynvml
import pytest

from dovetail.agent.checkpoint import CheckpointFile
from dovetail.agent.kubelet import settling
from dovetail.agent.machine import known as knowing
from dovetail.agent.machine.host import Gpu, Host, Unread
from dovetail.agent.machine.known import PATIENCE_S, KnownHost
from dovetail.agent.machine.nvml import Nvml
from dovetail.agent.mig.change import ChangeJournal, Division, DivisionChange
from dovetail.kube.api.config import load_kubeconfig
from tests.agent.agents import until
from tests.agent.fake_kubelet import pod
from tests.agent.whole_agent import Seat
from tools.controlplane.plane import Plane
from tools.standin import Standin

Machine = Callable[[Any], Standin]
Fault = Callable[[Standin], None]
NOT_LOADED, UNKNOWN = pynvml.NVML_ERROR_DRIVER_NOT_LOADED, pynvml.NVML_ERROR_UNKNOWN
LOST = pynvml.NVML_ERROR_GPU_IS_LOST


def slow(ms: int, call: str = "nvmlInit") -> Fault:
    return lambda machine: machine.slow(call, ms)


def failing(call: str, code: int, times: int, gpu: int | None = None) -> Fault:
    return lambda machine: machine.fail(call, code, gpu=gpu, times=times)


STARTS: dict[str, Fault] = {
    "0 ms": slow(0),
    "1 s": slow(1000),
    "5 s": slow(5000),
    "the count takes 3 s": slow(3000, "nvmlDeviceGetCount"),
    "each GPU takes 300 ms": slow(300, "nvmlDeviceGetName"),
    "the driver is not loaded yet": failing("nvmlInit", NOT_LOADED, 6),
    "the count fails": failing("nvmlDeviceGetCount", UNKNOWN, 4),
    "one GPU is late": failing("nvmlDeviceGetHandleByIndex", LOST, 4, gpu=3),
    "no GPU has a name": failing("nvmlDeviceGetUUID", UNKNOWN, 16),
}  # fmt: skip


@pytest.fixture
def soon_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """For what is not about settling: the wait for a kubelet without running pods, once at each start of an agent, is
    short. The tests of restarts have the whole."""
    assert settling._UNSEEN_AFTER_S == 2.0
    monkeypatch.setattr(settling, "_UNSEEN_AFTER_S", 0.3)


@pytest.mark.plane
@pytest.mark.usefixtures("soon_settled")
async def test_a_start_with_slow_nvml_changes_nothing(crd: Plane, standin: Machine) -> None:
    machine = standin("dgx-a100")
    async with Seat(load_kubeconfig([crd.kubeconfig]), machine, "slow") as seat:
        async with seat.agent():
            await seat.offers(8)
            await until(lambda: "nvidia.com/gpu.product" in seat.labels[-1])
        await until(lambda: seat.plugin[-1] == "AgentEnds")
        for name, fault in STARTS.items():
            seat.forget()
            before = (seat.statuses[-1], seat.labels[-1])
            fault(machine)
            async with seat.agent():
                await until(lambda: 8 in seat.kubelet.heard)
                await seat.offers(8)
            machine.clear()
            await until(lambda: seat.plugin[-1] == "AgentEnds")
            assert (seat.statuses, seat.labels) == ([before[0]], [before[1]]), name
            # Only the condition shows that the kubelet has no plugin meanwhile.
            assert seat.plugin[:2] == ["AgentEnds", "AgentBegins"], name
            assert seat.plugin[-2:] == ["Registered", "AgentEnds"], name
            # The last list is the empty one that the agent sends at its end.
            assert {*seat.kubelet.heard[:-1]} == {8}, name


@pytest.mark.plane
@pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed"])
async def test_a_kubelet_that_stops_changes_only_the_condition_at_once(
    crd: Plane, standin: Machine, kill: bool
) -> None:
    machine = standin("dgx-a100")
    clock = asyncio.get_running_loop().time
    async with Seat(load_kubeconfig([crd.kubeconfig]), machine, f"kubelet-{kill}".lower()) as seat, seat.agent():
        await seat.offers(8)
        await until(lambda: "nvidia.com/gpu.product" in seat.labels[-1] and seat.plugin[-1] == "Registered")
        seat.forget()
        before = (seat.statuses[-1], seat.labels[-1])
        for down_s in (0.0, 4.0):
            await seat.kubelet.stop(kill=kill)
            began_s = clock()
            await until(lambda: seat.plugin[-1] != "Registered")
            assert clock() - began_s < 1.0
            await asyncio.sleep(down_s)
            await seat.kubelet.start()
            began_s = clock()
            await seat.kubelet.devices("nvidia.com/gpu", 8)
            assert clock() - began_s < 2.0
            # Without running pods it cannot be seen when the kubelet has admitted them: the agent waits two seconds.
            await seat.offers(8)
            assert clock() - began_s < 5.0
            await until(lambda: seat.plugin[-1] == "Registered")
        assert {*seat.plugin} <= {"Registered", "NotRegistered", "KubeletGone", "KubeletBegins"}
        # Meanwhile `unread` has the reason.
        for status in seat.statuses:
            status.pop("unread")
        others = [{key: value for key, value in status.items() if value != before[0][key]} for status in seat.statuses]
        assert not any(others) and seat.labels == [before[1]]


@pytest.mark.plane
async def test_the_plugin_counts_as_registered_when_the_kubelet_shows_its_running_pods(
    crd: Plane, standin: Machine
) -> None:
    old = pod("settling", {"nvidia.com/gpu": 1})
    async with Seat(load_kubeconfig([crd.kubeconfig]), standin("dgx-a100"), "settling") as seat, seat.agent():
        await seat.offers(8)
        await seat.runs(old)
        seat.forget()
        # The kubelet lists its pods after the plugin has registered.
        kept, seat.kubelet.books.pods = seat.kubelet.books.pods, {}
        await seat.kubelet.restart()
        await until(lambda: seat.plugin[-1] == "KubeletBegins")
        await asyncio.sleep(3)
        assert seat.plugin[-1] == "KubeletBegins"
        seat.kubelet.books.pods = kept
        await until(lambda: seat.plugin[-1] == "Registered")
        assert seat.fences and all(seat.fences)
        await seat.ends(old)


@pytest.mark.plane
async def test_a_pod_that_the_kubelet_never_shows_delays_others_for_seconds_only(
    crd: Plane, standin: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert settling._PATIENCE_S == 10.0
    monkeypatch.setattr(settling, "_PATIENCE_S", 1.5)
    old = pod("unshown", {"nvidia.com/gpu": 1})
    async with Seat(load_kubeconfig([crd.kubeconfig]), standin("dgx-a100"), "unshown") as seat, seat.agent():
        await seat.offers(8)
        await seat.runs(old)
        await until(lambda: any(seat.fences))
        seat.kubelet.books.pods = {}
        await seat.kubelet.restart()
        await until(lambda: seat.plugin[-1] == "KubeletBegins")
        # What was written before the restart may have been heard of only after it began.
        seat.forget()
        await until(lambda: seat.plugin[-1] == "Registered")
        assert not any(seat.fences)
        # It has ended: fences are possible again.
        await seat.ends(old)
        await until(lambda: any(seat.fences))


@pytest.mark.plane
@pytest.mark.usefixtures("soon_settled")
async def test_a_missing_driver_is_published_and_removes_nothing(
    crd: Plane, standin: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PATIENCE_S, "none", 3.0)
    monkeypatch.setattr("dovetail.agent.run._AGAIN_S", 1.0)
    machine = standin("dgx-a100")
    async with Seat(load_kubeconfig([crd.kubeconfig]), machine, "silent") as seat:
        async with seat.agent():
            await seat.offers(8)
            await until(lambda: "nvidia.com/gpu.product" in seat.labels[-1])
        seat.forget()
        before, labels = seat.statuses[-1], seat.labels[-1]
        machine.fail("nvmlInit", NOT_LOADED)
        async with seat.agent():
            await until(lambda: len(seat.statuses) > 1)
            status = seat.statuses[-1]
            conditions = {one["type"]: (one["status"], one["reason"]) for one in status["conditions"]}
            assert conditions["DriverReady"] == ("False", "NvmlFailed")
            assert conditions["HealthOk"] == ("False", "GpuIll")
            health = {"healthy": True, "health": None}
            assert [gpu | health for gpu in status["gpus"]] == [gpu | health for gpu in before["gpus"]]
            assert not any(gpu["healthy"] for gpu in status["gpus"])
            assert {gpu["health"]["code"] for gpu in status["gpus"]} == {"nvml"}
            assert status["pcieLevels"] == before["pcieLevels"] and status["nvlinks"] == before["nvlinks"]
            assert seat.labels == [labels] and not seat.kubelet.heard
            machine.clear()
            await seat.offers(8)
            await until(lambda: seat.statuses[-1] == before)
        assert seat.labels == [labels]


@pytest.mark.plane
@pytest.mark.usefixtures("soon_settled")
async def test_a_driver_that_goes_away_removes_no_label(crd: Plane, standin: Machine) -> None:
    machine = standin("dgx-a100")
    async with Seat(load_kubeconfig([crd.kubeconfig]), machine, "going") as seat, seat.agent():
        await seat.offers(8)
        await until(lambda: "nvidia.com/gpu.product" in seat.labels[-1])
        seat.forget()
        before, labels = seat.statuses[-1], seat.labels[-1]
        machine.mismatch()
        # A GPU falls off the bus, which makes the agent look.
        machine.lose(0)
        await until(
            lambda: ("DriverReady", "False") in {(c["type"], c["status"]) for c in seat.statuses[-1]["conditions"]}
        )
        assert [gpu["uuid"] for gpu in seat.statuses[-1]["gpus"]] == [gpu["uuid"] for gpu in before["gpus"]]
        assert not any(gpu["healthy"] for gpu in seat.statuses[-1]["gpus"])
        assert seat.labels == [labels]
        assert seat.kubelet.heard[-1] == 0


@pytest.mark.plane
@pytest.mark.usefixtures("soon_settled")
async def test_a_machine_without_gpus_is_published_with_none(crd: Plane, standin: Machine) -> None:
    machine = standin("dgx-a100")
    async with Seat(load_kubeconfig([crd.kubeconfig]), machine, "taken-out") as seat:
        async with seat.agent():
            await seat.offers(8)
            await until(lambda: "nvidia.com/gpu.product" in seat.labels[-1])
        for gpu in range(8):
            machine.remove(gpu)
        machine.fail("nvmlInit", NOT_LOADED)
        async with seat.agent():
            await until(lambda: not seat.statuses[-1]["gpus"])
            await until(lambda: "nvidia.com/gpu.product" not in seat.labels[-1])


@pytest.mark.plane
async def test_an_interrupted_layout_is_finished_even_if_the_driver_is_late(
    crd: Plane, standin: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PATIENCE_S, "none", 1.0)
    monkeypatch.setattr("dovetail.agent.run._AGAIN_S", 0.5)
    machine = standin("dgx-a100")
    machine.divide(0, [])
    with Nvml() as nvml:
        uuid = nvml.call("nvmlDeviceGetUUID", nvml.call("nvmlDeviceGetHandleByIndex", 0))
    change = DivisionChange(uuid, 0, Division(True), Division(True, (("3g.20gb", 0),)))
    async with Seat(load_kubeconfig([crd.kubeconfig]), machine, "cut-off", mig=True) as seat:
        CheckpointFile(seat.options.state_folder / "mig.json", ChangeJournal).write(
            ChangeJournal("layout half", (change,))
        )
        machine.fail("nvmlInit", NOT_LOADED)
        async with seat.agent():
            await until(lambda: bool(seat.statuses) and status_of_condition(seat, "DriverReady") == "False")
            machine.clear()
            await until(lambda: [(one.profile, one.start) for one in machine.parts(0)] == [("3g.20gb", 0)], 40.0)


def status_of_condition(seat: Seat, condition: str) -> str:
    return next((str(one["status"]) for one in seat.statuses[-1]["conditions"] if one["type"] == condition), "")


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


GPUS = tuple(Gpu(i, i, f"GPU-{i}", "A", f"0000:0{i}:00.0", 1) for i in range(2))
ALL, SOME = Host(gpus=GPUS), Host(gpus=GPUS[:1], unread=(Unread("gpus[1]", "lost"),), sight="some")
NONE = Host(unread=(Unread("gpus", "no driver"),), sight="none")


def test_nothing_is_published_before_the_first_complete_look() -> None:
    known = KnownHost(Clock())
    for found, watched in ((NONE, False), (SOME, True), (ALL, False)):
        known.look(found, watched)
        assert (known.publishable, known.host.gpus, known.host.known) == ("nothing", (), False)
    known.look(ALL, True)
    assert (known.publishable, known.host) == ("all", ALL)


@pytest.mark.parametrize(
    ("found", "publishable", "gpus"), [(NONE, "silence", ()), (SOME, "all", GPUS[:1]), (ALL, "all", GPUS)]
)
def test_an_incomplete_look_is_published_after_a_while(found: Host, publishable: str, gpus: tuple[Gpu, ...]) -> None:
    clock = Clock()
    known = KnownHost(clock)
    clock.now_s += PATIENCE_S[found.sight] - 1
    known.look(found, False)
    assert known.publishable == "nothing"
    clock.now_s += 1
    known.look(found, False)
    assert (known.publishable, known.host.gpus) == (publishable, gpus)


def test_a_later_look_without_gpus_makes_all_unhealthy_and_one_with_some_replaces_them() -> None:
    known = KnownHost(Clock())
    known.look(ALL, True)
    known.look(NONE, True)
    assert known.host.gpus == GPUS and known.host.unread == NONE.unread
    assert {(one.uuid, one.code, one.message) for one in known.unhealthy} == {
        (gpu.uuid, "nvml", "no driver") for gpu in GPUS
    }
    known.look(SOME, True)
    assert known.host == SOME and not known.unhealthy
    known.look(Host(), True)
    assert known.host == Host() and not known.unhealthy, "a machine from which all GPUs were taken has none"


def test_patience_covers_what_drivers_need() -> None:
    assert knowing.PATIENCE_S == {"all": 60.0, "some": 10.0, "none": 60.0}
