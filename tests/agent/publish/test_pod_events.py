# SPDX-License-Identifier: Apache-2.0
"""Events on the pods that hold a GPU with an error: at once, one for each error, and bounded."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from copy import deepcopy
from datetime import UTC, datetime
from typing import Any

import pytest

from dovetail.agent.exporter.processes import Foreign
from dovetail.agent.exporter.reading import Owner, Owners
from dovetail.agent.health.gpu_events import DOUBLE_BIT, RECOVERY_CHANGED, XID, GpuEvent
from dovetail.agent.health.xids import default
from dovetail.agent.publish import pod_events
from dovetail.agent.publish.pod_events import PodEvent, PodEvents, foreign_event
from dovetail.kube.api.errors import Unreachable
from tests.patience import PATIENCE_S

TRAIN = Owner("ml", "train", "u-train", "main", 1.0)
HALF = Owner("ml", "half", "u-half", "main", 0.5)
PART = Owner("ml", "part", "u-part", "main", 1.0)


class Bench:
    """The writer beside an API server that notes what it is sent."""

    def __init__(self) -> None:
        self.owners: Owners | None = Owners({"GPU-0": (TRAIN,), "GPU-1": (HALF, PART, HALF), "MIG-1": (PART,)}, 0.0)
        self.lists = 0
        self.foreign: tuple[Foreign, ...] = ()
        self.now_s = 1000.0
        self.down = False
        self.calls: list[tuple[str, str, dict[str, Any]]] = []
        self.writer = PodEvents(
            self, "gpu-1", default(), self._list, lambda: self.foreign,  # type: ignore[arg-type]
            clock_s=lambda: self.now_s, now=lambda: datetime(2026, 11, 22, tzinfo=UTC),
        )  # fmt: skip

    async def _list(self) -> Owners | None:
        self.lists += 1
        return self.owners

    async def request(self, method: str, path: str, body: dict[str, Any], **_: Any) -> None:
        self.calls.append((method, path, deepcopy(body)))
        if self.down:
            raise Unreachable(0, "NotConnected", "no route", path)

    def xid(self, number: int, gpu: str = "GPU-0", **more: Any) -> None:
        self.writer.occurred(GpuEvent(gpu, XID, number, **more))

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not holds():  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.005)

    @property
    def pods(self) -> list[str]:
        return [body["regarding"]["name"] for method, _, body in self.calls if method == "POST"]


@pytest.fixture
async def bench(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    made = Bench()
    task = asyncio.create_task(made.writer.run())
    yield made
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def test_the_pod_that_holds_the_gpu_gets_the_error_its_meaning_and_the_action(bench: Bench) -> None:
    bench.xid(79)
    await bench.until(lambda: bool(bench.calls))
    ((method, path, body),) = bench.calls
    assert (method, path) == ("POST", "/apis/events.k8s.io/v1/namespaces/ml/events")
    assert body["metadata"]["namespace"] == "ml" and body["metadata"]["name"].startswith("train.")
    assert body["regarding"] == {
        "apiVersion": "v1", "kind": "Pod", "namespace": "ml", "name": "train", "uid": "u-train",
    }  # fmt: skip
    assert (body["reason"], body["type"], body["eventTime"]) == ("GPUError", "Warning", "2026-11-22T00:00:00.000000Z")
    assert (body["reportingController"], body["reportingInstance"]) == ("dovetail.dev/agent", "gpu-1")
    assert body["note"].startswith("XID 79, fallen off the bus, on GPU-0. Action: quarantine-node (reboot the node")


async def test_all_pods_of_the_device_and_no_other(bench: Bench) -> None:
    bench.xid(31, "GPU-1")
    await bench.until(lambda: len(bench.calls) == 2)
    bench.xid(13, "GPU-1", instances=("MIG-1", "MIG-2"), hit=("MIG-1",))
    await bench.until(lambda: len(bench.calls) == 3)
    bench.writer.occurred(GpuEvent("GPU-0", DOUBLE_BIT, 0))
    await bench.until(lambda: len(bench.calls) == 4)
    assert bench.pods == ["half", "part", "part", "train"]


async def test_notices_and_errors_without_a_pod_are_no_events(bench: Bench) -> None:
    bench.xid(154)
    bench.writer.occurred(GpuEvent("GPU-0", RECOVERY_CHANGED, 0))
    bench.xid(79, "GPU-7")
    bench.xid(48)
    await bench.until(lambda: bool(bench.calls))
    assert len(bench.calls) == 1 and "XID 48" in bench.calls[0][2]["note"]


async def test_repetitions_are_counted_and_a_new_window_is_a_new_event(bench: Bench) -> None:
    bench.xid(31)
    await bench.until(lambda: len(bench.calls) == 1)
    lists = bench.lists
    for _ in range(5):
        bench.xid(31)
    await bench.until(lambda: bench.lists > lists)
    bench.now_s += 40
    bench.xid(31)
    await bench.until(lambda: len(bench.calls) == 2)
    method, path, body = bench.calls[1]
    assert method == "PATCH" and path.endswith(bench.calls[0][2]["metadata"]["name"])
    assert body["series"]["count"] == 7
    bench.now_s += 600
    bench.xid(31)
    await bench.until(lambda: len(bench.calls) == 3)
    assert bench.calls[2][0] == "POST"


async def test_a_storm_costs_few_lists_and_bounded_writes(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_events, "MOST_WRITES", 10)
    for number in range(1000):
        bench.xid(1000 + number % 500)
    await bench.until(lambda: len(bench.calls) == 10)
    assert bench.lists == 1
    assert bench.writer.dropped == 1000 - pod_events.MOST_WAITING + (pod_events.MOST_WAITING - 10)
    # The next window begins afresh.
    bench.now_s += 601
    bench.xid(31)
    await bench.until(lambda: len(bench.calls) == 11)


async def test_a_server_that_does_not_answer_and_a_kubelet_that_lists_nothing_end_nothing(bench: Bench) -> None:
    bench.down = True
    bench.xid(31)
    await bench.until(lambda: len(bench.calls) == 1)
    bench.down, bench.owners = False, None
    bench.xid(48)
    await bench.until(lambda: bench.lists == 2)
    bench.owners = Owners({"GPU-0": (TRAIN,)}, 0.0)
    bench.xid(94)
    await bench.until(lambda: len(bench.calls) == 2)
    assert "XID 94" in bench.calls[1][2]["note"]


async def test_a_process_on_a_gpu_that_its_pod_does_not_hold(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_events, "COUNT_AGAIN_S", 0.01)
    one = Foreign("GPU-0", 77, "other_pod", 3 << 20, "ml", "other", "u-other")
    assert foreign_event(one) == PodEvent(
        "ml", "other", "u-other", "GPUUsedWithoutRequest", "GPU-0",
        "Process 77 of this pod uses GPU-0 (3 MiB), which the pod has not requested.",
    )  # fmt: skip
    assert foreign_event(Foreign("GPU-0", 77, "no_pod", 0)) is None
    bench.foreign = (one, Foreign("GPU-0", 78, "no_pod", 0))
    bench.xid(31)
    await bench.until(lambda: "other" in bench.pods)


async def test_what_a_container_got_is_a_normal_event_of_its_own_action(bench: Bench) -> None:
    bench.writer.report(
        PodEvent("ml", "train", "u-train", "NetworkEnvironmentSet", "GPU-0", "set", False, "Allocating")
    )
    await bench.until(lambda: bool(bench.calls))
    ((_, _, body),) = bench.calls
    assert (body["type"], body["action"], body["note"]) == ("Normal", "Allocating", "set")
    assert body["regarding"]["name"] == "train"


async def test_of_more_than_the_bound_the_rest_is_dropped(bench: Bench) -> None:
    for number in range(pod_events.MOST_WAITING + 3):
        bench.writer.report(PodEvent("ml", f"p{number}", "", "NetworkEnvironmentSet", "", "set", False))
    assert bench.writer.dropped == 3


async def test_pods_that_come_and_go_leave_room_for_errors(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_events, "MOST_WRITES", 10)
    for number in range(20):
        bench.writer.report(PodEvent("ml", f"p{number}", "", "NetworkEnvironmentSet", "", "set", False))
    await bench.until(lambda: bench.writer.dropped > 0)
    bench.xid(79)
    await bench.until(lambda: "train" in bench.pods)
    assert len(bench.calls) == 6 and bench.writer.dropped == 15
