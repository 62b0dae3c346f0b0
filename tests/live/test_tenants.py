# SPDX-License-Identifier: Apache-2.0
"""What a user that may write pods in one namespace, and nothing else, can make of pods that run: nothing. On the real
API server that user has the role `edit` there; docs/reference/trust.md is walked row by row."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any

import pytest
from msgspec import Struct

from dovetail.core import cycle
from dovetail.core.events import Event
from dovetail.core.state import State
from dovetail.kube.api.client import MERGE_PATCH, Client
from dovetail.kube.api.config import load_config
from dovetail.kube.api.errors import ApiError
from dovetail.kube.translate import annotations
from dovetail.kube.translate.annotations import BOUND, PREFIX, TABLE, WRITTEN_BY_US
from dovetail.kube.translate.bound import Bound
from dovetail.scheduler import driver
from tests.bound import text_of
from tests.docs.pages import Row, page
from tests.live.conftest import Cluster, Document, eventually, stays
from tests.live.test_queues import QUEUES, Teams

GPU_NODES = "/apis/dovetail.dev/v1alpha1/gpunodes"
POLICY = "dovetail-scheduler-annotations"


@pytest.fixture(autouse=True)
def short_naps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "_LONGEST_WAIT_S", 0.2)


class Counted(Struct, frozen=True):
    """What a bound pod is counted as."""

    queue: str
    user: str
    amounts: tuple[tuple[str, int], ...]
    rate: int
    preemptible: bool
    job: str
    devices: tuple[int, ...]
    share_milli: int
    max_runtime_ms: int
    lost: tuple[int, int]


class Books:
    """The scheduler's accounts, read from its state."""

    def __init__(self) -> None:
        self.state = State()
        self.step = cycle.step

    def __call__(self, state: State, events: Iterable[Event], now_ms: int) -> Any:
        self.state = state
        return self.step(state, events, now_ms)

    def read(self, namespace: str) -> dict[str, Counted]:
        """Of the bound pods of a namespace, by name."""
        state, found = self.state, {}
        for uid, placement in state.cluster.placements.items():
            pod = state.workloads.pods[uid]
            if pod.namespace == namespace and pod.node:
                found[pod.name] = Counted(
                    state.shares.pod_queues.of(pod), pod.user, state.shares.amounts(uid), state.shares.rate(uid),
                    state.shares.pod_queues.preemptible(pod), state.workloads.job_of(pod), placement.devices,
                    placement.share_milli,
                    pod.work.max_runtime_ms, (pod.work.checkpoint_interval_ms, pod.work.startup_ms),
                )  # fmt: skip
        return found


@pytest.fixture
def books(monkeypatch: pytest.MonkeyPatch) -> Books:
    books = Books()
    monkeypatch.setattr(cycle, "step", books)
    return books


class Tenant:
    """A user with the role `edit` in the namespace of the test; on the playground, which has no RBAC, any client."""

    def __init__(self, cluster: Cluster, client: Client) -> None:
        self.cluster = cluster
        self._client = client

    async def patch(self, pod: str, metadata: Document) -> None:
        path = self.cluster.pods_path(pod)
        await self._client.request("PATCH", path, {"metadata": metadata}, content_type=MERGE_PATCH)

    async def create(self, path: str, document: Document) -> None:
        await self._client.request("POST", path, document)


@pytest.fixture
async def tenant(request: pytest.FixtureRequest, cluster: Cluster) -> AsyncIterator[Tenant]:
    config = cluster.scheduler_config
    if cluster.playground is None:
        plane = request.getfixturevalue("deployed_plane")
        user = f"tenant-{cluster.name}"
        where = f"--namespace={cluster.namespace}"
        plane.kubectl("create", "rolebinding", "tenant", "--clusterrole=edit", f"--user={user}", where)
        config = load_config(str(plane.kubeconfig_for(user)))
    async with Client(config) as client:
        tenant = Tenant(cluster, client)
        if cluster.playground is None:
            await _until_refused(tenant)
        yield tenant


