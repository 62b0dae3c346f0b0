# SPDX-License-Identifier: Apache-2.0
"""What is foreseen of the policy is what its process does, and at that time."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from dovetail.idlepolicy.foresight import AskedPod, Foresight, foresee
from dovetail.kube.api.client import Client
from dovetail.kube.api.config import ClusterConfig
from dovetail.playground import Fault, Playground
from tests.idlepolicy.world import DEFINITIONS, GPU_STACKS, HOUR, MINUTE, Document, World, selected, workload

START = 1_900_000_000_000


class Foreseen(World):
    def __init__(self, playground: Playground, client: Client) -> None:
        self.playground = playground
        super().__init__(playground.put, client, START)

    def install(self, **idle: object) -> None:
        """A GPUStack whose policy is that of the process."""
        spec = {"idle": {"enabled": True, "actsPerHour": 60, **idle}}
        self.put({"apiVersion": "dovetail.dev/v1alpha1", "kind": "GPUStack", "metadata": {"name": "s"}, "spec": spec})

    async def asked(self, *uids: str) -> Foresight:
        pods = self.playground.store.list("pods")
        names = {one["metadata"]["uid"]: one["metadata"]["name"] for one in pods}
        asked = [AskedPod("ml", names.get(uid, "gone"), uid) for uid in uids]
        return await foresee(ClusterConfig(server=self.playground.url), asked, self.now_ms)


@pytest.fixture
async def cluster() -> AsyncIterator[Foreseen]:
    playground = Playground(clock=lambda: START / 1000)
    await playground.start(still=True)
    for one in ({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ml"}}, *DEFINITIONS, GPU_STACKS):
        playground.put(one)
    async with Client(ClusterConfig(server=playground.url)) as client:
        yield Foreseen(playground, client)
    await playground.stop()


def stateful_set(cluster: Foreseen, when_idle: str = "") -> Document:
    return cluster.put(workload("StatefulSet", "web", selected("web", replicas=1), when_idle=when_idle))


@pytest.mark.parametrize("asked_after", [20 * MINUTE, 90 * MINUTE, 230 * MINUTE])
@pytest.mark.parametrize("passes_before", [True, False])
@pytest.mark.slow
async def test_a_workload_is_stopped_when_it_is_foreseen(
    cluster: Foreseen, asked_after: int, passes_before: bool
) -> None:
    """Asked before and after the notice, and where the policy is installed late."""
    cluster.install()
    uid = cluster.pod("web-0", stateful_set(cluster, "scale-to-zero"), labels={"app": "web"})
    while cluster.now_ms < START + asked_after:
        if passes_before:
            await cluster.after(1 / 6, ("n1", {uid: START}))
        else:
            cluster.now_ms += 10 * MINUTE
            cluster.reports("n1", {uid: START})
    found = (await cluster.asked(uid)).pods[uid]
    assert found.step == "scale-to-zero"
    assert "StatefulSet ml/web will be scaled to zero" in found.note
    cluster.restart()
    stored = cluster.playground.store
    while (set_ := stored.get("statefulsets.apps", "ml", "web")) and set_["spec"]["replicas"]:
        await cluster.after(1 / 60, ("n1", {uid: START}))
    # The first act of a process is a minute after its start with 60 an hour.
    assert found.at_ms <= cluster.now_ms <= found.at_ms + MINUTE


async def test_what_has_only_a_notice_or_none(cluster: Foreseen) -> None:
    cluster.install(exemptNamespaces=["infra"])
    owner = stateful_set(cluster)
    idle, used, opted_out = (
        cluster.pod(name, owner, labels={"app": "web"}, annotations=annotations)
        for name, annotations in (("web-0", {}), ("web-1", {}), ("web-2", {"dovetail.dev/when-idle": "nothing"}))
    )
    cluster.now_ms += HOUR // 2
    cluster.reports("n1", {idle: START, opted_out: START})
    found = (await cluster.asked(idle, used, opted_out, "other")).pods
    assert {uid: (one.step, one.at_ms) for uid, one in found.items()} == {
        idle: ("notice", START + HOUR), used: ("none", 0), opted_out: ("none", 0), "other": ("none", 0),
    }  # fmt: skip
    assert "With the annotation dovetail.dev/when-idle: scale-to-zero on StatefulSet ml/web" in found[idle].note
    assert "is nothing" in found[opted_out].note and "does not report it" in found[used].note
    exempt = await foresee(
        ClusterConfig(server=cluster.playground.url), [AskedPod("infra", "web-0", idle)], cluster.now_ms
    )
    assert exempt.pods[idle].note == "Namespace infra is exempt."


async def test_without_a_policy_or_the_right_to_see_it(cluster: Foreseen) -> None:
    uid = cluster.pod("alone")
    assert await cluster.asked(uid) == Foresight("off")
    cluster.install(enabled=False)
    assert await cluster.asked(uid) == Foresight("off")
    cluster.install()
    cluster.reports("n1", {uid: START})
    faults = cluster.playground.faults
    faults.add(Fault("answer", "GET", "gpustacks", status=403, message="no right to list", times=1))
    found = await cluster.asked(uid)
    assert (found.policy, found.pods) == ("", {}) and "no right to list" in found.note
    faults.add(Fault("answer", "GET", "pods", status=403, message="no right to get", times=1))
    found = await cluster.asked(uid)
    assert found.policy == "on" and found.pods[uid].step == "" and "no right to get" in found.pods[uid].note
