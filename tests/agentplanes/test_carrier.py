# SPDX-License-Identifier: Apache-2.0
"""Pods of an endpoint run on a host cluster: what the agent sees, and what is left when it is over."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from dovetail.agentplanes import names, statuses
from dovetail.apiserver.objects import condition_of, text_at
from dovetail.plane.broker import BrokerRefused
from tests.agentplanes.world import JOBS, NAMESPACE, has, job, phases, template, world
from tests.scheduler.scripted import until


async def test_a_job_with_gpus_runs_in_a_lease_to_its_end(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.create(JOBS, job("train", 2, 0.05, pods=2))
        await w.when(JOBS, has("Complete"))
        pods = await w.listed("pods")
        assert phases(pods) == ["Succeeded", "Succeeded"]
        assert {text_at(pod, "spec.nodeName") for pod in pods} <= {"node-0", "node-1"}
        assert all(pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 0 for pod in pods)
        await w.quiet()
        assert w.broker.calls.count("put") >= 1


async def test_pods_without_gpus_need_no_lease(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.create(JOBS, job("prepare", 0, 0.05, pods=3))
        await w.when(JOBS, has("Complete"))
        assert "put" not in w.broker.calls
        await w.quiet()


async def test_a_deletion_on_the_endpoint_is_one_on_the_host(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.create(JOBS, job("train", 1, None))
        await w.when("pods", lambda pods: phases(pods) == ["Running"])
        (pod,) = await w.listed("pods")
        await w.delete("pods", pod["metadata"]["name"])
        await w.when("pods", lambda pods: pod["metadata"]["uid"] not in {p["metadata"]["uid"] for p in pods})
        await w.when("pods", lambda pods: phases(pods) == ["Running"])
        await w.delete(JOBS, "train")
        await w.when("pods", lambda pods: not pods)
        await w.quiet()


@pytest.mark.slow
async def test_a_pod_that_vanishes_from_the_host_has_failed_and_its_job_makes_another(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.create(JOBS, job("train", 1, None))
        await w.when("pods", lambda pods: phases(pods) == ["Running"])
        (host,) = w.host_pods
        w.playground.delete("pods", NAMESPACE, host["metadata"]["name"])
        await w.when("pods", lambda pods: phases(pods) == ["Failed", "Running"])
        (failed,) = [pod for pod in await w.listed("pods") if pod["status"]["phase"] == "Failed"]
        assert failed["status"]["reason"] == "HostPodGone"


async def test_a_revocation_is_announced_and_ends_the_pod_at_its_deadline(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.create(JOBS, job("train", 1, None))
        await w.when("pods", lambda pods: phases(pods) == ["Running"])
        node = w.broker.leases[0].holdings[0].node
        w.broker.maintain(node)
        await w.when("pods", has(statuses.ENDING))
        (pod,) = await w.listed("pods")
        warned = condition_of(pod, statuses.ENDING)
        assert warned["reason"] == "NodeMaintenance" and "save a checkpoint now" in warned["message"]
        assert len(w.host_pods) == 1
        await w.when("events", lambda events: len(events) == 1)
        (event,) = await w.listed("events")
        assert event["reason"] == "NodeMaintenance" and event["involvedObject"]["uid"] == pod["metadata"]["uid"]
        for _ in range(20):
            await w.broker.advance(5_000)
            await asyncio.sleep(0.01)
        await w.when("pods", lambda pods: phases(pods)[0] == "Failed")
        failed = await w.get("pods", ("default", pod["metadata"]["name"]))
        assert failed["status"]["reason"] == "NodeMaintenance"
        await w.when("pods", lambda pods: phases(pods) == ["Failed", "Running"])


async def test_another_process_adopts_the_lease_and_the_pod_runs_on(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.create(JOBS, job("train", 1, None))
        await w.when("pods", lambda pods: phases(pods) == ["Running"])
        (lease,) = w.broker.leases
        (before,) = w.host_pods
        await w.restart()
        await w.broker.advance(20_000)
        await asyncio.sleep(0.1)
        await w.broker.advance(20_000)
        (after,) = w.host_pods
        assert after["metadata"]["uid"] == before["metadata"]["uid"]
        assert [one.id for one in w.broker.leases] == [lease.id]
        assert phases(await w.listed("pods")) == ["Running"]
        await w.delete(JOBS, "train")
        await w.quiet()


async def test_what_is_not_carried_has_its_reason_on_the_pod(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        made = template(1, None)
        made["spec"]["hostNetwork"] = True
        await w.create("pods", {"metadata": {"name": "one"}, "spec": made["spec"]})
        await w.when("pods", lambda pods: condition_of(pods[0], "PodScheduled").get("reason") == "NotCarried")
        assert not w.host_pods


async def test_a_pod_waits_for_the_config_map_of_its_volume(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        spec = template(0, None)["spec"] | {"volumes": [{"name": "v", "configMap": {"name": "script"}}]}
        await w.create("pods", {"metadata": {"name": "one"}, "spec": spec})
        await w.when("pods", lambda pods: pods[0]["status"].get("reason") == "ConfigMapMissing")
        await w.create("configmaps", {"metadata": {"name": "script"}, "data": {"run.sh": "true"}})
        await w.when("pods", lambda pods: phases(pods) == ["Running"])
        (host,) = w.host_pods
        assert host["metadata"]["annotations"][f"{names.FILE}0"] == "true"


async def test_a_quota_of_the_host_is_shown_on_the_pod(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        w.playground.delete("namespaces", "", NAMESPACE)
        await w.create("pods", {"metadata": {"name": "one"}, "spec": template(0, None)["spec"]})
        await w.when("pods", lambda pods: condition_of(pods[0], "PodScheduled").get("reason") == "HostRefused")
        w.playground.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        await w.broker.advance(20_000)
        await w.when("pods", lambda pods: phases(pods) == ["Running"])


async def test_pods_of_others_with_our_labels_are_left_alone(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        labels = {names.PLANE_UID: "plane-uid", names.POD_UID: "uid-forged"}
        w.playground.put({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "forged", "namespace": NAMESPACE, "labels": labels},
            "spec": template(0, None)["spec"],
        })  # fmt: skip
        await w.create(JOBS, job("prepare", 0, 0.01))
        await w.when(JOBS, has("Complete"))
        assert await asyncio.sleep(0.05, w.playground.store.get("pods", NAMESPACE, "forged")) is not None


async def test_the_limit_of_pods_is_kept_and_shown(tmp_path: Path) -> None:
    async with world(tmp_path, pods=2) as w:
        await w.create(JOBS, job("many", 0, None, pods=4))
        await w.when("pods", lambda pods: phases(pods) == ["Pending", "Pending", "Running", "Running"])
        reasons = [condition_of(p, "PodScheduled").get("reason") for p in await w.listed("pods")]
        assert reasons.count("TooManyPods") == 2 and len(w.host_pods) == 2


async def test_a_deleted_plane_leaves_nothing_on_the_host(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.create(JOBS, job("train", 1, None, pods=2))
        await w.when("pods", lambda pods: phases(pods) == ["Running", "Running"])
        await w.halt()
        await w.carrier.host.clear()
        await until(lambda: not w.host_pods)


async def test_a_broker_that_refuses_the_plane_ends_the_carrier_and_pods_go_on(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.create(JOBS, job("train", 1, None))
        await w.when("pods", lambda pods: phases(pods) == ["Running"])

        async def refused(plane: str) -> None:
            raise BrokerRefused(f"{plane} may not do this")

        w.broker.heartbeat = refused  # type: ignore[method-assign]
        await w.broker.advance(20_000)
        with pytest.raises(BrokerRefused, match="may not do this"):
            await w.ended()
        assert len(w.host_pods) == 1