async def _until_refused(tenant: Tenant) -> None:
    """A policy is in force some time after it was written."""
    document = tenant.cluster.pod_document("probe", 0, annotations={BOUND: "{}"})

    async def answer() -> str:
        try:
            await tenant.create(tenant.cluster.pods_path() + "?dryRun=All", document)
        except ApiError as error:
            return str(error)
        return ""

    await eventually(answer, lambda stated: POLICY in stated)


@pytest.fixture
async def teams(cluster: Cluster) -> AsyncIterator[Teams]:
    teams = Teams(cluster)
    yield teams
    await teams.clean_up()


async def queue(cluster: Cluster, name: str, **spec: Any) -> str:
    full = f"{cluster.name}-{name}"
    meta = {"name": full}
    await cluster.create(
        QUEUES, {"apiVersion": "dovetail.dev/v1alpha1", "kind": "Queue", "metadata": meta, "spec": spec}
    )
    return full


@pytest.mark.parametrize("what", ["preemptible", "a queue that is not there", "the other queue"])
@pytest.mark.slow
async def test_a_borrower_cannot_keep_what_is_guaranteed_to_others(teams: Teams, tenant: Tenant, what: str) -> None:
    """A pod that runs declares that it must not be preempted, or leaves its queue, when others want theirs back."""
    cluster = teams.cluster
    await teams.prepare()
    patch: Document = {
        "preemptible": {"annotations": {"dovetail.dev/preemptible": "false"}},
        "a queue that is not there": {"labels": {"dovetail.dev/queue": "nosuch"}},
        "the other queue": {"labels": {"dovetail.dev/queue": teams.name("red")}},
    }[what]
    async with cluster.scheduler():
        for number in range(4):
            await teams.pod("blue", f"b{number}", 4)
        await eventually(cluster.bound, lambda bound: len(bound) == 4)
        for number in range(4):
            await tenant.patch(f"b{number}", patch)
        await eventually(lambda: teams.status("blue"), lambda status: status.get("allocated", {}).get("gpu") == "16")
        await teams.pod("red", "r0", 8)
        # The API server writes its own reason when it takes the eviction; the scheduler's follows.
        ending = await eventually(teams.ending, lambda found: list(found.values()) == ["PreemptionByScheduler"] * 2)
        await teams.let_go(*ending)
        await eventually(cluster.bound, lambda bound: "r0" in bound)


@pytest.mark.slow
@pytest.mark.parametrize("to", ["nosuch", "theirs"])
async def test_a_limit_holds_whatever_is_written_on_pods_that_run(cluster: Cluster, tenant: Tenant, to: str) -> None:
    for name in "abcd":
        await cluster.node(name)
    mine, theirs = (
        await queue(cluster, "mine", limit={"gpu": "8"}),
        await queue(cluster, "theirs", namespaces={"names": ["x"]}),
    )
    label = {"dovetail.dev/queue": theirs if to == "theirs" else "nosuch"}
    try:
        async with cluster.scheduler():
            for number in range(2):
                await cluster.pod(f"p{number}", 4, labels={"dovetail.dev/queue": mine})
            await eventually(cluster.bound, lambda bound: len(bound) == 2)
            for number in range(2):
                await tenant.patch(f"p{number}", {"labels": label})
            for number in range(2, 4):
                await cluster.pod(f"p{number}", 4, labels={"dovetail.dev/queue": mine})
            assert "limit" in await cluster.reported("p2", "QueueLimit")
            await stays(cluster.bound, lambda bound: len(bound) == 2)
            allocated = {
                name: (await cluster.get(f"{QUEUES}/{name}")).get("status", {}).get("allocated", {}).get("gpu", "0")
                for name in (mine, theirs)
            }
            assert allocated == {mine: "8", theirs: "0"}
        # The same to a scheduler that starts.
        async with cluster.scheduler():
            await asyncio.sleep(1)
            await stays(cluster.bound, lambda bound: len(bound) == 2)
    finally:
        for name in (mine, theirs):
            await cluster.delete(f"{QUEUES}/{name}")


