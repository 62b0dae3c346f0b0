# SPDX-License-Identifier: Apache-2.0
"""The collector beside a scheduler, on the playground and on the real API server."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from dovetail.history.collector.collector import Collector, Seeing
from dovetail.history.collector.run import CollectorOptions, run
from dovetail.history.prometheus.reader import PrometheusReader
from dovetail.history.records import Gap, HistoryBatch, Period, PodRecord, UseHour
from dovetail.history.sqlite.reader import SqliteReader
from dovetail.history.store import StoreError
from dovetail.history.timeline import NOT_RUN
from dovetail.kube.api.config import ClusterConfig, load_config
from dovetail.playground import EXIT_CODE, RUN_SECONDS, Playground
from dovetail.scheduler.serve import SchedulerOptions
from dovetail.scheduler.serve import run as schedule
from tests.history.prometheus.served import Scraped, scraped
from tests.paths import ROOT
from tests.patience import PATIENCE_S
from tests.ports import free_port
from tools.controlplane.plane import Plane

ALWAYS = Period(0, 2**50)
TOKEN = "0123456789abcdef"
AMOUNTS = {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": "8"}


def node(name: str, **labels: str) -> dict[str, Any]:
    labels = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", **labels}
    status = {"capacity": AMOUNTS, "allocatable": AMOUNTS}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}, "status": status}


def gpu_node(name: str) -> dict[str, Any]:
    gpus = [{"index": i, "uuid": f"GPU-{name}-{i}", "product": "NVIDIA H100 80GB HBM3"} for i in range(8)]
    gpus[7]["healthy"] = False
    return {
        "apiVersion": "dovetail.dev/v1alpha1", "kind": "GPUNode", "metadata": {"name": name},
        "status": {"gpus": gpus},
    }  # fmt: skip


def pod(name: str, gpus: int, annotations: dict[str, str] | None = None, **labels: str) -> dict[str, Any]:
    limits = {"nvidia.com/gpu": str(gpus)}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "labels": labels, "annotations": annotations or {}},
        "spec": {
            "schedulerName": "dovetail",
            "restartPolicy": "Never",
            "containers": [{"name": "main", "image": "train", "resources": {"limits": limits}}],
        },
    }


@asynccontextmanager
async def running(work: Any) -> AsyncIterator[None]:
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(true: Callable[[], Any]) -> Any:
    async with asyncio.timeout(PATIENCE_S):
        while not (found := true()):  # noqa: ASYNC110 - nothing announces it
            await asyncio.sleep(0.05)
    return found


def pods_of(path: Path) -> dict[str, PodRecord]:
    """The records of a file by the names of the pods; none while there is no file."""
    try:
        with closing(SqliteReader(path)) as reader:
            return {one.name: one for one in reader.pods(ALWAYS)}
    except StoreError:
        return {}


@pytest.fixture
async def playground() -> AsyncIterator[Playground]:
    playground = Playground()
    await playground.start()
    yield playground
    await playground.stop()


def collector(url: str, path: Path, listen: str = "", publish_s: float = 0.0) -> Any:
    token = path.with_name("token")
    token.write_text(f"{TOKEN}\n")
    return run(ClusterConfig(url), CollectorOptions(path, listen=listen, write_s=0.1, publish_s=publish_s, token=token))


def scheduler(url: str) -> Any:
    return schedule(ClusterConfig(url), SchedulerOptions(leader_elect=False, listen=""))


@pytest.mark.slow
async def test_what_pods_hold_and_how_they_end_is_written(playground: Playground, tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    playground.put(yaml.safe_load((ROOT / "deploy/crds/gpunode.yaml").read_text()))
    playground.put(gpu_node("gpu-1"))
    playground.put(node("gpu-1", **{"node.kubernetes.io/instance-type": "p5.48xlarge"}))
    async with running(scheduler(playground.url)), running(collector(playground.url, path)):
        long = pod("long", 2, team="a", **{"pod-template-hash": "5d8"})
        owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "train-5d8", "uid": "u", "controller": True}
        long["metadata"]["ownerReferences"] = [owner]
        playground.put(long)
        playground.put(pod("short", 1, {RUN_SECONDS: "0.2"}))
        playground.put(pod("broken", 1, {RUN_SECONDS: "0.2", EXIT_CODE: "3"}))
        playground.put(pod("waits", 8))

        def ended() -> bool:
            found = pods_of(path)
            return all(name in found and found[name].outcome for name in ("short", "broken")) and "waits" in found

        await until(ended)
        await until(lambda: pods_of(path)["long"].started_ms)
        playground.delete("pods", "default", "long")
        await until(lambda: pods_of(path)["long"].outcome)
    found = pods_of(path)
    assert (found["short"].outcome, found["short"].code) == ("Completed", "")
    assert (found["broken"].outcome, found["broken"].code) == ("Failed", "Error")
    assert found["broken"].message == "container main exited with 3"
    assert (found["long"].outcome, found["long"].job, found["long"].kind) == ("Deleted", "train", "Deployment")
    assert found["long"].labels["team"] == "a"
    assert (found["long"].gpus, found["long"].gpu_milli, found["long"].node) == ("2 GPUs", 2000, "gpu-1")
    assert found["waits"].node == ""
    assert (found["waits"].gpu_milli, found["waits"].ended_ms) == (8000, 0)
    for name in ("short", "broken", "long"):
        one = found[name]
        assert 0 < one.submitted_ms <= one.bound_ms <= one.started_ms <= one.ended_ms
    with closing(SqliteReader(path)) as reader:
        spans, holds = list(reader.spans(ALWAYS)), list(reader.holds(ALWAYS))
        known = reader.known()
    assert {(one.gpu, one.model, one.instance_type) for one in spans} == {
        (f"GPU-gpu-1-{i}", "NVIDIA-H100-80GB-HBM3", "p5.48xlarge") for i in range(8)
    }
    assert {one.index for one in spans if one.health == "unhealthy"} == {7}
    by_pod = {name: [one for one in holds if one.pod_uid == record.uid] for name, record in found.items()}
    assert {name: len(some) for name, some in by_pod.items()} == {"long": 2, "short": 1, "broken": 1, "waits": 0}
    assert all(one.end_ms and one.end_ms <= known.end_ms for one in holds)


@pytest.mark.slow
async def test_a_restart_leaves_a_gap_and_no_break(playground: Playground, tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    playground.put(node("gpu-1"))
    async with running(scheduler(playground.url)):
        playground.put(pod("stays", 1))
        playground.put(pod("goes", 1))
        async with running(collector(playground.url, path)):
            await until(lambda: all(one.node for one in pods_of(path).values()) and len(pods_of(path)) == 2)
        with closing(SqliteReader(path)) as reader:
            last_ms = reader.known().end_ms
        playground.delete("pods", "default", "goes")
        await until(lambda: playground.store.get("pods", "default", "goes") is None)
        async with running(collector(playground.url, path)):
            await until(lambda: pods_of(path)["goes"].outcome)
    with closing(SqliteReader(path)) as reader:
        (gap,) = reader.gaps(ALWAYS)
        holds = {one.pod_uid: one for one in reader.holds(ALWAYS)}
        spans = list(reader.spans(ALWAYS))
    found = pods_of(path)
    assert gap == Gap(last_ms, gap.end_ms, NOT_RUN)
    assert (found["goes"].outcome, found["goes"].ended_ms) == ("Lost", last_ms)
    assert holds[found["goes"].uid].end_ms == last_ms
    assert holds[found["stays"].uid].end_ms == 0
    assert len(holds) == 2
    assert len(spans) == 8


async def test_it_answers_probes_and_counts(playground: Playground, tmp_path: Path) -> None:
    playground.put(node("gpu-1"))
    port = free_port()
    async with (
        running(collector(playground.url, tmp_path / "history.db", f"127.0.0.1:{port}")),
        aiohttp.ClientSession(f"http://127.0.0.1:{port}") as client,
    ):

        async def answer(path: str) -> tuple[int, str]:
            async with client.get(path) as reply:
                return reply.status, await reply.text()

        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    text = (await answer("/metrics"))[1]
                    if 'dovetail_history_records_total{kind="span"} ' in text and (await answer("/readyz"))[0] == 200:
                        break
                except aiohttp.ClientError:
                    pass
                await asyncio.sleep(0.05)
        assert await answer("/healthz") == (200, "ok\n")
        assert await answer("/history") == (404, "the collector runs without --publish-every\n")


async def test_it_publishes_what_a_prometheus_reads_back(playground: Playground, tmp_path: Path) -> None:
    playground.put(node("gpu-1"))
    port, path, prometheus = free_port(), tmp_path / "history.db", Scraped()
    async with (
        running(collector(playground.url, path, f"127.0.0.1:{port}", 0.05)),
        aiohttp.ClientSession(f"http://127.0.0.1:{port}") as client,
        asyncio.timeout(PATIENCE_S),
    ):
        while True:
            try:
                async with client.get("/history", headers={"Authorization": f"Bearer {TOKEN}"}) as reply:
                    if reply.status == 200:
                        assert reply.content_type == "text/plain"
                        prometheus.scrape(await reply.text())
                        break
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.05)
        for wrong in ("", "Bearer ", f"Bearer {TOKEN[1:]}", TOKEN, "Bearer é"):
            async with client.get("/history", headers={"Authorization": wrong}) as reply:
                assert reply.status == 401
        (tmp_path / "token").write_text("")
        for none in ("", "Bearer "):
            async with client.get("/history", headers={"Authorization": none}) as reply:
                assert reply.status == 401
    with scraped(prometheus) as access:
        reader = await asyncio.to_thread(PrometheusReader, access)
        spans = await asyncio.to_thread(lambda: list(reader.spans(reader.known())))
    assert {one.node for one in spans} == {"gpu-1"}


@pytest.mark.plane
async def test_on_the_real_api_server_it_needs_only_its_role(plane: Plane, tmp_path: Path) -> None:
    plane.kubectl("apply", "-k", "deploy/crds")
    plane.kubectl("apply", "-f", "deploy/namespace.yaml", "-f", "deploy/functions/history/rbac.yaml")
    config = load_config(str(plane.service_account_kubeconfig("dovetail-system", "dovetail-collector")))
    name, path = "history-node", tmp_path / "history.db"
    plane.request("POST", "/api/v1/nodes", node(name))
    document = pod("history-pod", 2)
    document["spec"]["nodeName"] = name
    pods = "/api/v1/namespaces/default/pods"
    plane.request("POST", pods, document)
    try:
        async with running(run(config, CollectorOptions(path, listen="", write_s=0.1))):
            await until(lambda: "history-pod" in pods_of(path))
            plane.request("DELETE", f"{pods}/history-pod", {"gracePeriodSeconds": 0})
            await until(lambda: pods_of(path)["history-pod"].outcome)
    finally:
        plane.request("DELETE", f"/api/v1/nodes/{name}")
    record = pods_of(path)["history-pod"]
    assert (record.outcome, record.job, record.kind, record.gpu_milli) == ("Deleted", "history-pod", "", 2000)
    with closing(SqliteReader(path)) as reader:
        holds = [one for one in reader.holds(ALWAYS) if one.pod_uid == record.uid]
        spans = [one for one in reader.spans(ALWAYS) if one.node == name]
    assert [(one.gpu, one.named) for one in holds] == [(f"{name}/0", False), (f"{name}/1", False)]
    assert all(record.bound_ms <= one.start_ms < one.end_ms for one in holds)
    assert len(spans) == 8


class SlowStore:
    """A store whose `write` or `retain` goes on until it may end. `used` has the begin and the end of each use."""

    def __init__(self, slow: str) -> None:
        self.begun, self.may_end = threading.Event(), threading.Event()
        self.written: list[HistoryBatch] = []
        self.broken = False
        self.used: list[str] = []
        self._slow = slow

    def _use(self, name: str) -> None:
        self.used.append(f"{name} begins")
        if name == self._slow:
            self.begun.set()
            self.may_end.wait(PATIENCE_S)
        self.used.append(f"{name} ends")

    def open_records(self) -> HistoryBatch:
        return HistoryBatch(0)

    def write(self, batch: HistoryBatch) -> None:
        self._use("write")
        if self.broken:
            raise StoreError("history.db", "it is full", "make room")
        self.written.append(batch)

    def retain(self, now_ms: int) -> bool:
        self._use("retain")
        return False

    @property
    def uses(self) -> list[str]:
        """The records of use that were written."""
        return [hour.gpu for batch in self.written for hour in batch.use]


class NoChanges:
    """Informers to which nothing happens."""

    async def events(self, within_s: float) -> list[Any]:
        await asyncio.sleep(within_s)
        return []


def use_of(gpu: str) -> UseHour:
    return UseHour(gpu, "", 0, 1000, 1000, 0)


def beside(store: SlowStore) -> Collector:
    informers: Any = NoChanges()
    return Collector(informers, Seeing(), store, write_s=0.0)


@pytest.mark.parametrize("slow", ["write", "retain"])
async def test_a_collector_that_is_cancelled_ends_after_the_thread_that_uses_its_file(slow: str) -> None:
    store = SlowStore(slow)
    running = asyncio.create_task(beside(store).run())
    await until(store.begun.is_set)
    for _ in range(2):
        running.cancel()
        assert not (await asyncio.wait([running], timeout=0.05))[0]
    store.may_end.set()
    with suppress(asyncio.CancelledError):
        await running
    # Whoever closes the file now closes it behind the last use.
    assert store.used[-2:] == [f"{slow} begins", f"{slow} ends"]


async def test_use_that_comes_during_a_write_is_written_with_the_next_batch() -> None:
    store = SlowStore("write")
    collector = beside(store)
    await collector.take_use([use_of("gpu-a")])
    async with running(collector.run()):
        await until(store.begun.is_set)
        await collector.take_use([use_of("gpu-b")])
        store.may_end.set()
        await until(lambda: len(store.written) > 1)
    assert store.uses == ["gpu-a", "gpu-b"]


async def test_a_batch_whose_write_fails_after_the_cancellation_is_left_for_the_end() -> None:
    store = SlowStore("write")
    collector = beside(store)
    await collector.take_use([use_of("gpu-a")])
    store.broken = True
    task = asyncio.create_task(collector.run())
    await until(store.begun.is_set)
    task.cancel()
    await asyncio.sleep(0)
    store.may_end.set()
    with suppress(asyncio.CancelledError):
        await task
    store.broken = False
    await collector.finish()
    assert store.uses == ["gpu-a"]
