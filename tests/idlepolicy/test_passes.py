# SPDX-License-Identifier: Apache-2.0
"""What the policy does to workloads of each kind, what it leaves alone, and what a tenant or a node may make it do."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import pytest

from dovetail.idlepolicy.reading import ClusterReader
from dovetail.idlepolicy.run import IdlePolicyOptions
from dovetail.kube.api.client import Client
from dovetail.kube.api.config import ClusterConfig
from dovetail.playground import Playground
from tests.idlepolicy.world import DEFINITIONS, HOUR, QUICK, Document, World, selected, text, workload

START = 1_900_000_000_000


class Cluster(World):
    def __init__(self, playground: Playground, client: Client, options: IdlePolicyOptions | None = None) -> None:
        self.playground = playground
        super().__init__(playground.put, client, START, options)

    def get(self, collection: str, name: str) -> Document:
        found = self.playground.store.get(collection, "ml", name)
        assert found is not None
        return {"apiVersion": "apps/v1", "kind": "Deployment", **found}

    def events(self, reason: str) -> list[tuple[str, str]]:
        """Kind and name of what they are about, in order."""
        regarding = (one["involvedObject"] for one in self._events(reason))
        return sorted((one["kind"], one["name"]) for one in regarding)

    def notes(self, reason: str) -> set[str]:
        return {one["message"] for one in self._events(reason)}

    def _events(self, reason: str) -> list[Document]:
        return [one for one in self.playground.store.list("events") if one["reason"] == reason]


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    playground = Playground(clock=lambda: START / 1000)
    await playground.start(still=True)
    for one in ({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ml"}}, *DEFINITIONS):
        playground.put(one)
    async with Client(ClusterConfig(server=playground.url)) as client:
        yield Cluster(playground, client)
    await playground.stop()


def deployment(cluster: Cluster, when_idle: str = "scale-to-zero", **meta: Any) -> tuple[Document, Document]:
    """A Deployment of two replicas, and its ReplicaSet."""
    labels = meta.get("labels")
    top = cluster.put(workload("Deployment", "web", selected("web", replicas=2), when_idle=when_idle, labels=labels))
    return top, cluster.put(workload("ReplicaSet", "web-1", selected("web", replicas=2), owner=top))


async def test_by_degrees(cluster: Cluster) -> None:
    top, of = deployment(cluster)
    uids = [cluster.pod(f"web-{i}", of, node=f"n{i}", labels={"app": "web"}) for i in range(2)]
    reports = [(f"n{i}", {uid: START}) for i, uid in enumerate(uids)]
    await cluster.after(0.9, *reports)
    assert cluster.events("GPUsIdle") == []
    await cluster.after(0.2, *reports)
    noticed = text(cluster.now_ms)
    assert cluster.events("GPUsIdle") == [("Deployment", "web"), ("Pod", "web-0"), ("Pod", "web-1")]
    (of_pods, of_owner) = sorted(cluster.notes("GPUsIdle"))
    assert of_pods == (
        "Its GPUs are idle since 2030-03-17 17:46 UTC. Deployment ml/web will be scaled to zero at 2030-03-17 21:46 "
        "UTC or later, as its annotation dovetail.dev/when-idle asks, unless one of its GPUs is used before or the "
        "annotation is removed."
    )
    assert of_owner.startswith("The GPUs of its pods are idle since 2030-03-17 17:46 UTC. Deployment ml/web will be")
    for _ in range(2):
        cluster.restart()
        await cluster.after(1.3, *reports)
    found = cluster.get("deployments.apps", "web")
    assert (found["spec"]["replicas"], found["metadata"]["annotations"]["dovetail.dev/idle-noticed"]) == (2, noticed)
    await cluster.after(0.3, *reports)
    found = cluster.get("deployments.apps", "web")
    assert found["spec"] == top["spec"] | {"replicas": 0}
    assert found["metadata"]["annotations"]["dovetail.dev/idle-stopped"] == f"{text(cluster.now_ms)}, replicas 2"
    assert cluster.events("IdleStopped") == [("Deployment", "web"), ("Pod", "web-0"), ("Pod", "web-1")]
    (note,) = cluster.notes("IdleStopped")
    assert note.endswith("To undo it: kubectl scale deployments.apps web --replicas=2 -n ml")
    # Its pods are still there for a moment; and what its owner starts again has its whole time again.
    await cluster.after(0.5, *reports)
    cluster.put({**found, "spec": top["spec"]})
    again = cluster.now_ms
    for _ in range(4):
        await cluster.after(0.9, *((f"n{i}", {uid: again}) for i, uid in enumerate(uids)))
    assert cluster.get("deployments.apps", "web")["spec"]["replicas"] == 2
    await cluster.after(0.9, *((f"n{i}", {uid: again}) for i, uid in enumerate(uids)))
    assert cluster.get("deployments.apps", "web")["spec"]["replicas"] == 0


async def until_due(cluster: Cluster, idle: dict[str, int], node: str = "n1") -> None:
    await cluster.after(2, (node, idle))
    await cluster.after(3, (node, idle))


KINDS: dict[str, tuple[Document, str, str, Any]] = {
    "Job": (workload("Job", "x", api="batch/v1", when_idle="suspend"), "jobs.batch", "spec.suspend", True),
    "PyTorchJob": (
        workload("PyTorchJob", "x", {"runPolicy": {"a": "b"}}, api="kubeflow.org/v1", when_idle="suspend"),
        "pytorchjobs.kubeflow.org", "spec.runPolicy", {"a": "b", "suspend": True},
    ),
    "Notebook": (
        workload("Notebook", "x", api="kubeflow.org/v1", when_idle="scale-to-zero"), "notebooks.kubeflow.org",
        "metadata.annotations.kubeflow-resource-stopped", text(START + 5 * HOUR),
    ),
    "StatefulSet": (
        workload("StatefulSet", "x", selected("x"), when_idle="scale-to-zero"), "statefulsets.apps", "spec.replicas", 0,
    ),
}  # fmt: skip
LABELS = {
    "app": "x", "batch.kubernetes.io/job-name": "x", "training.kubeflow.org/job-name": "x", "notebook-name": "x",
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
async def test_each_kind_is_stopped_in_its_own_way(cluster: Cluster, kind: str) -> None:
    document, collection, path, value = KINDS[kind]
    owner = cluster.put(document)
    if kind == "Notebook":
        owner = cluster.put(workload("StatefulSet", "x", selected("x"), owner=owner))
    await until_due(cluster, {cluster.pod("x-0", owner, labels=LABELS): START})
    found: Any = cluster.get(collection, "x")
    assert "dovetail.dev/idle-stopped" in found["metadata"]["annotations"]
    for step in path.split("."):
        found = found[step]
    assert found == value


async def test_the_workers_of_a_leader_without_gpus_are_of_its_leader_worker_set(cluster: Cluster) -> None:
    api, labels = "leaderworkerset.x-k8s.io/v1", {"leaderworkerset.sigs.k8s.io/name": "llm"}
    top = cluster.put(workload("LeaderWorkerSet", "llm", {"replicas": 1}, api=api, when_idle="scale-to-zero"))
    leaders = cluster.put(workload("StatefulSet", "llm", selected("llm"), owner=top))
    uid = cluster.pod("llm-0", leaders, gpus=0, labels=labels)
    leader = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "llm-0", "uid": uid}}
    workers = cluster.put(workload("StatefulSet", "llm-0", selected("llm"), owner=leader))
    idle = {cluster.pod(f"llm-0-{i}", workers, labels=labels): START for i in (1, 2)}
    await until_due(cluster, idle)
    assert cluster.get("leaderworkersets.leaderworkerset.x-k8s.io", "llm")["spec"] == {"replicas": 0}


async def nothing_is_stopped(cluster: Cluster, idle: dict[str, int], name: str = "web") -> None:
    before = cluster.get("deployments.apps", name)["spec"]
    await until_due(cluster, idle)
    assert cluster.get("deployments.apps", name)["spec"] == before and cluster.events("IdleStopped") == []


@pytest.mark.parametrize("when_idle", ["", "suspend", "nothing", "yes", "scale-to-zero "])
async def test_without_the_consent_for_its_kind_nothing_is_stopped(cluster: Cluster, when_idle: str) -> None:
    _, of = deployment(cluster, when_idle)
    await nothing_is_stopped(cluster, {cluster.pod("web-0", of, labels={"app": "web"}): START})
    assert cluster.events("GPUsIdle") == ([] if when_idle == "nothing" else [("Pod", "web-0")])


async def test_a_consent_on_anything_but_the_workload_is_none(cluster: Cluster) -> None:
    top, _ = deployment(cluster, "")
    of = cluster.put(workload("ReplicaSet", "web-2", selected("web"), owner=top, when_idle="scale-to-zero"))
    consent = {"dovetail.dev/when-idle": "scale-to-zero"}
    await nothing_is_stopped(cluster, {cluster.pod("web-0", of, labels={"app": "web"}, annotations=consent): START})


async def test_one_replica_that_works_keeps_all(cluster: Cluster) -> None:
    _, of = deployment(cluster)
    idle = cluster.pod("web-0", of, labels={"app": "web"})
    cluster.pod("web-1", of, labels={"app": "web"}, node="n2")
    cluster.reports("n2", {})
    await nothing_is_stopped(cluster, {idle: START})
    assert cluster.events("GPUsIdle") == [("Pod", "web-0")]


async def test_a_pod_without_gpus_does_not_count(cluster: Cluster) -> None:
    _, of = deployment(cluster)
    idle = cluster.pod("web-0", of, labels={"app": "web"})
    cluster.pod("web-1", of, labels={"app": "web"}, gpus=0)
    await until_due(cluster, {idle: START})
    assert cluster.get("deployments.apps", "web")["spec"]["replicas"] == 0


@pytest.mark.parametrize("forged", ["uid", "name", "namespace", "labels", "kind"])
async def test_a_pod_cannot_claim_the_workload_of_another(cluster: Cluster, forged: str) -> None:
    """The Deployment consents, and none of its own pods has GPUs."""
    _, of = deployment(cluster)
    owner, labels = {**of, "metadata": {**of["metadata"]}}, {"app": "web"}
    if forged == "uid":
        owner["metadata"]["uid"] = "another"
    elif forged == "name":
        owner["metadata"]["name"] = "../replicasets/web-1"
    elif forged == "namespace":
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "other"}}
        cluster.put(namespace)
        other = workload("Deployment", "theirs", selected("theirs"), when_idle="scale-to-zero")
        other["metadata"]["namespace"] = "other"
        owner = cluster.put(other)
    elif forged == "labels":
        labels = {"app": "another"}
    else:
        owner["apiVersion"] = "apps.example.com/v1"
    await nothing_is_stopped(cluster, {cluster.pod("forged", owner, labels=labels): START})
    assert cluster.events("GPUsIdle") == [("Pod", "forged")]
    if forged == "namespace":
        theirs = cluster.playground.store.get("deployments.apps", "other", "theirs")
        assert theirs is not None and theirs["spec"].get("replicas") != 0


async def test_a_report_that_is_old_stops_nothing(cluster: Cluster) -> None:
    _, of = deployment(cluster)
    uid = cluster.pod("web-0", of, labels={"app": "web"})
    await cluster.after(2, ("n1", {uid: START}))
    for age_ms in (480_000, -120_000, HOUR):
        cluster.now_ms += 3 * HOUR
        cluster.reports("n1", {uid: START}, age_ms=age_ms)
        await cluster.passes.once()
        assert cluster.get("deployments.apps", "web")["spec"]["replicas"] == 2
    cluster.playground.delete("gpunodes.dovetail.dev", "", "n1")
    await cluster.passes.once()
    assert cluster.get("deployments.apps", "web")["spec"]["replicas"] == 2 and not cluster.passes.failure


async def test_a_node_reports_its_own_pods_alone_and_no_time_before_they_were_there(cluster: Cluster) -> None:
    _, of = deployment(cluster)
    uid = cluster.pod("web-0", of, labels={"app": "web"})
    cluster.reports("n1", {})
    await until_due(cluster, {uid: 1000}, node="n2")
    assert cluster.get("deployments.apps", "web")["spec"]["replicas"] == 2 and cluster.events("GPUsIdle") == []
    cluster.now_ms = START + HOUR // 2
    await cluster.after(0, ("n1", {uid: 1000}))
    await cluster.after(2, ("n1", {uid: 1000}))
    assert cluster.get("deployments.apps", "web")["spec"]["replicas"] == 2


async def test_what_changes_between_the_decision_and_the_act_is_left_alone(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    top, of = deployment(cluster)
    uid = cluster.pod("web-0", of, labels={"app": "web"})
    await cluster.after(2, ("n1", {uid: START}))
    notify = type(cluster.passes)._notify

    async def used(*arguments: Any) -> None:
        await notify(*arguments)
        cluster.reports("n1", {})

    async def withdrawn() -> None:
        found = cluster.get("deployments.apps", "web")
        rest = {k: v for k, v in found["metadata"]["annotations"].items() if k != "dovetail.dev/when-idle"}
        cluster.put({**found, "metadata": {**found["metadata"], "annotations": rest}})

    monkeypatch.setattr(type(cluster.passes), "_notify", used)
    await cluster.after(3, ("n1", {uid: START}))
    assert cluster.get("deployments.apps", "web")["spec"] == top["spec"]
    monkeypatch.setattr(type(cluster.passes), "_notify", notify)
    again = ClusterReader.again

    async def withdrawn_last(self: ClusterReader, *arguments: Any) -> Any:
        found = await again(self, *arguments)
        await withdrawn()
        return found

    monkeypatch.setattr(ClusterReader, "again", withdrawn_last)
    await cluster.after(1, ("n1", {uid: START}))
    found = cluster.get("deployments.apps", "web")
    assert found["spec"] == top["spec"] and "dovetail.dev/when-idle" not in found["metadata"]["annotations"]


async def test_kueue_keeps_its_jobs(cluster: Cluster) -> None:
    labels = {"kueue.x-k8s.io/queue-name": "q"}
    job = cluster.put(workload("Job", "x", api="batch/v1", when_idle="suspend", labels=labels))
    await until_due(cluster, {cluster.pod("x-0", job, labels=LABELS): START})
    assert cluster.get("jobs.batch", "x")["spec"]["suspend"] is False and cluster.events("GPUsIdle") == [("Pod", "x-0")]


async def test_exempt_namespaces_and_pods_get_no_notice(cluster: Cluster) -> None:
    alone = cluster.pod("alone")
    quiet = cluster.pod("quiet", annotations={"dovetail.dev/when-idle": "nothing"})
    await until_due(cluster, {alone: START, quiet: START})
    assert cluster.events("GPUsIdle") == [("Pod", "alone")]
    exempt = Cluster(cluster.playground, cluster._client, IdlePolicyOptions(QUICK, frozenset({"ml"})))
    exempt.now_ms = cluster.now_ms
    other = exempt.pod("other")
    await until_due(exempt, {other: START})
    assert cluster.events("GPUsIdle") == [("Pod", "alone")]


async def test_acts_are_apart_and_one_that_is_refused_keeps_no_other_waiting(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    idle = {}
    for i in range(4):
        labels = {"app": f"w{i}"}
        owner = cluster.put(workload("StatefulSet", f"w{i}", selected(f"w{i}", replicas=1), when_idle="scale-to-zero"))
        idle[cluster.pod(f"w{i}-0", owner, labels=labels)] = START + i
    options = IdlePolicyOptions(type(QUICK)(HOUR, 4 * HOUR, HOUR, 2))
    slow = Cluster(cluster.playground, cluster._client, options)
    request = Client.request

    async def refused(self: Client, method: str, path: str, *arguments: Any, **more: Any) -> Any:
        if method == "PATCH" and path.endswith("/w0") and "spec" in arguments[0]:
            arguments = ({"metadata": {"uid": "x"}, "spec": []}, *arguments[1:])
        return await request(self, method, path, *arguments, **more)

    monkeypatch.setattr(Client, "request", refused)
    stopped = []
    for _ in range(16):
        await slow.after(0.5, ("n1", idle))
        names = (f"w{i}" for i in range(4))
        stopped.append(sum(not slow.get("statefulsets.apps", name)["spec"]["replicas"] for name in names))
    assert all(after - before <= 1 for before, after in pairwise(stopped))
    assert stopped[-1] == 3 and slow.get("statefulsets.apps", "w0")["spec"]["replicas"] == 1


async def test_an_api_server_that_does_not_answer_is_tried_again(cluster: Cluster) -> None:
    cluster.playground.delete("customresourcedefinitions.apiextensions.k8s.io", "", "gpunodes.dovetail.dev")
    await cluster.passes.once()
    assert cluster.passes.failure and not cluster.passes.stuck_s
