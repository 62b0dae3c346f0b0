# SPDX-License-Identifier: Apache-2.0
"""The agents that the collector asks, and what each may report."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from dovetail.history.collector import agents as module
from dovetail.history.collector.agents import AgentInstance, Agents, Reported
from dovetail.history.collector.run import CollectorOptions, run
from dovetail.history.records import HOUR_MS, USE_BINS, GpuSpan, HistoryBatch, PodRecord, UseHour
from dovetail.history.sqlite.reader import SqliteReader
from dovetail.kube.api.changes import Change
from dovetail.kube.api.config import ClusterConfig
from dovetail.playground import Playground
from tests.history.collector.test_collector import ALWAYS, gpu_node, node, pod, pods_of, running, scheduler, until
from tests.paths import ROOT


def agent(uid: str, node: str, ip: str, phase: str = "Running") -> AgentInstance:
    return msgspec.convert(
        {"metadata": {"name": uid, "uid": uid}, "spec": {"nodeName": node}, "status": {"phase": phase, "podIP": ip}},
        AgentInstance,
    )


def test_agents_come_move_and_go() -> None:
    agents = Agents()
    agents.see([Change("added", agent("a", "n1", "")), Change("added", agent("b", "n2", "fd00::2"))])
    assert agents.addresses == {"n2": "http://[fd00::2]:9400"}
    agents.see([Change("modified", agent("a", "n1", "10.0.0.1"))])
    assert agents.addresses["n1"] == "http://10.0.0.1:9400"
    # The pod that replaces it is there before it is gone.
    agents.see([Change("added", agent("c", "n1", "10.0.0.3")), Change("deleted", agent("a", "n1", "10.0.0.1"))])
    assert agents.addresses["n1"] == "http://10.0.0.3:9400"
    agents.see([Change("modified", agent("c", "n1", "10.0.0.3", "Failed"))])
    assert agents.addresses.keys() == {"n2"}


def span(gpu: str, node: str, start_ms: int = 0, end_ms: int = 0) -> GpuSpan:
    return GpuSpan(gpu, node, 0, 1, "L4", "healthy", start_ms, end_ms)


def record(uid: str, node: str, ended_ms: int = 0) -> PodRecord:
    return PodRecord(uid, "ml", uid, uid, node=node, ended_ms=ended_ms)


def test_a_node_reports_on_gpus_and_pods_that_are_or_were_its_own() -> None:
    reported = Reported()
    reported.add(HistoryBatch(5, [span("a", "n1"), span("b", "n2")], pods=[record("p", "n1"), record("w", "")]))
    allowed = [
        (n, g, p) for n in ("n1", "n2", "") for g in "abc" for p in ("", "p", "w", "x") if reported.may_use(n, g, p)
    ]
    assert allowed == [("n1", "a", ""), ("n1", "a", "p"), ("n2", "b", "")]
    # The GPU moves, and the pod ends: what was measured before is still reported.
    reported.add(HistoryBatch(9, [span("a", "n1", 0, 8), span("a", "n2", 8)], pods=[record("p", "n1", 8)]))
    assert reported.may_use("n1", "a", "p") and reported.may_use("n2", "a", "") and not reported.may_use("n2", "a", "p")


def test_what_is_over_for_long_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_EVERY", 1)
    reported = Reported()
    reported.add(
        HistoryBatch(5, [span("a", "n1", 0, 5), span("b", "n1")], pods=[record("p", "n1", 5), record("q", "n1")])
    )
    reported.add(HistoryBatch(30 * HOUR_MS, [span("c", "n1")]))
    assert not reported.may_use("n1", "a", "") and not reported.may_use("n1", "b", "p")
    assert reported.may_use("n1", "b", "q") and reported.may_use("n1", "c", "")


@pytest.mark.slow
async def test_the_use_that_agents_report_is_in_the_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    playground, path = Playground(), tmp_path / "history.db"
    await playground.start()
    answers: list[UseHour] = []

    async def use(_: web.Request) -> web.Response:
        return web.Response(body=msgspec.json.encode(answers))

    app = web.Application()
    app.router.add_get("/use", use)
    playground.put(yaml_of("deploy/crds/gpunode.yaml"))
    playground.put(gpu_node("gpu-1"))
    playground.put(node("gpu-1"))
    playground.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "dovetail-agent"}})
    options = CollectorOptions(path, listen="", write_s=0.1, use_s=0.1)
    async with TestServer(app) as server, running(scheduler(playground.url)):
        monkeypatch.setattr(module, "PORT", server.port)
        for namespace in ("dovetail-agent", "default"):
            # A pod of another namespace with the label of agents is not asked.
            ip = "127.0.0.1" if namespace == "dovetail-agent" else "192.0.2.1"
            playground.put(agent_pod(namespace, ip))
        async with running(run(ClusterConfig(playground.url), options)):
            playground.put(pod("train", 1))
            uid = (await until(lambda: [one for one in pods_of(path).values() if one.started_ms]))[0].uid
            with closing(SqliteReader(path)) as reader:
                (hold,) = [one for one in reader.holds(ALWAYS) if one.pod_uid == uid]
            hour_ms = hold.start_ms - hold.start_ms % HOUR_MS
            bins = (0, 900, *([0] * (USE_BINS - 2)))
            mine = UseHour(hold.gpu, uid, hour_ms, 900, 90_000, 0, 5, bins, {"sm": 9}, hour_ms + 900, "gpu-1/7")
            answers += [
                mine,
                msgspec.structs.replace(mine, gpu="GPU-other"),
                msgspec.structs.replace(mine, pod_uid="x"),
            ]

            def read() -> list[UseHour]:
                with closing(SqliteReader(path)) as reader:
                    return list(reader.use(ALWAYS))

            await until(read)
            await asyncio.sleep(0.3)
            # However often it is read, it counts once.
            (found,) = read()
    await playground.stop()
    assert (found.gpu, found.pod_uid, found.measured_ms, found.use, found.used_until_ms) == (
        hold.gpu, uid, 900, 90_000, hour_ms + 900,
    )  # fmt: skip


def yaml_of(path: str) -> dict[str, Any]:
    import yaml

    found: dict[str, Any] = yaml.safe_load((ROOT / path).read_text())
    return found


def agent_pod(namespace: str, ip: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "agent", "namespace": namespace, "labels": {"app.kubernetes.io/name": "dovetail-agent"}},
        "spec": {"nodeName": "gpu-1", "containers": [{"name": "main", "image": "dovetail"}]},
        "status": {"phase": "Running", "podIP": ip},
    }  # fmt: skip
