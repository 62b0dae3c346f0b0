# SPDX-License-Identifier: Apache-2.0
"""The routes: every page is data, too; what a request may see; what no request gets."""

from __future__ import annotations

import csv
import json
from collections.abc import Collection
from io import StringIO
from urllib.parse import quote

import pytest
from aiohttp import ClientSession

from dovetail.dashboard import board as boards
from dovetail.dashboard.access import OwnAccess, Right, wrong_namespace
from dovetail.dashboard.board import PageBoard, Topic, Viewer
from dovetail.dashboard.pages import PAGES
from dovetail.dashboard.routes import topic_of
from dovetail.dashboard.serve import bound, serving
from dovetail.kube.api.reviews import Refusal
from tests.dashboard.worlds import NOW_MS, FakeSource, node, pod, served, wiring

WORLD = (
    node("a", rack="r1"), node("b", rack="r2"),
    pod("runs", 2, on="a"), pod("waits", 9), pod("secret-name", 4, namespace="team-b", on="b"),
    pod("secret-wait", 9, namespace="team-b"),
)  # fmt: skip


class OnlyTeamA:
    """The bearer of `admin` sees all, that of `a` the namespace team-a."""

    async def refusal(self, authorization: str, namespace: str, needed: Collection[Right] = ()) -> Refusal | None:
        if authorization == "Bearer admin" or (authorization, namespace) == ("Bearer a", "team-a"):
            return wrong_namespace(namespace)
        return (403, "no") if authorization else (401, "a bearer token is needed")


async def test_every_page_is_data() -> None:
    async with served(FakeSource(*WORLD)) as (client, _):
        for path in (*PAGES, "job/team-a/runs", "job/team-a/waits", "node/a"):
            async with client.get(f"/api/{path}.json") as reply:
                document = await reply.json()
                assert reply.status == 200 and document["page"], path
            async with client.get(f"/api/{path}.csv") as reply:
                rows = list(csv.reader(StringIO(await reply.text())))
                assert reply.status == 200 and "attachment" in reply.headers["Content-Disposition"], path
                assert rows or path in ("teams", "leases", "job/team-a/waits"), path


async def test_the_fleet_has_places_cells_and_what_fits() -> None:
    async with served(FakeSource(*WORLD)) as (client, _):
        async with client.get("/api/fleet.json") as reply:
            page = (await reply.json())["page"]
        assert page["levels"] == ["dovetail.dev/rack"]
        assert [(one["node"], one["place"], one["cells"], one["free"]) for one in page["nodes"]] == [
            ("a", ["r1"], "##......", 6), ("b", ["r2"], "####....", 4),
        ]  # fmt: skip
        assert page["capacity"][0]["largest"] == 6


async def test_what_has_not_changed_is_not_sent_again() -> None:
    source = FakeSource(*WORLD)
    async with served(source) as (client, _):
        async with client.get("/api/queue.json") as reply:
            tag = reply.headers["ETag"]
        async with client.get("/api/queue.json", headers={"If-None-Match": tag}) as reply:
            assert reply.status == 304
        source.put(*WORLD, pod("another", 9))
        async with client.get("/api/queue.json", headers={"If-None-Match": tag}) as reply:
            assert reply.status == 200


@pytest.mark.parametrize(
    "path", ["/", "/queue", "/job/team-a/runs", "/node/x", "/nothing", "/api/fleet.json", "/api/x.json"]
)
async def test_every_response_has_the_strict_policy(path: str) -> None:
    async with served(FakeSource(*WORLD)) as (client, _), client.get(path) as reply:
        policy = reply.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
        assert reply.headers["X-Content-Type-Options"] == "nosniff"
        assert (reply.status == 404) == (path in ("/nothing", "/api/x.json"))


async def test_a_name_that_leads_here_is_refused_on_the_machine_of_a_user() -> None:
    async with served(FakeSource(*WORLD)) as (client, _):
        async with client.get("/api/fleet.json", headers={"Host": "evil.example:80"}) as reply:
            assert reply.status == 400
        for host, status in (
            ("[::1]:80", 200), ("LOCALHOST", 200), ("[::1", 400), ("[::2]", 400), ("localhost:80:80", 400),
            ("::1", 400), ("localhost.evil.example", 400),
        ):  # fmt: skip
            async with client.get("/api/fleet.json", headers={"Host": host}) as reply:
                assert reply.status == status, host
        async with client.post("/api/fleet.json") as reply:
            assert reply.status == 405
        async with client.get("/assets/../app.py") as reply:
            assert reply.status == 404
        async with client.get("/assets/%2e%2e/app.py") as reply:
            assert reply.status == 404


async def test_what_is_not_there_is_not_found_with_its_reason() -> None:
    async with served(FakeSource(*WORLD)) as (client, _):
        for path, words in (("job/team-a/wait", "did you mean team-a/waits"), ("node/c", "no GPU node is called c")):
            async with client.get(f"/api/{path}.json") as reply:
                assert reply.status == 404 and words in (await reply.json())["error"]


