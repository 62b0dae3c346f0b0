# SPDX-License-Identifier: Apache-2.0
"""Idle MIG cards are divided anew for pods that wait long enough, one layout at a time on a node, never over a
refusal."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dovetail.core.devices.mig.plan import InstanceChange
from dovetail.core.reasons import Repartition
from dovetail.kube.api.errors import Conflict
from dovetail.kube.objects.pods import Pod
from dovetail.kube.objects.topology import GPUNode
from dovetail.kube.translate.translator import Translator
from dovetail.scheduler.clock import Clock
from dovetail.scheduler.mig_repartitioner import MigRepartitioner
from tests.kube.yaml_objects import Change as Reported

PROPOSAL = Repartition("n", (InstanceChange(0, destroy=(("1g.5gb", 6),), create=(("2g.10gb", 4),)),))
LAYOUT = [{"profile": "3g.20gb", "start": 0}, {"profile": "2g.10gb", "start": 4}]


def gpu_node(spec: str = "", state: str = "", *, agent: bool = True, reported: str = "") -> GPUNode:
    mig = [{"profile": "3g.20gb", "start": 0}, {"profile": "1g.5gb", "start": 6}]
    status: dict[str, Any] = {"gpus": [{"index": 0, "uuid": "GPU-a", "mig": mig}]}
    if agent:
        status["agent"] = {"version": "0.1.0", "honoursChoice": True}
    if state:
        status["mig"] = {"id": reported or spec, "state": state, "message": "a pod holds it"}
    document = {"metadata": {"name": "n", "resourceVersion": "7"}, "status": status}
    return msgspec.convert(document | ({"spec": {"mig": {"id": spec, "gpus": []}}} if spec else {}), GPUNode)


class Bench:
    """A divider before an API server that takes everything, or answers with `error`."""

    def __init__(self) -> None:
        self.feed, self.now_s, self.leads = Translator(), 1000.0, True
        self.written: list[dict[str, Any]] = []
        self.error: Exception | None = None
        client: Any = self
        self.divider = MigRepartitioner(client, self.feed, Clock(lambda: 0.0, lambda: self.now_s), lambda: self.leads)
        for uid in ("a", "b"):
            document = {"metadata": {"name": uid, "namespace": "d", "uid": uid}}
            self.feed.pods([Reported("added", msgspec.convert(document, Pod))])
        self.see(gpu_node())

    async def request(self, method: str, path: str, body: bytes, *, content_type: str) -> None:
        assert (method, path) == ("PATCH", "/apis/dovetail.dev/v1alpha1/gpunodes/n")
        if self.error is not None:
            raise self.error
        self.written.append(msgspec.json.decode(body))

    def see(self, node: GPUNode) -> None:
        self.feed.gpu_nodes([Reported("modified", node)])

    async def after(self, seconds: float) -> list[dict[str, Any]]:
        """What was asked for when so many seconds have passed."""
        self.now_s += seconds
        before = len(self.written)
        await self.divider.look()
        return self.written[before:]


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def test_the_whole_layout_of_the_gpu_is_asked_for_once_the_pod_has_waited(bench: Bench) -> None:
    bench.divider.propose("a", PROPOSAL)
    assert await bench.after(9) == []
    (asked,) = await bench.after(1)
    assert asked["metadata"] == {"resourceVersion": "7"}
    layout = asked["spec"]["mig"]
    assert layout["gpus"] == [{"uuid": "GPU-a", "instances": LAYOUT}]
    bench.see(gpu_node(layout["id"]))
    assert await bench.after(1000) == []


@pytest.mark.parametrize("state", ["pending", "applying"])
async def test_nothing_else_is_asked_of_a_node_while_a_layout_is_under_way(bench: Bench, state: str) -> None:
    bench.divider.propose("b", PROPOSAL)
    bench.see(gpu_node("x", state))
    assert await bench.after(100) == []
    bench.see(gpu_node("x", "applied"))
    assert len(await bench.after(1)) == 1


async def test_a_node_that_refused_is_left_alone_for_ten_minutes(bench: Bench) -> None:
    bench.divider.propose("a", PROPOSAL)
    (asked,) = await bench.after(10)
    layout_id = asked["spec"]["mig"]["id"]
    bench.see(gpu_node(layout_id, "refused"))
    assert await bench.after(1) == []
    assert await bench.after(599) == []
    assert len(await bench.after(1)) == 1


@pytest.mark.parametrize("end", ["placed", "deleted", "no agent"])
async def test_nothing_is_asked_for_a_pod_that_needs_it_no_more(bench: Bench, end: str) -> None:
    bench.divider.propose("a", PROPOSAL)
    if end == "placed":
        bench.divider.propose("a", None)
    elif end == "deleted":
        bench.feed.pods([Reported("deleted", msgspec.convert({"metadata": {"uid": "a", "name": "a"}}, Pod))])
    elif end == "no agent":
        bench.see(gpu_node(agent=False))
    assert await bench.after(100) == []


async def test_somebody_elses_layout_is_not_overwritten(bench: Bench) -> None:
    bench.divider.propose("a", PROPOSAL)
    bench.error = Conflict(409, "Conflict", "the object has been modified", "/n")
    assert await bench.after(10) == []
    bench.error = None
    assert len(await bench.after(1)) == 1
