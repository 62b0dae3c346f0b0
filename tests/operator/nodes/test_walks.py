# SPDX-License-Identifier: Apache-2.0
"""The walk on a playground: from nothing to validated, what it writes and what it does not, whatever happens."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest

from dovetail.kube.objects.stack import StackStatus
from dovetail.playground import Fault
from tests.operator.nodes.walked_world import AGENT, GPU_NODES, PODS, SYSTEM, WalkedWorld

pytestmark = pytest.mark.usefixtures("no_waits")


@pytest.fixture
async def world() -> AsyncIterator[WalkedWorld]:
    world = WalkedWorld()
    # Without its kubelets and controllers: the test plays them.
    await world.playground._connections.serve(world.playground._server.handle)
    yield world
    await world.playground.stop()


async def test_a_node_walks_from_nothing_to_validated(world: WalkedWorld) -> None:
    world.node()
    async with world.walking():
        await world.settle()
        assert world.at() == ("agent", "PodMissing") and world.tainted()
        gpu_node = world.get(GPU_NODES, "", "gpu-1")
        assert gpu_node is not None and gpu_node["metadata"]["ownerReferences"][0]["kind"] == "Node"
        world.agent_pod(ready=False)
        await world.settle(after_s=5)
        assert world.at() == ("agent", "PodNotReady")
        assert world.readiness()["evidence"]["name"] == "agent-gpu-1"
        world.agent_pod()
        world.report()
        await world.settle(after_s=5)
        assert world.at() == ("devices", "NoDevices")
        world.node(gpus=2)
        await world.settle(after_s=5)
        assert world.at() == ("validated", "ValidationPending") and world.tainted()
        pod = world.trial()
        assert pod is not None and pod["spec"]["containers"][0]["image"] == "dovetail:1"
        world.finish()
        await world.settle(after_s=5)
        found = world.readiness()
        assert (found["step"], found.get("reason")) == ("ready", None)
        assert (found["validation"]["chosen"], found["validation"]["given"]) == ("0", "0")
        assert not world.tainted() and world.trial() is None
        status = world.walks.report(StackStatus())
        assert (status.nodes.nodes, status.nodes.ready, status.nodes.gpus, status.blocked) == (0, 0, 0, ())
        world.walks._begun = True
        status = world.walks.report(StackStatus())
        assert (status.nodes.nodes, status.nodes.ready, status.nodes.gpus_ready, status.blocked) == (1, 1, 2, ())
        assert world.walks.waits() == ""


@pytest.mark.slow
async def test_nothing_is_written_in_a_day_in_which_nothing_changes(world: WalkedWorld) -> None:
    world.working()
    world.node("gpu-2")
    async with world.walking():
        await world.settle()
        world.finish()
        await world.settle(after_s=5)
        assert world.at() == ("ready", "") and world.at("gpu-2") == ("agent", "PodMissing")
        before, reports = len(world.writes), world.reports
        for _ in range(24 * 12):
            world.now_s += 300
            world.report()
            await world.settle(passes=1)
        assert world.writes[before:] == [] and world.reports == reports
    # Nor by the next process.
    async with world.walking():
        await world.settle()
        assert world.writes[before:] == []


@pytest.mark.slow
async def test_a_node_that_flaps_is_written_a_bounded_number_of_times_an_hour(world: WalkedWorld) -> None:
    world.working()
    async with world.walking():
        begin_s = world.now_s
        for number in range(720):
            world.now_s += 15
            if number % 2:
                world.report(conditions=[{"type": "PluginRegistered", "status": "False", "reason": "NotRegistered"}])
            else:
                world.report()
            await world.settle(passes=1)
        for hour in range(3):
            writes = [one for at_s, one, _ in world.writes if hour <= (at_s - begin_s) // 3600 < hour + 1]
            assert 10 <= writes.count(GPU_NODES) <= 30 + 15 + 1
            # Made and deleted.
            assert writes.count(PODS) <= 2 * (12 + 3)
            assert writes.count("nodes") <= 4
        world.report()
        await world.settle(after_s=300)
        await world.settle(after_s=300)
        assert world.at()[0] == "validated"


async def test_a_node_whose_jobs_run_is_not_tainted_and_waits_for_a_free_gpu(world: WalkedWorld) -> None:
    world.working()
    world.job("foreign")
    async with world.walking():
        await world.settle()
        assert world.at() == ("validated", "GpusBusy") and not world.tainted() and world.trial() is None
        assert world.walks.waits() == ""
        with world.acting():
            world.playground.store.remove(PODS, ("default", "foreign"))
        await world.settle(after_s=61)
        assert world.at() == ("validated", "ValidationPending") and world.trial() is not None


async def test_a_job_of_dovetail_on_a_full_node_validates_it(world: WalkedWorld) -> None:
    world.working()
    world.now_s += 10
    world.job("train", chosen="0,1")
    async with world.walking():
        await world.settle(after_s=30)
        assert world.at() == ("ready", "") and not world.tainted()
        assert world.readiness()["validation"]["chosen"] == "0,1" and world.trial() is None


async def test_a_new_agent_is_validated_again_without_a_taint(world: WalkedWorld) -> None:
    world.working()
    async with world.walking():
        await world.settle()
        world.finish()
        await world.settle(after_s=5)
        world.report(version="0.2.0")
        await world.settle(after_s=5)
        assert world.at()[0] == "validated" and not world.tainted()
        assert "agent=0.1.0" in world.readiness()["validation"]["key"]
        world.finish()
        await world.settle(after_s=5)
        assert world.at() == ("ready", "") and "agent=0.2.0" in world.readiness()["validation"]["key"]


@pytest.mark.slow
async def test_a_failure_keeps_its_time_and_is_tried_again_with_growing_pauses(world: WalkedWorld) -> None:
    world.working()
    async with world.walking():
        await world.settle()
        made = 0
        first_s = world.now_s + 5
        for _ in range(240):
            if world.trial() is not None:
                made += 1
                world.finish(code=1, message="1 device is visible, and not 2")
            world.report()
            await world.settle(after_s=60)
            assert world.at() == ("validated", "ValidationFailed")
            assert world.readiness()["evidence"]["line"] == "1 device is visible, and not 2"
        assert 8 <= made <= 14
        since = world.readiness()["since"]
        assert since <= world.time() and abs(world.now_s - first_s - 240 * 60) < 120
        assert [one for _, one, _ in world.writes].count(GPU_NODES) <= 4
        assert world.tainted()
        while world.trial() is None:
            world.report()
            await world.settle(after_s=60)
        assert world.at() == ("validated", "ValidationFailed")
        world.finish()
        await world.settle(after_s=5)
        assert world.at() == ("ready", "") and not world.tainted()


async def test_a_pod_that_the_server_refuses_is_reported_in_its_words(world: WalkedWorld) -> None:
    world.working()
    with world.acting():
        world.playground.store.remove("priorityclasses.scheduling.k8s.io", ("", "dovetail-validation"))
    async with world.walking():
        await world.settle()
        assert world.at() == ("validated", "ValidationRefused")
        assert "dovetail-validation" in world.readiness()["evidence"]["line"]


async def test_a_node_that_reboots_again_and_again_has_its_own_reason(world: WalkedWorld) -> None:
    world.working()
    async with world.walking():
        await world.settle()
        for boot in "bc":
            world.node(gpus=2, ready="False", boot=boot)
            await world.settle(after_s=60)
            world.node(gpus=2, boot=boot)
            await world.settle(after_s=300)
    # Another leader counts on.
    world.node(gpus=2, ready="False", boot="d")
    async with world.walking():
        await world.settle(after_s=60)
        world.node(gpus=2, boot="d")
        await world.settle(after_s=300)
        assert world.readiness()["boots"]["id"] == "d" and len(world.readiness()["boots"]["seen"]) == 3
        assert world.at() == ("driver", "RebootLoop") and world.trial() is None and world.tainted()
        before = len(world.writes)
        for boot in "efgh":
            world.node(gpus=2, ready="False", boot=boot)
            await world.settle(after_s=60)
            world.node(gpus=2, boot=boot)
            await world.settle(after_s=300)
        assert len(world.writes[before:]) == 4, "one for each boot"
        for _ in range(31):
            world.report()
            await world.settle(after_s=60)
        assert world.at()[0] == "validated" and world.trial() is not None


async def test_the_taint_is_put_again_a_bounded_number_of_times_and_never_forgotten(world: WalkedWorld) -> None:
    world.node()
    async with world.walking():
        await world.settle()
        for _ in range(60):
            world.node(spec={"taints": []})
            await world.settle(after_s=60)
        assert 4 <= [one for _, one, _ in world.writes].count("nodes") <= 4 + 6
        world.node(spec={"taints": [{"key": "dovetail.dev/not-ready", "effect": "NoSchedule"}]})
        # It is no GPU node any more.
        await world.settle(after_s=1200)
        world.node(labels={"dovetail.dev/agent": "false"})
        await world.settle(after_s=1)
        assert not world.tainted() and world.readiness() == {}


async def test_the_taint_goes_at_once_for_daemons_that_do_not_tolerate_it_however_often(world: WalkedWorld) -> None:
    world.node()
    async with world.walking(alone=False):
        await world.settle()
        assert world.at() == ("agent", "PodMissing") and not world.tainted()
        world.walks.kept_off(frozenset())
        await world.settle()
        assert world.tainted()
        for _ in range(20):
            world.walks.kept_off(frozenset(("gpu-1",)))
            await world.settle(after_s=1)
            assert not world.tainted()
            world.walks.kept_off(frozenset())
            await world.settle(after_s=1)
        assert [one for _, one, _ in world.writes].count("nodes") == 4 + 4
        await world.settle(after_s=600)
        assert world.tainted()


async def test_a_node_registered_with_the_taint_is_reported_until_something_shows_its_gpus(world: WalkedWorld) -> None:
    taint = {"key": "dovetail.dev/not-ready", "effect": "NoSchedule"}
    world.node("plain", spec={"taints": [taint]}, labels={"nvidia.com/gpu.present": "false"})
    world.node("cpu", labels={"nvidia.com/gpu.present": "false"})
    async with world.walking():
        await world.settle()
        assert world.at("plain") == ("driver", "NoGpuFound") and world.tainted("plain")
        assert world.get(GPU_NODES, "", "cpu") is None and not world.tainted("cpu")


async def test_a_process_that_ended_anywhere_is_continued(world: WalkedWorld) -> None:
    """Between the writes of a passed validation: the readiness, the taint, the pod."""
    world.working()
    async with world.walking():
        await world.settle()
        world.finish()
        world.fault(Fault("answer", "PATCH", "nodes", times=1, status=500))
        world.fault(Fault("answer", "DELETE", "pods", times=1, status=500))
        await world.settle(after_s=5, passes=1)
        assert world.at() == ("ready", "") and world.tainted() and world.trial() is not None
    async with world.walking():
        await world.settle()
        assert not world.tainted()
        await world.settle(after_s=2)
        assert world.trial() is None


async def test_a_server_that_is_away_and_rights_that_are_missing_end_nothing(world: WalkedWorld) -> None:
    world.working()
    world.node("gpu-2")
    async with world.walking():
        world.fault(Fault("answer", "PATCH", "gpunodes/status", times=2, status=403))
        await world.settle(passes=1)
        assert "403" in world.walks.waits()
        await world.settle(after_s=2)
        assert world.at() == ("validated", "ValidationPending") and world.at("gpu-2") == ("agent", "PodMissing")


async def test_two_operators_make_one_pod_and_an_old_one_is_replaced(world: WalkedWorld) -> None:
    world.working()
    async with world.walking():
        await world.settle()
        first = world.trial()
    world.report(version="0.3.0")
    async with world.walking():
        await world.settle()
        second = world.trial()
        assert first is not None and second is not None
        assert "agent=0.3.0" in second["metadata"]["annotations"]["operator.dovetail.dev/key"]
        assert len([one for one in world.playground.store.list(PODS) if one["metadata"]["namespace"] == SYSTEM]) == 1


async def test_evidence_of_an_agent_that_cannot_start(world: WalkedWorld) -> None:
    world.node()
    pull = {"reason": "ErrImagePull", "message": 'failed to pull image "dovetail:9": not found'}
    world.agent_pod(
        ready=False, containerStatuses=[{"name": "agent", "image": "dovetail:9", "state": {"waiting": pull}}]
    )
    async with world.walking():
        await world.settle()
        found = world.readiness()
        assert (found["reason"], found["evidence"]["line"]) == ("ImagePullFailed", pull["message"])
        assert "dovetail:9" in found["message"] and found["action"].startswith("Admin:")
        # The kubelet backs off: the same blocker, and no write.
        before = len(world.writes)
        back_off = {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "dovetail:9"'}
        shown = [{"name": "agent", "image": "dovetail:9", "state": {"waiting": back_off}}]
        world.agent_pod(ready=False, containerStatuses=shown)
        await world.settle(after_s=10)
        assert world.writes[before:] == []


async def test_an_event_shows_what_a_status_does_not(world: WalkedWorld) -> None:
    world.node()
    waits = [{"name": "agent", "state": {"waiting": {"reason": "ContainerCreating"}}}]
    world.agent_pod(ready=False, phase="Pending", containerStatuses=waits)
    pod = world.get(PODS, AGENT, "agent-gpu-1")
    assert pod is not None
    world.put(
        {
            "apiVersion": "v1", "kind": "Event", "metadata": {"name": "e", "namespace": AGENT}, "type": "Warning",
            "involvedObject": {"kind": "Pod", "name": "agent-gpu-1", "namespace": AGENT, "uid": pod["metadata"]["uid"]},
            "reason": "FailedCreatePodSandBox", "message": 'no runtime for "nvidia" is configured',
            "lastTimestamp": world.time(),
        }
    )  # fmt: skip
    async with world.walking():
        await world.settle()
        assert world.at() == ("runtime", "RuntimeNotConfigured")
        assert world.readiness()["evidence"]["line"] == 'no runtime for "nvidia" is configured'


async def test_an_event_that_comes_late_is_read_soon(world: WalkedWorld) -> None:
    world.node()
    waits = [{"name": "agent", "state": {"waiting": {"reason": "ContainerCreating"}}}]
    world.agent_pod(ready=False, phase="Pending", containerStatuses=waits)
    pod = world.get(PODS, AGENT, "agent-gpu-1")
    assert pod is not None
    async with world.walking():
        await world.settle()
        assert world.at() == ("agent", "ContainerCreating")
        world.put(
            {
                "apiVersion": "v1", "kind": "Event", "metadata": {"name": "e", "namespace": AGENT}, "type": "Warning",
                "involvedObject": {
                    "kind": "Pod", "name": "agent-gpu-1", "namespace": AGENT, "uid": pod["metadata"]["uid"],
                },
                "reason": "FailedMount", "message": "/lib/firmware is not a directory", "lastTimestamp": world.time(),
            }
        )  # fmt: skip
        # Nothing that is watched changes.
        for _ in range(3):
            await world.settle(passes=1, after_s=5)
        assert world.at() == ("agent", "VolumeNotMounted")


async def test_release_takes_back_taints_pods_and_readiness(world: WalkedWorld) -> None:
    world.working()
    world.node("gpu-2")
    async with world.walking():
        await world.settle()
        assert world.tainted() and world.tainted("gpu-2") and world.trial() is not None
        stack = world.walks._stack
        assert stack is not None
        world.walks.follow(None)
        assert await world.walks.release(stack) == ""
        await world.settle(after_s=61)
        assert not world.tainted() and not world.tainted("gpu-2") and world.trial() is None
        assert world.readiness() == {} == world.readiness("gpu-2")


async def test_a_node_that_is_gone_takes_its_validation_along_and_its_successor_begins_anew(world: WalkedWorld) -> None:
    world.working()
    async with world.walking():
        await world.settle()
        with world.acting():
            world.playground.store.remove("nodes", ("", "gpu-1"))
        await world.settle(after_s=1)
        assert world.trial() is None and world.walks.readiness == {}
        # Its GPUNode waits for garbage collection; a node of this name is another one.
        world.node()
        await world.settle(after_s=1)
        assert world.walks.readiness["gpu-1"].step == "agent" and world.tainted()


async def test_a_clock_of_a_node_that_is_behind_makes_no_agent_silent_that_writes(world: WalkedWorld) -> None:
    world.working()

    def late() -> None:
        at = datetime.fromtimestamp(world.now_s - 7200, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        world.report(observedTime=at)

    late()
    async with world.walking():
        await world.settle()
        assert world.at() == ("agent", "AgentSilent")
        for _ in range(4):
            world.now_s += 300
            late()
            await world.settle()
        assert world.at()[0] == "validated"
        await world.settle(after_s=661)
        assert world.at() == ("agent", "AgentSilent")


async def test_gpus_by_claim_are_validated_by_a_claim(world: WalkedWorld) -> None:
    world.working()
    world.node(gpus=0, labels={"nvidia.com/gpu.product": "H100"})
    async with world.walking(agent={"pools": [{"name": "default", "allocation": "DRA"}]}, validation={"gpus": 2}):
        await world.settle()
        assert world.at() == ("devices", "NoDevices")
        world.put(
            {
                "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "gpu-1-a"},
                "spec": {"driver": "gpu.nvidia.com", "nodeName": "gpu-1", "pool": {"name": "gpu-1"}},
            }
        )  # fmt: skip
        await world.settle(after_s=61)
        pod = world.trial()
        assert pod is not None
        claim = world.get("resourceclaims.resource.k8s.io", SYSTEM, pod["metadata"]["name"])
        assert claim is not None and claim["metadata"]["ownerReferences"][0]["uid"] == pod["metadata"]["uid"]
        assert claim["spec"]["devices"]["requests"][0]["exactly"]["count"] == 2
        (named,) = pod["spec"]["resourceClaims"]
        assert named["resourceClaimName"] == pod["metadata"]["name"]


async def test_another_program_is_tried_at_once(world: WalkedWorld) -> None:
    world.working()
    async with world.walking(validation={"image": "wrong:1"}):
        await world.settle()
        world.finish(code=1, message="no such program")
        await world.settle(after_s=5)
        assert world.at() == ("validated", "ValidationFailed") and world.trial() is None
        world.stack(validation={"image": "right:1"})
        await world.settle(after_s=1)
        pod = world.trial()
        assert pod is not None and pod["spec"]["containers"][0]["image"] == "right:1"
        # Also while a pod of the former one is there.
        world.stack(validation={"image": "better:1"})
        await world.settle(after_s=1)
        pod = world.trial()
        assert pod is not None and pod["spec"]["containers"][0]["image"] == "better:1"


async def test_pods_of_tenants_are_no_agents_and_no_validations_whatever_their_labels(world: WalkedWorld) -> None:
    world.working()
    world.node("gpu-2")
    world.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "tenant"}})
    async with world.walking():
        await world.settle()
        real = world.trial()
        assert real is not None
        forged = real["metadata"]["annotations"] | {"dovetail.dev/devices": "0"}
        ended = {"exitCode": 0, "finishedAt": world.time(), "message": "visible devices: GPU-0"}
        limits = {"limits": {"nvidia.com/gpu": "2"}}
        container = {"name": "check", "image": "x", "resources": limits}
        labels = real["metadata"]["labels"] | {"app.kubernetes.io/name": "dovetail-agent"}
        head = {"apiVersion": "v1", "kind": "Pod"}
        shown = {"phase": "Succeeded", "containerStatuses": [{"name": "check", "state": {"terminated": ended}}]}
        meta = {"name": real["metadata"]["name"], "namespace": "tenant", "labels": labels, "annotations": forged}
        world.put(head | {"metadata": meta, "spec": {"containers": [container], "nodeName": "gpu-1"}, "status": shown})
        ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        meta = meta | {"name": "agent"}
        world.put(head | {"metadata": meta, "spec": {"containers": [container], "nodeName": "gpu-2"}, "status": ready})
        await world.settle(after_s=5)
        assert world.at() == ("validated", "ValidationPending") and world.at("gpu-2") == ("agent", "PodMissing")
        assert world.get(PODS, "tenant", "agent") is not None
