# SPDX-License-Identifier: Apache-2.0
"""A pod is bound with its devices or not at all, and what a bind that fails has taken is free again."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from dovetail.playground.faults import Fault
from dovetail.scheduler import binder as module
from tests.kube.yaml_objects import Change as Reported
from tests.scheduler.claimed import CLAIMS, DRIVER, FINALIZER, NOW_MS, Cluster, grant
from tests.scheduler.scripted import until
from tests.scheduler.test_bind_serializer import gpu_node

GATED = {"schedulingGates": [{"name": "wait"}]}
HERE = {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]}]}
OTHERS = {
    "devices": {"results": [{"request": "gpu", "driver": DRIVER, "pool": "n", "device": "gpu-3"}]},
    "nodeSelector": HERE,
}
CONDITION = {"type": "Ready", "status": "True", "reason": "Attached", "message": "", "lastTransitionTime": None}


async def test_the_finalizer_comes_first_then_devices_and_consumer_at_once_then_the_bind(cluster: Cluster) -> None:
    cluster.claim()
    pod = cluster.pod()
    await cluster.seen()
    cluster.put_bind(pod, grant("c", "gpu-2"))
    await cluster.ended()
    made, protected, reserved = cluster.history(CLAIMS)
    assert "finalizers" not in made["metadata"] and protected["metadata"]["finalizers"] == [FINALIZER]
    assert "status" not in protected
    assert reserved["status"] == {
        "allocation": {
            "devices": {"results": [{"request": "gpu", "driver": DRIVER, "pool": "n", "device": "gpu-2"}]},
            "nodeSelector": HERE,
            "allocationTimestamp": "2025-06-15T15:06:40Z",
        },
        "reservedFor": [{"resource": "pods", "name": "p", "uid": pod.uid}],
    }
    bound = cluster.history("pods")[-1]
    assert bound["spec"]["nodeName"] == "n"
    assert int(bound["metadata"]["resourceVersion"]) > int(reserved["metadata"]["resourceVersion"])
    assert (cluster.bound, cluster.failed) == ([pod.uid], [])


async def test_what_is_there_already_is_not_written_again(cluster: Cluster) -> None:
    """As after a crash between the reservation and the bind, or where other pods have the claim."""
    for name in ("mine", "shared"):
        cluster.claim(name)
    pod, other = cluster.pod("p", "mine", "shared"), cluster.pod("q", "shared")
    users = [{"resource": "pods", "name": target.name, "uid": target.uid} for target in (pod, other)]
    cluster.change("mine", status={"allocation": OTHERS, "reservedFor": users[:1]}, metadata={"finalizers": ["x"]})
    cluster.change("shared", status={"allocation": OTHERS, "reservedFor": users[1:]}, metadata={"finalizers": ["x"]})
    await cluster.seen("mine", "shared")
    before = len(cluster.history(CLAIMS))
    cluster.put_bind(pod, reserve=("default/mine", "default/shared"))
    await cluster.ended()
    assert cluster.bound == [pod.uid]
    (written,) = cluster.history(CLAIMS)[before:]
    assert written["metadata"]["name"] == "shared" and written["metadata"]["finalizers"] == ["x"]
    assert written["status"] == {"allocation": OTHERS, "reservedFor": users[::-1]}


@pytest.mark.parametrize("effect", ["drop-after", "answer"])
@pytest.mark.parametrize("resource", ["resourceclaims", "resourceclaims/status"])
@pytest.mark.slow
async def test_a_write_whose_answer_is_lost_is_found_out(cluster: Cluster, effect: Any, resource: str) -> None:
    cluster.claim()
    pod = cluster.pod()
    await cluster.seen()
    cluster.playground.faults.add(Fault(effect, "PATCH", resource, status=504))
    cluster.put_bind(pod, grant("c"))
    await cluster.ended()
    assert (cluster.bound, cluster.status()) == ([pod.uid], (["gpu-0"], ["p"]))


async def test_a_change_that_does_not_matter_does_not_matter(cluster: Cluster) -> None:
    cluster.claim()
    pod = cluster.pod()
    await cluster.seen()
    cluster.put_bind(pod, grant("c"))
    cluster.change(metadata={"labels": {"a": "b"}, "finalizers": ["example.com/mine"]})
    await cluster.ended()
    assert (cluster.bound, cluster.status()) == ([pod.uid], (["gpu-0"], ["p"]))
    assert cluster.stored()["metadata"]["labels"] == {"a": "b"}
    assert cluster.stored()["metadata"]["finalizers"] == ["example.com/mine", FINALIZER]


async def test_a_claim_that_others_allocated_fails_the_bind_and_frees_the_rest(cluster: Cluster) -> None:
    cluster.claim("a")
    cluster.claim("b")
    pod = cluster.pod("p", "a", "b")
    await cluster.seen("a", "b")
    cluster.put_bind(pod, grant("a", "gpu-0"), grant("b", "gpu-1"))
    cluster.change("b", status={"allocation": OTHERS})
    await cluster.ended()
    (failed,) = cluster.failed
    assert (failed.node, failed.retry_at_ms) == ("", NOW_MS + 1_000)
    assert failed.message == "the resourceclaim default/b was allocated by somebody else in the meantime"
    assert (cluster.status("a"), cluster.status("b")) == (([], []), (["gpu-3"], []))
    assert cluster.history("pods")[-1]["spec"].get("nodeName") is None


async def test_the_same_devices_by_another_hand_are_no_reason_to_fail(cluster: Cluster) -> None:
    cluster.claim()
    pod = cluster.pod()
    await cluster.seen()
    cluster.put_bind(pod, grant("c", "gpu-3"))
    cluster.change(status={"allocation": OTHERS})
    await cluster.ended()
    assert (cluster.bound, cluster.status()) == ([pod.uid], (["gpu-3"], ["p"]))


async def test_a_claim_that_was_released_after_the_decision_fails_the_bind(cluster: Cluster) -> None:
    cluster.claim()
    cluster.change(status={"allocation": OTHERS})
    pod = cluster.pod()
    await cluster.seen()
    cluster.put_bind(pod, reserve=("default/c",))
    cluster.change(status={"allocation": None})
    await cluster.ended()
    assert "default/c was released in the meantime" in cluster.failed[0].message
    assert cluster.status() == ([], [])


@pytest.mark.parametrize("what", ["was deleted", "was deleted and made again", "is being deleted"])
async def test_a_claim_deleted_between_allocation_and_bind_fails_the_bind(cluster: Cluster, what: str) -> None:
    made = cluster.claim()
    pod = cluster.pod()
    await cluster.seen()
    cluster.put_bind(pod, grant("c"))
    if what == "is being deleted":
        cluster.change(metadata={"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["example.com/x"]})
    else:
        cluster.playground.delete(CLAIMS, "default", "c")
    if "again" in what:
        assert cluster.claim()["metadata"]["uid"] != made["metadata"]["uid"]
    await cluster.ended()
    assert cluster.failed[0].message == f"the resourceclaim default/c {what}"
    assert cluster.bound == [] and cluster.history("pods")[-1]["spec"].get("nodeName") is None


async def test_a_claim_that_is_not_known_fails_the_bind(cluster: Cluster) -> None:
    cluster.put_bind(cluster.pod(), grant("c"))
    await cluster.ended()
    assert cluster.failed[0].message == "the resourceclaim default/c was deleted"


async def test_a_bind_that_is_refused_gives_the_devices_back(cluster: Cluster) -> None:
    cluster.claim()
    pod = cluster.pod(**GATED)
    await cluster.seen()
    cluster.put_bind(pod, grant("c"))
    await cluster.ended()
    assert "schedulingGates" in cluster.failed[0].message
    assert cluster.status() == ([], [])


async def test_what_cannot_be_released_stays_with_the_pod(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    cluster.claim()
    pod = cluster.pod(**GATED)
    await cluster.seen()
    written = Fault("delay", "PATCH", "resourceclaims/status")
    cluster.playground.faults.add(written)
    cluster.playground.faults.add(Fault("answer", "PATCH", "resourceclaims/status", status=403, times=9))
    cluster.put_bind(pod, grant("c"))
    await cluster.ended()
    assert (len(cluster.failed), cluster.status()) == (1, (["gpu-0"], ["p"]))
    assert "default/c stays reserved" in caplog.text


async def test_a_refusal_that_will_not_change_is_not_repeated_soon(cluster: Cluster) -> None:
    """Admin access in a namespace that does not allow it any more."""
    cluster.claim()
    pod = cluster.pod()
    await cluster.seen()
    cluster.playground.faults.add(Fault("answer", "PATCH", "resourceclaims/status", status=422))
    cluster.put_bind(pod, grant("c"))
    await cluster.ended()
    assert cluster.failed[0].retry_at_ms == NOW_MS + 10_000


async def test_pods_that_share_a_claim_are_bound_together(cluster: Cluster) -> None:
    """Whoever comes first writes what was allocated for all of them."""
    cluster.claim()
    pods = [cluster.pod(f"p{i}") for i in range(8)]
    await cluster.seen()
    for pod in pods:
        grants = (grant("c", "gpu-1"),) if pod is pods[-1] else ()
        cluster.put_bind(pod, *grants, reserve=("default/c",))
    await cluster.ended(8)
    devices, users = cluster.status()
    assert (devices, sorted(users)) == (["gpu-1"], [pod.name for pod in pods])
    assert sorted(cluster.bound) == sorted(pod.uid for pod in pods)


async def test_an_allocation_that_the_watch_has_not_reported_yet_is_looked_up(cluster: Cluster) -> None:
    cluster.claim()
    first, second = cluster.pod("first"), cluster.pod("second")
    await cluster.seen()
    cluster.playground.faults.watches_flow.clear()
    cluster.put_bind(first, grant("c"))
    await cluster.ended()
    cluster.put_bind(second, reserve=("default/c",))
    await cluster.ended(2)
    assert (cluster.bound, cluster.status()) == ([first.uid, second.uid], (["gpu-0"], ["first", "second"]))


async def test_a_pod_that_fails_leaves_a_shared_claim_to_the_others(cluster: Cluster) -> None:
    cluster.claim()
    good, bad = cluster.pod("good"), cluster.pod("bad", **GATED)
    await cluster.seen()
    cluster.put_bind(bad, grant("c"))
    cluster.put_bind(good, reserve=("default/c",))
    await cluster.ended(2)
    assert (cluster.bound, [failed.uid for failed in cluster.failed]) == ([good.uid], [bad.uid])
    assert cluster.status() == (["gpu-0"], ["good"])


async def test_nothing_is_written_by_a_follower(cluster: Cluster) -> None:
    cluster.claim()
    pod = cluster.pod()
    await cluster.seen()
    before = len(cluster.history(CLAIMS))
    cluster.leads = False
    cluster.put_bind(pod, grant("c"))
    for _ in range(20):
        await cluster.mirror.nodes.synced.wait()
    assert (len(cluster.history(CLAIMS)), cluster.bound, cluster.failed) == (before, [], [])


CONDITIONS = {"conditions": ("Ready",), "failure_conditions": ("Broken",)}


class TestBindingConditions:
    """Devices that a driver has to attach to the node first."""

    @pytest.fixture
    async def attached(self, cluster: Cluster) -> Cluster:
        cluster.claim()
        await cluster.seen()
        return cluster

    def apply_events(self, cluster: Cluster, **condition: str) -> None:
        status = {"driver": DRIVER, "pool": "n", "device": "gpu-0", "conditions": [CONDITION | condition]}
        cluster.change(status={"devices": [status]})

    async def test_the_bind_waits_for_them(self, attached: Cluster) -> None:
        pod = attached.pod()
        attached.put_bind(pod, grant("c", **CONDITIONS))
        await until(lambda: attached.status() == (["gpu-0"], ["p"]))
        (result,) = attached.stored()["status"]["allocation"]["devices"]["results"]
        assert (result["bindingConditions"], result["bindingFailureConditions"]) == (["Ready"], ["Broken"])
        self.apply_events(attached, status="False")
        await attached.seen()
        assert attached.bound == []
        self.apply_events(attached)
        await attached.ended()
        assert attached.bound == [pod.uid]

    async def test_a_failure_frees_the_device(self, attached: Cluster) -> None:
        attached.put_bind(attached.pod(), grant("c", **CONDITIONS))
        await until(lambda: attached.status() == (["gpu-0"], ["p"]))
        self.apply_events(attached, type="Broken", message="no cable")
        await attached.ended()
        assert attached.failed[0].message == "device gpu-0 of default/c: Broken: no cable"
        assert (attached.failed[0].node, attached.status()) == ("n", ([], []))

    async def test_it_does_not_wait_for_ever(self, attached: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "_PREPARE_TIMEOUT_S", 0.05)
        attached.put_bind(attached.pod(), grant("c", **CONDITIONS))
        await attached.ended()
        assert "Ready of device gpu-0 of default/c" in attached.failed[0].message
        assert attached.status() == ([], [])

    def allocate(self, cluster: Cluster, ago_s: int, *consumers: Any) -> None:
        """Somebody did, so long ago."""
        moment = datetime.fromtimestamp(NOW_MS / 1000 - ago_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        (result,) = OTHERS["devices"]["results"]  # type: ignore[index]
        own = {"bindingConditions": ["Ready"], "bindingFailureConditions": ["Broken"]}
        allocation = OTHERS | {"devices": {"results": [result | own]}, "allocationTimestamp": moment}
        users = [{"resource": "pods", "name": one.name, "uid": one.uid} for one in consumers]
        cluster.change(status={"allocation": allocation, "reservedFor": users}, metadata={"finalizers": [FINALIZER]})

    @pytest.mark.parametrize(("ago_s", "bound"), [(599, False), (601, True)])
    async def test_it_waits_from_when_they_were_allocated_by_whomever(
        self, attached: Cluster, ago_s: int, bound: bool
    ) -> None:
        pod = attached.pod()
        self.allocate(attached, ago_s, pod)
        await attached.seen()
        attached.put_bind(pod, reserve=("default/c",))
        if not bound:
            await asyncio.sleep(0.1)
            assert (attached.bound, attached.failed) == ([], [])
            return
        await attached.ended()
        assert "not within 600 s of the allocation: Ready of device gpu-3" in attached.failed[0].message
        assert attached.status() == ([], [])

    async def test_what_does_not_become_ready_is_released_unless_others_have_it(self, attached: Cluster) -> None:
        pod, other = attached.pod(), attached.pod("q")
        for consumers, left in (([], []), ([pod], []), ([pod, other], ["gpu-3"]), ([other], ["gpu-3"])):
            self.allocate(attached, 700, *consumers)
            await attached.seen()
            await attached.binder.let_go(["default/c"], pod.uid, "default/made")
            assert attached.status()[0] == left
            assert attached.status()[1] == ([one.name for one in consumers] if left else [])

    async def test_a_claim_that_was_made_for_extended_resources_is_deleted(self, attached: Cluster) -> None:
        self.allocate(attached, 700)
        await attached.seen()
        await attached.binder.let_go(["default/c"], attached.pod().uid, "default/c")
        assert attached.playground.store.get(CLAIMS, "default", "c") is None

    async def test_nothing_is_released_by_a_follower(self, attached: Cluster) -> None:
        self.allocate(attached, 700)
        await attached.seen()
        attached.leads = False
        await attached.binder.let_go(["default/c"], attached.pod().uid, "default/made")
        assert attached.status()[0] == ["gpu-3"]


async def test_a_bind_that_is_decided_anew_leaves_nothing_of_its_claim_behind(cluster: Cluster) -> None:
    """Its turn does not come, as the books of its node change: the claim may be another one by the next time."""
    cluster.mirror.feed.gpu_nodes([Reported("added", gpu_node("n", policy="restricted"))])
    gpu = [{"name": "main", "image": "i", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]
    for name in ("old", "first"):
        cluster.put("v1", "Pod", name, {"containers": gpu, "nodeName": "n"})
    cluster.claim()
    pod = cluster.pod("p", containers=gpu)
    await cluster.seen()
    admissions = cluster.mirror.feed.admissions
    await until(lambda: len(admissions.coming("n")) == 2 and bool(admissions.sizes(pod.uid)))
    cluster.put_bind(pod, grant("c"))
    cluster.playground.delete("pods", "default", "old")
    await until(lambda: bool(cluster.failed))
    cluster.playground.delete(CLAIMS, "default", "c")
    cluster.playground.delete("pods", "default", "first")
    cluster.claim()
    await cluster.seen()
    await until(lambda: not admissions.coming("n"))
    cluster.failed.clear()
    cluster.put_bind(pod, grant("c", "gpu-3"))
    await cluster.ended()
    assert (cluster.bound, cluster.failed, cluster.status()) == ([pod.uid], [], (["gpu-3"], ["p"]))