async def test_a_token_is_one_user_however_its_header_is_written() -> None:
    async with served(FakeSource(*WORLD)) as (client, board):
        for header in ("Bearer a", "Bearer  a"):
            path = "/api/stream?on=fleet&namespace=team-a"
            reply = await client.get(path, headers={"Authorization": header})
            assert reply.status == 200
        assert [viewer.user for viewer in board._viewers] == ["a", "a"]


async def test_two_users_with_different_rights() -> None:
    async with served(FakeSource(*WORLD), OnlyTeamA()) as (client, _):
        async with client.get("/api/fleet.json") as reply:
            assert reply.status == 401 and (await reply.json())["page"] is None
        own = {"Authorization": "Bearer a"}
        for query in ("", "?namespace=team-b", "?namespace=..", "?namespace=TEAM"):
            async with client.get(f"/api/jobs.json{query}", headers=own) as reply:
                assert reply.status == 403
            async with client.get(f"/api/stream?on=jobs&{query[1:]}", headers=own) as reply:
                assert reply.status == 403
        for path in (*PAGES, "node/b", "node/a", "job/team-a/waits"):
            async with client.get(f"/api/{path}.json?namespace=team-a", headers=own) as reply:
                assert reply.status == 200 and "secret" not in await reply.text(), path
        async with client.get("/api/job/team-b/secret-name.json?namespace=team-a", headers=own) as reply:
            assert reply.status == 404 and "did you mean" not in await reply.text()
        async with client.get("/api/queue.json?namespace=team-a", headers=own) as reply:
            page = (await reply.json())["page"]
            assert ([one["job"] for one in page["jobs"]], page["elsewhere"]) == (["team-a/waits"], 1)
        async with client.get("/api/jobs.json", headers={"Authorization": "Bearer admin"}) as reply:
            assert "secret-name" in await reply.text()


async def test_processes_of_others_are_a_number_to_a_tenant() -> None:
    async with served(FakeSource(*WORLD, wiring("a"))) as (client, _):
        async with client.get("/api/node/a.json") as reply:
            inside = (await reply.json())["page"]["inside"]
        assert [(one["pid"], one["gpu"], one["pod"], one["memory_mib"]) for one in inside["processes"]] == [
            (42, 0, "team-a/runs", 1024), (43, 1, "team-b/its", 1024), (4711, 5, "team-a/runs", 3072),
            (815, None, "", 0),
        ]  # fmt: skip
        for namespace, pids, others in (("team-a", [42, 4711], 2), ("team-b", [43], 3)):
            async with client.get(f"/api/node/a.json?namespace={namespace}") as reply:
                inside = (await reply.json())["page"]["inside"]
            assert ([one["pid"] for one in inside["processes"]], inside["other_processes"]) == (pids, others)


async def test_it_listens_on_the_address_of_ipv6() -> None:
    listening = bound("[::1]:0")
    board = PageBoard(FakeSource(*WORLD), (), lambda: NOW_MS)
    url = f"http://[::1]:{listening.getsockname()[1]}/"
    async with serving(board, OwnAccess(), listening), ClientSession(url) as client:
        async with client.get("/api/fleet.json") as reply:
            assert reply.status == 200
        asked = {"change": {"type": "drain", "nodes": ["a"]}}
        async with client.post("/api/whatif.json", json=asked, headers={"Origin": url.rstrip("/")}) as reply:
            assert reply.status == 200


async def test_a_stream_names_its_pages() -> None:
    async with served(FakeSource(*WORLD)) as (client, _):
        async with client.get("/api/stream?on=fleet&on=nothing") as reply:
            assert reply.status == 400
        async with client.get("/api/stream?" + "&".join(f"on=node/{n}" for n in range(9))) as reply:
            assert reply.status == 400
        async with client.get("/api/stream?on=fleet") as reply:
            assert reply.content_type == "text/event-stream"
            async for line in reply.content:
                if line.startswith(b"data:") and b'"fleet"' in line:
                    break


@pytest.mark.parametrize(
    ("path", "topic"),
    [
        ("fleet", Topic("fleet")),
        ("node/a", Topic("node", "a")),
        ("job/ns/a", Topic("job", "ns/a")),
        ("job/a", None),
        ("job/ns/", None),
        ("job/ns/a/Job", Topic("job", "ns/a/Job")),
        ("job/ns/a/Job/b", None),
        ("node/a/b", None),
        ("fleet/", None),
        ("jobs/first=200", Topic("jobs", "first=200")),
        ("jobs/first=1000&sort=-gpus&q=team-a%2Frun+b", Topic("jobs", "first=1000&sort=-gpus&q=team-a%2Frun+b")),
        ("jobs/first=200&q=" + "%F0%9F%A6%8A" * 100, Topic("jobs", "first=200&q=" + "%F0%9F%A6%8A" * 100)),
        ("jobs/first=200&q=" + "%F0%9F%A6%8A" * 101, None),
        ("jobs/first=12&name=train", Topic("jobs", "first=12&name=train")),
        ("jobs/first=12&q=" + "a" * 50 + "&name=" + "b" * 51, None),
        ("jobs/", None),
        ("jobs/first=0", None),
        ("jobs/first=1001", None),
        ("jobs/first=²", None),
        ("jobs/first=1" + "0" * 5000, None),
        ("jobs/first=1&first=1", None),
        ("jobs/first=1&sort=labels", None),
        ("jobs/first=1&sort=--job", None),
        ("jobs/first=1&q=%FF", None),
        ("jobs/first=1&labels=a", None),
        ("jobs/sort=job", None),
        ("queue/first=1", None),
        ("node/" + "x" * 400, None),
        ("", None),
    ],
)
def test_the_paths_of_pages(path: str, topic: Topic | None) -> None:
    assert topic_of(path, "") == topic


