# SPDX-License-Identifier: Apache-2.0
"""Actions on a playground: a dry run writes nothing and shows what would happen; only its confirmation does it; each
has a record; other pages, other programs of the machine and viewers without a token do nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Collection, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import ClientSession

from dovetail.aggregated.question import BadQuestion
from dovetail.cli.demo.objects import _GPU_NODES as DEFINITION
from dovetail.cli.demo.past import write_past
from dovetail.core.model import Maintenance
from dovetail.dashboard import actions
from dovetail.dashboard.access import Right
from dovetail.dashboard.viewers import Viewers
from dovetail.jobs.notices import Noticed
from dovetail.kube import maintenances
from dovetail.kube.api.config import ClusterConfig
from dovetail.kube.api.credentials import Files
from dovetail.kube.api.reviews import Refusal
from dovetail.kube.maintenances import MaintenanceRequest, write_maintenances
from dovetail.playground import Playground
from tests.dashboard.test_app import OnlyTeamA
from tests.dashboard.worlds import NOW_MS, FakePast, FakeSource, node, pod, served

JOB = {
    "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train", "namespace": "team-a", "uid": "uid-train"},
    "spec": {"parallelism": 2, "template": {"spec": {"schedulerName": "dovetail", "containers": []}}},
}  # fmt: skip
OWNER = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "uid-train", "controller": True}
DRAIN = {"type": "drain", "node": "a", "mode": "Evict", "reason": "new fans\nand a line"}
SUSPEND = {"type": "suspend", "namespace": "team-a", "job": "train", "group": "batch", "kind": "Job"}


def member(name: str) -> dict[str, Any]:
    found = pod(name, 4, on="a")
    found["metadata"] |= {"ownerReferences": [OWNER], "labels": {"batch.kubernetes.io/job-name": "train"}}
    return found


WORLD = (node("a"), node("b"), member("train-0"), member("train-1"))


@asynccontextmanager
async def playing() -> AsyncIterator[Playground]:
    found = Playground(start_delay_s=0.01, stop_delay_s=0.01)
    await found.start()
    names = [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": one}} for one in ("team-a", "research")]
    for document in (DEFINITION, *names, JOB, *WORLD):
        found.put(document)
    yield found
    await found.stop()


@pytest_asyncio.fixture
async def playground() -> AsyncIterator[Playground]:
    async with playing() as found:
        yield found


def viewers_of(playground: Playground, *, tokens: bool = False) -> Viewers:
    return Viewers(ClusterConfig(playground.url), tokens=tokens)


async def act(client: ClientSession, key: str, action: dict[str, Any], confirmation: str = "", **headers: str) -> Any:
    """The status, and the page or the error."""
    asked = {"action": action, "confirmation": confirmation}
    async with client.post("/api/actions.json", json=asked, headers={"X-Dovetail-Key": key, **headers}) as reply:
        found = await reply.json()
        return reply.status, found["page"] or found["error"]


def maintenance(playground: Playground) -> Any:
    return (playground.store.get("gpunodes.dovetail.dev", "", "a") or {}).get("spec", {}).get("maintenance")


def events(playground: Playground, namespace: str) -> list[Any]:
    found = playground.store.list("events")
    return [one for one in found if one["metadata"]["namespace"] == namespace]


async def test_a_node_is_drained_as_the_dry_run_shows_and_used_again(
    playground: Playground, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "dovetail.dashboard")
    viewers = viewers_of(playground)
    async with served(FakeSource(*WORLD), viewers=viewers) as (client, _):
        status, page = await act(client, viewers.key, DRAIN)
        assert (status, page["title"], page["plan"]["jobs"]) == (200, "Drain a", ["team-a/train"])
        assert page["plan"]["lost_gpu_minutes"] > 0 and maintenance(playground) is None
        for other in ({**DRAIN, "node": "b"}, {**DRAIN, "mode": "WaitForJobs"}):
            assert (await act(client, viewers.key, other, page["confirmation"]))[0] == 409
        assert maintenance(playground) is None
        status, done = await act(client, viewers.key, DRAIN, page["confirmation"])
        assert status == 200 and "event on the Node" in done["record"], done
        assert (maintenance(playground)["drain"], maintenance(playground)["by"]) == ("Evict", "user/somebody")
        [event] = events(playground, "default")
        assert (event["reason"], event["involvedObject"]["name"], event["involvedObject"]["uid"]) == (
            "MaintenanceBegun",
            "a",
            "a",
        )
        assert "new fans" in event["message"]
        assert "new fans\\nand a line" in caplog.text, "a line of a user is no line of the log"
        undrain = {"type": "undrain", "node": "a"}
        status, page = await act(client, viewers.key, undrain)
        assert status == 200 and maintenance(playground) is not None
        assert (await act(client, viewers.key, undrain, page["confirmation"]))[0] == 200
        assert maintenance(playground) is None
        assert await act(client, viewers.key, undrain) == (409, "a is not in maintenance")
        status, error = await act(client, viewers.key, {**DRAIN, "node": "gone"})
        assert status == 400 and "no node is called gone" in error


async def test_a_job_is_suspended_with_what_it_loses(playground: Playground) -> None:
    viewers = viewers_of(playground)
    async with served(FakeSource(*WORLD), viewers=viewers) as (client, _):
        status, page = await act(client, viewers.key, SUSPEND)
        assert status == 200 and page["title"] == "Suspend Job team-a/train", page
        # Two pods of 4 GPUs, for an hour.
        assert "Work of 480 GPU-minutes" in page["effects"][1]
        assert "dovetail release job/team-a/train" in page["effects"][2]
        assert not (playground.store.get("jobs.batch", "team-a", "train") or {})["spec"].get("suspend")
        status, done = await act(client, viewers.key, SUSPEND, page["confirmation"])
        assert status == 200, done
        assert (playground.store.get("jobs.batch", "team-a", "train") or {})["spec"]["suspend"] is True
        assert [one["reason"] for one in events(playground, "team-a") if one["reason"] == "JobSuspended"]
        assert (await act(client, viewers.key, SUSPEND))[
            1
        ] == "Job team-a/train is not suspended: it is suspended already"
        status, error = await act(client, viewers.key, {**SUSPEND, "job": "gone"})
        assert status == 409 and "there is no Job of batch 'gone' in namespace team-a" in error


def define(playground: Playground, group: str, version: str, kind: str) -> None:
    """A kind that the server serves, and an object of it that is called as the Job."""
    plural = f"{kind.lower()}s"
    playground.put({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group, "scope": "Namespaced", "versions": [{"name": version, "served": True, "storage": True}],
            "names": {"plural": plural, "singular": kind.lower(), "kind": kind, "listKind": f"{kind}List"},
        },
    })  # fmt: skip
    playground.put({
        "apiVersion": f"{group}/{version}", "kind": kind, "metadata": {"name": "train", "namespace": "team-a"},
        "spec": {"runPolicy": {}},
    })  # fmt: skip


async def test_of_two_objects_of_one_name_that_of_the_page_is_suspended(playground: Playground) -> None:
    define(playground, "kubeflow.org", "v1", "PyTorchJob")
    viewers = viewers_of(playground)
    async with served(FakeSource(*WORLD), viewers=viewers) as (client, _):
        assert (await act(client, viewers.key, {**SUSPEND, "kind": ""}))[0] == 400
        asked = {**SUSPEND, "group": "kubeflow.org", "kind": "PyTorchJob"}
        status, page = await act(client, viewers.key, asked)
        assert (status, page["title"]) == (200, "Suspend PyTorchJob team-a/train")
        assert (await act(client, viewers.key, SUSPEND, page["confirmation"]))[0] == 409
        assert (await act(client, viewers.key, asked, page["confirmation"]))[0] == 200
        assert not (playground.store.get("jobs.batch", "team-a", "train") or {})["spec"].get("suspend")
        suspended = playground.store.get("pytorchjobs.kubeflow.org", "team-a", "train") or {}
        assert suspended["spec"]["runPolicy"]["suspend"] is True


async def test_a_kind_of_another_group_is_not_taken_for_one_of_its_name(playground: Playground) -> None:
    define(playground, "batch.volcano.sh", "v1alpha1", "Job")
    viewers = viewers_of(playground)
    asked = {**SUSPEND, "group": "batch.volcano.sh"}
    async with served(FakeSource(*WORLD), viewers=viewers) as (client, _):
        status, error = await act(client, viewers.key, asked)
        assert status == 409 and "a Job of batch.volcano.sh is not suspended here" in error
        query = "on=job&kind=Job&of=team-a&group="
        for group, possible in (("batch", ["suspend"]), ("batch.volcano.sh", []), ("", [])):
            async with client.get(
                f"/api/actions.json?{query}{group}", headers={"X-Dovetail-Key": viewers.key}
            ) as reply:
                assert (await reply.json())["page"] == {"actions": possible}
        playground.delete("jobs.batch", "team-a", "train")
        status, error = await act(client, viewers.key, SUSPEND)
        assert status == 409 and "there is no Job of batch 'train'" in error


@pytest.mark.slow
async def test_the_owner_of_an_idle_job_reads_it_on_the_pods(playground: Playground, tmp_path: Path) -> None:
    write_past(tmp_path / "history.db", NOW_MS)
    viewers, past = viewers_of(playground), FakePast(tmp_path / "history.db")
    async with served(FakeSource(*WORLD), past=past, viewers=viewers) as (client, _):
        async with client.get("/api/idle.json") as reply:
            idle = (await reply.json())["page"]["pods"][0]
        namespace, _, job = idle["job"].partition("/")
        playground.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
        notify = {"type": "notify", "namespace": namespace, "job": job}
        status, page = await act(client, viewers.key, notify)
        assert status == 200 and any(idle["pod"] in one and "idle since" in one for one in page["effects"]), page
        assert not events(playground, namespace)
        status, done = await act(client, viewers.key, notify, page["confirmation"])
        assert status == 200 and "1 events written" in done["done"], done
        assert [one["reason"] for one in events(playground, namespace)] == ["GPUsIdle"]
        assert "no pod of" in (await act(client, viewers.key, {**notify, "job": "busy"}))[1]


async def test_what_the_dry_run_saw_is_what_is_changed(
    playground: Playground, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "dovetail.dashboard")
    viewers = viewers_of(playground)
    async with served(FakeSource(*WORLD), viewers=viewers) as (client, _):
        _, page = await act(client, viewers.key, SUSPEND)
        playground.delete("jobs.batch", "team-a", "train")
        playground.put({**JOB, "metadata": {**JOB["metadata"], "uid": "uid-another"}})
        status, error = await act(client, viewers.key, SUSPEND, page["confirmation"])
        assert status == 409 and "is another one than that of the dry run" in error
        assert not (playground.store.get("jobs.batch", "team-a", "train") or {})["spec"].get("suspend")

        async def begin(by: str, reason: str) -> None:
            asked = MaintenanceRequest(by, reason, Maintenance("Evict", NOW_MS))
            await write_maintenances(ClusterConfig(playground.url), {"a": asked})

        undrain = {"type": "undrain", "node": "a"}
        await begin("user/eve", "new fans")
        status, page = await act(client, viewers.key, undrain)
        assert status == 200 and page["effects"][0] == "The maintenance by user/eve: new fans (Evict) ends."
        await begin("user/bob", "new disks")
        status, error = await act(client, viewers.key, undrain, page["confirmation"])
        assert status == 409 and "in another maintenance by now" in error and maintenance(playground)
        _, page = await act(client, viewers.key, undrain)
        assert (await act(client, viewers.key, undrain, page["confirmation"]))[0] == 200
        assert "ended the maintenance of node a" in caplog.text, "the log alone has the node"


class SeesNoWaste(OnlyTeamA):
    """Users see the pages, but nothing of the past, and may not ask about changes."""

    async def refusal(self, authorization: str, namespace: str, needed: Collection[Right] = ()) -> Refusal | None:
        return (403, f"{needed}") if needed else await super().refusal(authorization, namespace)


async def test_a_dry_run_shows_only_what_the_viewer_may_see(playground: Playground, tmp_path: Path) -> None:
    write_past(tmp_path / "history.db", NOW_MS)
    viewers, past = viewers_of(playground, tokens=True), FakePast(tmp_path / "history.db")
    async with served(FakeSource(*WORLD), SeesNoWaste(), past=past, viewers=viewers) as (client, _):
        notify = {"type": "notify", "namespace": "team-a", "job": "train"}
        for action, right in ((notify, "idlelists"), (DRAIN, "drainplans")):
            status, error = await act(client, "", action, Authorization="Bearer admin")
            assert status == 403 and right in error


async def test_a_maintenance_that_begins_at_the_same_moment_is_not_replaced(
    playground: Playground, monkeypatch: pytest.MonkeyPatch
) -> None:
    viewers, read = viewers_of(playground), maintenances.read_maintenances
    async with served(FakeSource(*WORLD), viewers=viewers) as (client, _):
        _, page = await act(client, viewers.key, DRAIN)

        async def then_begun(config: ClusterConfig, nodes: Iterable[str]) -> Any:
            found = await read(config, nodes)
            await write_maintenances(config, {"a": MaintenanceRequest("user/bob", "", Maintenance("Evict", NOW_MS))})
            return found

        monkeypatch.setattr(maintenances, "read_maintenances", then_begun)
        status, error = await act(client, viewers.key, DRAIN, page["confirmation"])
        assert status == 409 and "in maintenance already, by user/bob" in error
        assert maintenance(playground)["by"] == "user/bob"


async def test_a_viewer_whose_requests_take_long_keeps_nobody_waiting(
    playground: Playground, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits, goes_on = asyncio.Event(), asyncio.Event()

    async def slow(config: ClusterConfig) -> str:
        if config.source == Files(token="a"):
            waits.set()
            await goes_on.wait()
        return "somebody"

    monkeypatch.setattr(actions, "user_of", slow)
    viewers = viewers_of(playground, tokens=True)
    async with served(FakeSource(*WORLD), OnlyTeamA(), viewers=viewers) as (client, _):
        asked, headers = {"action": SUSPEND}, {"Authorization": "Bearer a"}
        first = asyncio.create_task(
            client.post("/api/actions.json?namespace=team-a", json=asked, headers=headers).__aenter__()
        )
        await waits.wait()
        async with asyncio.timeout(10):
            status, page = await act(client, "", DRAIN, Authorization="Bearer admin")
        assert (status, page["title"]) == (200, "Drain a"), page
        goes_on.set()
        assert (await first).status == 200


@pytest.mark.slow
async def test_events_that_were_written_are_in_the_log_where_others_were_refused(
    playground: Playground, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "dovetail.dashboard")
    write_past(tmp_path / "history.db", NOW_MS)
    viewers, past = viewers_of(playground), FakePast(tmp_path / "history.db")

    async def half(*_: object) -> Noticed:
        return Noticed(("team-a/one",), (), (("team-a/two", "it is forbidden"),))

    monkeypatch.setattr(actions, "write", half)
    async with served(FakeSource(*WORLD), past=past, viewers=viewers) as (client, _):
        async with client.get("/api/idle.json") as reply:
            namespace, _, job = (await reply.json())["page"]["pods"][0]["job"].partition("/")
        notify = {"type": "notify", "namespace": namespace, "job": job}
        _, page = await act(client, viewers.key, notify)
        status, error = await act(client, viewers.key, notify, page["confirmation"])
        assert status == 403 and "1 events were written; none on team-a/two" in error
    assert f"somebody: notified the owner of {namespace}/{job}: 1 events written" in caplog.text


async def test_what_does_not_come_from_our_page_does_nothing(playground: Playground) -> None:
    viewers = viewers_of(playground)
    async with served(FakeSource(*WORLD), viewers=viewers) as (client, _):
        for headers in ({"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
            assert (await act(client, viewers.key, DRAIN, **headers)) == (403, "the request comes from another page")
        for key in ("", "wrong", "\xe9"):
            status, error = await act(client, key, DRAIN)
            assert status == 403 and "the key for actions" in error
        form = {"X-Dovetail-Key": viewers.key, "Content-Type": "text/plain"}
        async with client.post("/api/actions.json", data="{}", headers=form) as reply:
            assert reply.status == 403
        async with client.get("/api/actions.json?on=node", headers={"X-Dovetail-Key": viewers.key}) as reply:
            assert (await reply.json())["page"] == {"actions": ["drain"]}
            assert "set-cookie" not in reply.headers
        async with client.get("/api/actions.json?on=node") as reply:
            assert (await reply.json())["page"] == {"actions": []}
        long = {**DRAIN, "reason": "x" * 5000}
        assert (await act(client, viewers.key, long))[0] == 413
        for wrong in (
            {"type": "delete"},
            {**DRAIN, "mode": "Now"},
            {**DRAIN, "node": ""},
            {**DRAIN, "reason": "x" * 257},
        ):
            assert (await act(client, viewers.key, wrong))[0] == 400
    async with served(FakeSource(*WORLD)) as (client, _):
        assert (await act(client, "", DRAIN))[0] == 403
        async with client.get("/api/actions.json?on=node") as reply:
            assert (await reply.json())["page"] == {"actions": []}
    assert maintenance(playground) is None


async def test_in_a_cluster_each_viewer_acts_with_its_own_token_and_in_its_own_namespace(
    playground: Playground,
) -> None:
    own = Viewers(ClusterConfig(playground.url, source=Files(token="of the dashboard")), tokens=True)
    assert own.key == ""
    assert own.config("Bearer ada").source == Files(token="ada")
    for header in ("", "Bearer", "Bearer  ", "Basic eA=="):
        with pytest.raises(BadQuestion):
            own.config(header)
    async with served(FakeSource(*WORLD), OnlyTeamA(), viewers=own) as (client, _):
        assert (await act(client, "", DRAIN))[0] == 401
        assert (await act(client, "", DRAIN, Authorization="Bearer a"))[0] == 403
        asked = {"action": {**SUSPEND, "namespace": "research"}}
        headers = {"Authorization": "Bearer a"}
        async with client.post("/api/actions.json?namespace=team-a", json=asked, headers=headers) as reply:
            assert reply.status == 403 and "another namespace" in (await reply.json())["error"]
        query = "on=job&group=batch&kind=Job&of=team-a&namespace=team-a"
        async with client.get(f"/api/actions.json?{query}", headers=headers) as reply:
            assert (await reply.json())["page"] == {"actions": ["suspend"]}
        other = query.replace("=batch", "=apps").replace("=Job", "=Deployment")
        async with client.get(f"/api/actions.json?{other}", headers=headers) as reply:
            assert (await reply.json())["page"] == {"actions": []}
