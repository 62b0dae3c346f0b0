# SPDX-License-Identifier: Apache-2.0
"""What viewers ask about a change: the answers of whatif, and what is refused."""

from __future__ import annotations

import json
from typing import Any

from aiohttp import ClientSession

from dovetail.core.policy import Policy, unhurried
from dovetail.dashboard.copied_cluster import A_MINUTE, CopiedCluster
from dovetail.dashboard.predictions import MOST_BYTES, foreign
from dovetail.kube.manifests.cluster import of_documents
from dovetail.kube.manifests.documents import Document
from tests.dashboard.test_app import WORLD, OnlyTeamA
from tests.dashboard.worlds import FakeSource, node, pod, served

JOB = """
apiVersion: batch/v1
kind: Job
metadata: {name: new}
spec:
  completionMode: Indexed
  completions: 2
  parallelism: 2
  template:
    spec:
      restartPolicy: Never
      containers: [{name: main, image: x, resources: {limits: {nvidia.com/gpu: 2}}}]
"""
ADD = {"type": "addNodesLike", "node": "a", "count": 1}


async def asked(client: ClientSession, change: Any, namespace: str = "", **headers: str) -> tuple[int, dict[str, Any]]:
    data = json.dumps({"change": change})
    sent = {"Content-Type": "application/json", **headers}
    where = f"/api/whatif.json?namespace={namespace}" if namespace else "/api/whatif.json"
    async with client.post(where, data=data, headers=sent) as reply:
        return reply.status, await reply.json()


async def test_each_change_has_the_answer_of_the_command() -> None:
    async with served(FakeSource(*WORLD)) as (client, _):
        status, found = await asked(client, {"type": "submitManifest", "manifest": JOB})
        (job,) = [one for one in found["page"]["jobs"] if one["job"] == "default/new"]
        assert (status, job["pods"], job["gpus_milli"], job["effect"]) == (200, 2, 4000, "starts now")
        status, found = await asked(client, {"type": "drain", "nodes": ["a"]})
        assert status == 200 and found["page"]["notes"], "the pod of the node has no controller"
        status, found = await asked(client, ADD)
        assert (status, found["error"], len(found["page"]["nodes"])) == (200, "", 1)
        assert found["asOfMs"] > 0


async def test_what_cannot_be_asked_has_its_reason() -> None:
    async with served(FakeSource(*WORLD)) as (client, _):
        for change, why in (
            ({"type": "drain", "nodes": ["none"]}, "none"),
            ({"type": "quota", "queue": "none", "weight": 2}, "none"),
            ({"type": "submitManifest", "manifest": "kind: ["}, "is not YAML or JSON"),
            ({"type": "submitManifest", "manifest": "a: &a [x]\nb: " + "[*a, " * 300 + "]" * 300}, "the manifest"),
            ({"type": "submit", "objects": []}, "submit"),
            ({"type": "drain"}, "nodes"),
        ):
            status, found = await asked(client, change)
            assert (status, found["page"]) == (400, None) and why in found["error"], (change, found)
        sent = {"Content-Type": "application/json"}
        async with client.post("/api/whatif.json", data=b" " * (MOST_BYTES + 1), headers=sent) as reply:
            assert reply.status == 413
        async with client.get("/api/whatif.json") as reply:
            assert reply.status == 404


async def test_another_page_of_the_web_cannot_ask() -> None:
    async with served(FakeSource(*WORLD)) as (client, _):
        for headers in (
            {"Content-Type": "text/plain"}, {"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"},
            {"Origin": "null"},
        ):  # fmt: skip
            assert (await asked(client, ADD, **headers))[0] == 403, headers
        own = str(client._base_url).rstrip("/")
        assert (await asked(client, ADD, Origin=own, **{"Sec-Fetch-Site": "same-origin"}))[0] == 200
    assert foreign({"content-type": "application/json; charset=utf-8"}, "x:1") == ""
    assert foreign({"content-type": "application/json", "origin": "http://x:2"}, "x:1")


async def test_a_user_of_one_namespace_asks_there_alone() -> None:
    source = FakeSource(*WORLD)
    async with served(source, OnlyTeamA()) as (client, _):
        change = {"type": "submitManifest", "manifest": JOB}
        assert (await asked(client, change))[0] == 401
        assert (await asked(client, change, Authorization="Bearer a"))[0] == 403
        status, found = await asked(client, change, "team-a", Authorization="Bearer a")
        assert status == 200 and "team-a/new" in {one["job"] for one in found["page"]["jobs"]}
        assert "secret" not in json.dumps(found)
        elsewhere = JOB.replace("name: new", "name: new, namespace: team-b")
        status, found = await asked(
            client, {"type": "submitManifest", "manifest": elsewhere}, "team-a", Authorization="Bearer a"
        )
        assert status == 400 and "namespace team-a can be submitted" in found["error"]
    assert {one for _, one in source.predicted} == {"Bearer a"}, "the scheduler is asked with the token of the viewer"


async def test_of_a_copy_a_viewer_asks_so_many_in_a_minute() -> None:
    copy = CopiedCluster("test", unhurried(Policy()), "dovetail")
    async with served(copy) as (client, _):
        assert await asked(client, ADD) == (
            503, {"asOfMs": 0, "page": None, "error": "the cluster is not read yet"},
        )  # fmt: skip
        copy.put(of_documents([Document("test", one) for one in (node("a"), pod("waits", 9))], "dovetail").events)
        for _ in range(A_MINUTE):
            assert (await asked(client, ADD))[0] == 200
        status, found = await asked(client, ADD)
        assert status == 429 and "in a minute: ask again in" in found["error"]
        assert (await asked(client, ADD, Authorization="Bearer other"))[0] == 200