async def test_the_gpu_of_a_running_pod_is_not_allocated_again(cluster: Cluster, tenant: Tenant, books: Books) -> None:
    """Whatever its annotations are, as long as the scheduler runs; where there is a policy they cannot be changed."""
    node = await cluster.node("a", gpus=2)
    await gpu_node(cluster, node, 2)
    async with cluster.scheduler():
        await cluster.pod("first", 1)
        await eventually(cluster.bound, lambda bound: len(bound) == 1)
        before = await eventually(lambda: reading(books, cluster), lambda found: "first" in found)
        (held,) = before["first"].devices
        other = str(1 - held)
        uid = (await cluster.get(cluster.pods_path("first")))["metadata"]["uid"]
        forged = text_of(Bound(1, uid, "default", devices=other))
        refused = []
        for key, value in ((annotations.DEVICES, other), (BOUND, forged), (BOUND, None)):
            try:
                await tenant.patch("first", {"annotations": {key: value}})
            except ApiError as error:
                refused.append(str(error))
        assert len(refused) == (3 if cluster.playground is None else 0)
        assert all(f"only the scheduler writes {PREFIX}" in stated for stated in refused)
        await cluster.pod("second", 1)
        await eventually(cluster.bound, lambda bound: len(bound) == 2)
        meta = (await cluster.get(cluster.pods_path("second")))["metadata"]
        assert meta["annotations"][annotations.DEVICES] == other
        found = await eventually(lambda: reading(books, cluster), lambda found: len(found) == 2)
        assert found["first"] == before["first"]
    await cluster.delete(f"{GPU_NODES}/{node}")


@pytest.mark.slow
async def test_of_a_shared_card_no_more_is_promised_than_there_is(cluster: Cluster, tenant: Tenant) -> None:
    node = await cluster.node("a", gpus=1, labels={"nvidia.com/gpu.memory": "81920"})
    await gpu_node(cluster, node, 1, sharing={"strategy": "time-slicing", "replicas": 10})
    amounts = {"status": {"allocatable": {"nvidia.com/gpu": "10"}, "capacity": {"nvidia.com/gpu": "10"}}}
    await cluster.patch(f"/api/v1/nodes/{node}/status", amounts)
    share = {"dovetail.dev/gpu-fraction": "0.9"}
    async with cluster.scheduler():
        await cluster.pod("first", 1, annotations=share)
        await eventually(cluster.bound, lambda bound: len(bound) == 1)
        await tenant.patch("first", {"annotations": {"dovetail.dev/gpu-fraction": "0.01"}})
        await cluster.pod("second", 1, annotations=share)
        await cluster.reported("second", "NoNodeFits")
        await stays(cluster.bound, lambda bound: len(bound) == 1)
    async with cluster.scheduler():
        await asyncio.sleep(1)
        await stays(cluster.bound, lambda bound: len(bound) == 1)
    await cluster.delete(f"{GPU_NODES}/{node}")