async def test_a_window_has_its_rows_alone_and_the_files_have_all() -> None:
    async with served(FakeSource(*WORLD, *(pod(f"run-{i}", 9) for i in range(9, 12)))) as (client, _):
        for query, jobs, found in (
            ("first=2&sort=-job", ["team-b/secret-wait", "team-b/secret-name"], 7),
            ("first=2&sort=job&q=TEAM-A%2F+run-", ["team-a/run-9", "team-a/run-10"], 3),
            ("first=9&q=nothing", [], 0),
            ("first=9&name=SECRET+wait", ["team-b/secret-wait"], 1),
            ("first=9&name=waiting", [], 0),
        ):
            path = quote(query, safe="")
            async with client.get(f"/api/jobs/{path}.json") as reply:
                page = (await reply.json())["page"]
            assert ([one["job"] for one in page["jobs"]], page["found"], page["total"]) == (jobs, found, 7)
            async with client.get(f"/api/stream?on={quote(f'jobs/{query}')}") as reply:
                async for line in reply.content:
                    if line.startswith(b"data:") and json.loads(line[5:])["changed"]:
                        assert list(json.loads(line[5:])["changed"]) == [f"jobs/{query}"]
                        break
        async with client.get("/api/jobs.csv") as reply:
            assert len((await reply.text()).splitlines()) == 8
        async with client.get("/api/stream?on=jobs/first%3D1&on=jobs/first%3D2") as reply:
            assert reply.status == 400 and "one window" in (await reply.json())["error"]


async def test_a_stream_of_a_window_for_which_there_is_no_place_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boards, "MOST_WINDOWS", 1)
    async with served(FakeSource(*WORLD)) as (client, board):
        board.add(Viewer(frozenset({Topic("jobs", "first=1")})))
        async with client.get("/api/stream?on=fleet&on=jobs/first%3D2") as reply:
            assert reply.status == 429 and "1 pages are open" in (await reply.json())["error"]


async def test_a_window_does_not_show_what_jobs_of_others_are_called() -> None:
    own = {"Authorization": "Bearer a"}
    async with served(FakeSource(*WORLD), OnlyTeamA()) as (client, _):
        for query, jobs in (
            ("first=5&q=secret", []),
            ("first=5&name=secret", []),
            ("first=5&q=team-b", []),
            ("first=5&sort=-job", ["team-a/waits", "team-a/runs"]),
        ):
            path = f"/api/jobs/{quote(query, safe='')}.json"
            async with client.get(path, headers=own) as reply:
                assert reply.status == 403
            async with client.get(f"{path}?namespace=team-a", headers=own) as reply:
                page = (await reply.json())["page"]
            assert [one["job"] for one in page["jobs"]] == jobs
            assert (page["found"], page["total"], page["elsewhere"]) == (len(jobs), 2, 2)


async def test_of_jobs_of_one_name_the_page_is_about_that_of_its_kind() -> None:
    one, other = pod("one", 1, on="b"), pod("train", 2)
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "u", "controller": True}
    one["metadata"] |= {"ownerReferences": [owner], "labels": {"batch.kubernetes.io/job-name": "train"}}
    async with served(FakeSource(node("b"), one, other)) as (client, _):
        for path, found in (
            ("train", ("Job", "batch", ["Pod"])),
            ("train/Job", ("Job", "batch", ["Pod"])),
            ("train/Pod", ("Pod", "", ["Job"])),
        ):
            async with client.get(f"/api/job/team-a/{path}.json") as reply:
                page = (await reply.json())["page"]
            assert (page["listed"]["kind"], page["listed"]["group"], page["others"]) == found
            assert page["job"] == "team-a/train"


async def test_the_nodes_of_a_job_are_drawn_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    world = (node("b"), wiring("b", switched=False), pod("one", 1, on="b"), pod("two", 1, on="b"))
    async with served(FakeSource(*world)) as (client, _):
        async with client.get("/api/job/team-a/one.json") as reply:
            page = (await reply.json())["page"]
        topology = page["wiring"]["b"]
        assert topology["nvlinks"][0][:3] == [0, 12, 0] and topology["sets"] == []
        assert [nic["levels"][0] for nic in topology["nics"]] == ["PIX", "NODE", "SYS", "SYS"]
        monkeypatch.setattr("dovetail.dashboard.pages.MOST_DRAWN", 0)
        async with client.get("/api/job/team-a/two.json") as reply:
            page = (await reply.json())["page"]
        assert page["nodes"][0]["node"] == "b" and page["wiring"] == {} and page["drawn"] == 0