async def gpu_node(cluster: Cluster, name: str, gpus: int, **status: Any) -> None:
    """What an agent would report: GPUs that are wired in pairs."""
    if cluster.playground is not None:
        from tests.views.test_node import DEFINITION

        cluster.playground.put(DEFINITION)
    links = [[12 if one // 2 == other // 2 and one != other else 0 for other in range(gpus)] for one in range(gpus)]
    reported = {
        "gpus": [{"index": i, "uuid": f"GPU-{name}-{i}", "numaNode": 0, "memoryMiB": 81920} for i in range(gpus)],
        "nvlinks": links,
        "observedTime": "2026-01-01T00:00:00Z",
    } | status
    made = {"apiVersion": "dovetail.dev/v1alpha1", "kind": "GPUNode", "metadata": {"name": name}}
    await cluster.create(GPU_NODES, made)
    await cluster.patch(f"{GPU_NODES}/{name}/status", {"status": reported})


async def reading(books: Books, cluster: Cluster) -> dict[str, Counted]:
    return books.read(cluster.namespace)


def rows() -> list[Row]:
    return page("docs/reference/trust.md").rows("key")


def test_the_table_has_every_key_that_is_read() -> None:
    from dovetail.kube.gangs import dialects, owners

    reported = {code[0] for row in rows() for code in row.code[:1]}
    ours = {PREFIX + key for key in (*(key for key, row in TABLE.items() if row.field), *WRITTEN_BY_US)}
    kinds = {key for kind in owners.OWNER_KINDS for key in (kind.marked_by, kind.gang_by, kind.named_by, kind.split_by)}
    theirs = {
        *dialects._COSCHEDULING_LABELS, *dialects._VOLCANO_ANNOTATIONS, dialects._VOLCANO_TASK,
        owners._REPLICATED_JOB, owners.LWS_WORKER_INDEX, owners._REPLICA_TYPE, owners._JOB_ROLE, owners._RAY_GROUP,
        owners.LWS_SUBGROUP, owners.DISAGGREGATED_ROLE, owners.ROLE_LABEL, dialects.GROVE_LABEL, dialects.GROVE_CLIQUE,
        dialects.LLM_D_ROLE,
    }  # fmt: skip
    assert ours | theirs | (kinds - {""}) == reported


def another(key: str, uid: str) -> str:
    """A value for a key that differs from all values in use."""
    short = key.removeprefix(PREFIX)
    forged = {
        BOUND: text_of(Bound(1, uid, "forged", "mallory", False, devices="7", gpu_milli=1)),
        "dovetail.dev/queue": "nosuch", "dovetail.dev/user": "mallory", "dovetail.dev/preemptible": "false",
        "dovetail.dev/gpu-fraction": "0.001", "dovetail.dev/gang-min": "99", "dovetail.dev/devices": "7",
        "dovetail.dev/last-checkpoint": "2001-01-01T00:00:00Z",
    }  # fmt: skip
    if key in forged:
        return forged[key]
    return TABLE[short].examples[-1] if short in TABLE else "7"


@pytest.mark.slow
async def test_no_row_of_the_table_changes_the_accounts(cluster: Cluster, tenant: Tenant, books: Books) -> None:
    node = await cluster.node("a")
    await gpu_node(cluster, node, 8)
    mine = await queue(cluster, "mine", limit={"gpu": "6"})
    labels = {"dovetail.dev/queue": mine, "dovetail.dev/user": "ada"}
    stated = {"dovetail.dev/max-runtime": "3h", "dovetail.dev/checkpoint-interval": "10m"}
    gang = stated | {"dovetail.dev/gang": "g", "dovetail.dev/gang-min": "2"}
    try:
        async with cluster.scheduler():
            await cluster.pod("alone", 2, labels=labels, annotations=stated)
            for name in ("g0", "g1"):
                await cluster.pod(name, 2, labels=labels, annotations=gang)
            await eventually(cluster.bound, lambda bound: len(bound) == 3)
            before = await eventually(lambda: reading(books, cluster), lambda found: len(found) == 3)
            assert {one.queue for one in before.values()} == {mine}
            assert all(one.devices and one.preemptible and one.user == "ada" for one in before.values())
            for row in rows():
                ((key,), place) = row.code[0], row.cells[1]
                for name in ("alone", "g0"):
                    pod = await cluster.get(cluster.pods_path(name))
                    value = another(key, pod["metadata"]["uid"])
                    await check(tenant, row, name, {f"{place}s": {key: value}})
            await stays(lambda: reading(books, cluster), lambda found: found == before)
            # Nor does a pod that may not be placed come to be placed by it.
            await cluster.pod("more", 2, labels=labels)
            await cluster.reported("more", "QueueLimit")
        if cluster.playground is None:
            books.state = State()
            async with cluster.scheduler():
                after = await eventually(lambda: reading(books, cluster), lambda found: len(found) == 3)
                assert after == before
                await stays(cluster.bound, lambda bound: len(bound) == 3)
    finally:
        await cluster.delete(f"{GPU_NODES}/{node}")
        await cluster.delete(f"{QUEUES}/{mine}")


async def check(tenant: Tenant, row: Row, pod: str, metadata: Document) -> None:
    """The tenant may write it, or not, as the row has it. The playground has no policies."""
    alone = row.cells[2] == "the scheduler alone"
    try:
        await tenant.patch(pod, metadata)
    except ApiError as error:
        assert alone and f"only the scheduler writes {row.code[0][0]}: leave it as it is" in str(error), row
    else:
        assert not alone or tenant.cluster.playground is not None, row
