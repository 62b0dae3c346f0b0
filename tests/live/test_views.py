# SPDX-License-Identifier: Apache-2.0
"""Views of the running scheduler behind the real API server: each user gets what RBAC allows, and nothing else gets
anything; the scheduler goes on when the process that answers does not."""

from __future__ import annotations

import json
import os
import signal
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPSConnection
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from dovetail.cli.cluster import ClusterSource
from dovetail.cli.kubeconfig import config_of
from dovetail.cli.scheduling import PolicyChoice
from dovetail.cli.watch.reading import WatchedCluster
from dovetail.views.job_types import JobFilter
from tests.forked import Forked
from tests.live.behind_the_server import HIDDEN, BehindServer, deploy, pod, until
from tests.live.history_behind_the_server import shows_the_history
from tests.patience import PATIENCE_S
from tools.controlplane.plane import Plane, RequestFailed

pytestmark = [pytest.mark.plane, pytest.mark.slow]
DOVETAIL = str(Path(sys.executable).with_name("dovetail"))
API = "/apis/views.dovetail.dev/v1alpha1"
READ_OBJECTS = (("nodes",), ("jobs",), ("leases",), ("snapshot", "-"))


class _World(BehindServer):
    """With the scheduler as a process."""

    def __init__(self, plane: Plane) -> None:
        super().__init__(plane)
        self.recording = Path(self.scheduler_role).with_name("recording")
        self.submitted = Path(self.scheduler_role).with_name("submitted.yaml")
        self.submitted.write_text(json.dumps(pod("team-a", "new", 2)))

    @contextmanager
    def scheduler(self) -> Iterator[subprocess.Popen[str]]:
        options = ("--kubeconfig", self.scheduler_role, "--listen", "", "--recording", str(self.recording))
        command = [DOVETAIL, "scheduler", *options, "--views", f"{self.address}:{self.port}"]
        with subprocess.Popen(command, text=True) as process:
            try:
                yield process
            finally:
                if process.poll() is None:
                    process.send_signal(signal.SIGTERM)
                    process.wait(timeout=PATIENCE_S)

    @contextmanager
    def pages(self) -> Iterator[str]:
        """The address of the web pages, with the options and the rights of the pod in deploy/dashboard."""
        role = str(self.plane.service_account_kubeconfig("dovetail-system", "dovetail-dashboard"))
        arguments = ("--kubeconfig", role, "--listen", "127.0.0.1:0", "--authorize", "--views-only", "--actions")
        with Forked("dashboard", *arguments) as process:
            yield process.first_line().split()[0]

    def token(self, namespace: str) -> str:
        """Of the account `default` of a namespace."""
        self.wait_for_account(namespace)
        return self.plane.token(namespace, "default")

    def ask(self, user: str, path: str) -> dict[str, Any]:
        return dict(self.plane.request("GET", API + path, user=user))

    def bound(self, namespace: str, name: str) -> str:
        found = self.plane.get(f"/api/v1/namespaces/{namespace}/pods/{name}")
        return str(found["spec"].get("nodeName", ""))

    def answers(self) -> list[int]:
        """The processes that answer views."""
        found = subprocess.run(["pgrep", "-f", "dovetail.viewserver"], capture_output=True, text=True, check=False)
        ours = []
        for pid in map(int, found.stdout.split()):
            with_port = Path(f"/proc/{pid}/environ")
            if with_port.exists() and self.scheduler_role.encode() in _command_of_parent(pid):
                ours.append(pid)
        return ours


def _command_of_parent(pid: int) -> bytes:
    try:
        parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        return Path(f"/proc/{parent}/cmdline").read_bytes()
    except (OSError, ValueError):
        return b""


def _raw(world: _World, headers: dict[str, str], certificate: Path | None = None) -> int:
    """The status of a request that does not come from the API server."""
    tls = ssl.create_default_context()
    tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    if certificate is not None:
        tls.load_cert_chain(certificate)
    connection = HTTPSConnection(world.address, world.port, context=tls, timeout=PATIENCE_S)
    try:
        connection.request("GET", f"{API}/waitingjobs", headers=headers)
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    """With the controllers whose work these tests need: accounts of namespaces, and the roles of people."""
    controllers = ("serviceaccount-controller", "clusterrole-aggregation-controller")
    with Plane(controllers=controllers, work_dir=tmp_path_factory.mktemp("plane")) as plane:
        deploy(plane)
        yield plane


def test_the_history_behind_the_real_api_server(deployed: Plane, tmp_path: Path) -> None:
    shows_the_history(deployed, tmp_path)


def test_views_behind_the_real_api_server(deployed: Plane) -> None:
    world = _World(deployed)
    with ExitStack() as stack, world.scheduler() as process:
        world.make("team-a", "runs", 3)
        world.make(f"{HIDDEN}-b", f"{HIDDEN}-runs", 4)
        until(lambda: world.bound("team-a", "runs") and world.bound(f"{HIDDEN}-b", f"{HIDDEN}-runs"))
        world.make(f"{HIDDEN}-b", f"{HIDDEN}-waits", 8)
        world.make("team-a", "waits", 3)
        own = "/namespaces/team-a"
        found = until(lambda: world.ask("alice", f"{own}/explanations/waits"), lambda one: one["answer"]["job"])
        _shows_own_names_and_totals(world, found)
        _refuses_what_rbac_does_not_grant(world)
        _answers_nobody_but_the_api_server(world)
        _commands_ask_the_scheduler(world)
        _shows_jobs_that_are_done(world)
        _the_screen_shows_nodes(world)
        _costs_no_lists_and_no_reviews(world)
        pages = stack.enter_context(world.pages())
        stream = stack.enter_context(_the_web_pages_show_what_the_scheduler_answers(world, pages))
        _viewers_act_as_themselves(world, pages)
        _a_decision_is_opened_from_the_recording_of_the_scheduler(world, pages)

        (answering,) = world.answers()
        os.kill(answering, signal.SIGKILL)
        world.make("team-a", "small", 1)
        until(lambda: world.bound("team-a", "small"))
        until(lambda: world.ask("alice", f"{own}/explanations/small"), lambda one: one["answer"]["job"]["node"])
        assert world.answers() != [answering] and process.poll() is None

        process.kill()
        process.wait()
        until(lambda: not world.answers())
        _the_web_pages_stay_and_report_since_when(world, pages, stream)
    _commands_without_a_scheduler(world)
    with world.scheduler():
        world.remove("team-a", "runs")
        until(lambda: world.bound("team-a", "waits"), within_s=3 * PATIENCE_S)
        answer = until(
            lambda: world.ask("alice", f"{own}/explanations/waits"),
            lambda one: one["answer"]["job"]["state"] == "Bound",
        )
        assert answer["answer"]["job"]["node"] == "view-node"
        _lists_jobs_that_are_done(world)


def _shows_own_names_and_totals(world: _World, found: dict[str, Any]) -> None:
    assert (found["kind"], found["metadata"]) == ("Explanation", {"name": "waits", "namespace": "team-a"})
    job = found["answer"]["job"]
    assert (job["pod"], job["state"], job["code"]) == ("team-a/waits", "NotYet", "NoNodeFits")
    assert [(one["pod"], one["amount"]) for one in job["holders"]] == [
        ("team-a/runs", "3"), ("(other-namespaces)", "4")
    ]  # fmt: skip
    waiting = world.ask("alice", "/namespaces/team-a/waitingjobs")["answer"]
    assert ([one["job"] for one in waiting["jobs"]], waiting["elsewhere"]) == (["team-a/waits"], 1)
    paths = (
        "explanations/waits",
        "explanations/runs",
        "jobranks/waits",
        "waitingjobs",
        "queueshares",
        "capacities",
        "joblists",
        "joblists?filter=%7B%22states%22%3A%5B%22Completed%22%2C%22Failed%22%5D%7D",
        "nodelists",
        "nodeholders?node=view-node",
        "nodetopologies?node=view-node",
        "leaselists",
    )
    for path in paths:
        assert HIDDEN not in json.dumps(world.ask("alice", f"/namespaces/team-a/{path}")), path
    (node,) = world.ask("alice", "/namespaces/team-a/nodelists")["answer"]["nodes"]
    assert (node["node"], node["used"], node["jobs"]) == ("view-node", 7, ["team-a/runs", "(other-namespaces)"])
    holders = world.ask("alice", "/namespaces/team-a/nodeholders?node=view-node")["answer"]
    assert {(one["pod"], one["count"]) for one in holders} == {("team-a/runs", 3), ("(other-namespaces)", 4)}
    assert world.ask("alice", "/namespaces/team-a/leaselists")["answer"]["elsewhere"]["leases"] == 0
    everything = world.ask("olga", "/waitingjobs")["answer"]
    assert {one["job"] for one in everything["jobs"]} == {"team-a/waits", f"{HIDDEN}-b/{HIDDEN}-waits"}
    assert world.ask("olga", f"/explanations/{HIDDEN}-b:{HIDDEN}-waits")["answer"]["job"]["code"] == "NoNodeFits"


def _refuses_what_rbac_does_not_grant(world: _World) -> None:
    refused = [
        ("alice", "/waitingjobs"), ("alice", "/explanations/team-a:waits"), ("alice", "/queueshares"),
        ("alice", f"/namespaces/{HIDDEN}-b/explanations/{HIDDEN}-waits"), ("nobody", "/namespaces/team-a/waitingjobs"),
        ("alice", "/namespaces/team-a%2F..%2Fdefault/waitingjobs"), ("alice", "/nodelists"), ("alice", "/leaselists"),
        ("alice", f"/namespaces/{HIDDEN}-b/nodelists"),
    ]  # fmt: skip
    for user, path in refused:
        with pytest.raises(RequestFailed) as failed:
            world.ask(user, path)
        assert failed.value.status in (403, 404)


def _answers_nobody_but_the_api_server(world: _World) -> None:
    root = {"X-Remote-User": "kubernetes-admin", "X-Remote-Group": "system:masters"}
    assert _raw(world, {}) == 401
    assert _raw(world, root) == 401
    # A user's certificate is signed by another authority.
    with pytest.raises((ssl.SSLError, ConnectionError)):
        _raw(world, root, world.plane.work_dir / "admin.pem")
    assert _raw(world, {}, world.plane.work_dir / "front-proxy.pem") == 401
    assert _raw(world, root, world.plane.work_dir / "front-proxy.pem") == 200


def _commands_ask_the_scheduler(world: _World) -> None:
    asked = {
        ("why", "team-a/waits"): "NoNodeFits", ("queue",): "1 job of other namespaces waits",
        ("priority", "team-a/waits"): "number", ("share",): "GPU-hours used", ("free",): "GPUs per pod",
        ("nodes",): "view-node", ("nodes", "view-node"): "view-node",
        ("leases",): "no control plane of a software agent",
        ("whatif", "drain", "view-node"): "(other-namespaces) has no controller",
        ("whatif", "submit", str(world.submitted)): "team-a/new", ("jobs",): "team-a/waits",
        ("defrag", "team-a/waits"): "No moves", ("drain", "view-node", "--dry-run"): "of other namespaces in 1 queue",
        ("why", "pod/team-a/waits"): "NoNodeFits", ("topology", "view-node"): "offers 8 GPUs, 1 free",
        ("top",): "team-a/runs",
        ("queue", "drain", "default", "--dry-run"): "Queue default: it is not known when",
    }  # fmt: skip
    for arguments, shown in asked.items():
        done = world.dovetail("alice", *arguments)
        # `queue`, `share` and `free` are for the namespace of the context, in which alice has no rights.
        if arguments[0] in ("why", "priority", "defrag"):
            assert (done.returncode, shown in done.stdout, done.stderr) == (0, True, ""), (arguments, done)
            assert HIDDEN not in done.stdout
        else:
            missing = "in namespace default, which the ClusterRole dovetail-viewer grants"
            assert (done.returncode, missing in done.stderr) == (1, True), done
        done = world.dovetail("olga", *arguments)
        assert (done.returncode, done.stderr) == (0, ""), (arguments, done)
    inside = Path(world.users["alice"])
    inside.write_text(
        inside.read_text().replace("    user: user\n  name", "    user: user\n    namespace: team-a\n  name")
    )
    for arguments, shown in asked.items():
        done = world.dovetail("alice", *arguments)
        assert (done.returncode, shown in done.stdout, done.stderr) == (0, True, ""), (arguments, done)
        assert HIDDEN not in done.stdout
    misspelt = world.dovetail("alice", "why", "team-a/wait")
    assert misspelt.returncode == 1 and "did you mean team-a/waits" in misspelt.stderr
    none = world.dovetail("alice", "why", "leaserequest/none")
    assert (none.returncode, none.stderr) == (1, "Error: there is no leaserequest team-a/none\n"), none
    queue = world.dovetail("alice", "why", "queue/default")
    assert (queue.returncode, "Queue default" in queue.stdout, HIDDEN in queue.stdout) == (0, True, False), queue


def _page(url: str, token: str, body: Any = None) -> tuple[int, dict[str, Any]]:
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    data = json.dumps(body).encode() if body is not None else None
    try:
        with urlopen(Request(url, data, headers), timeout=PATIENCE_S) as reply:
            return 200, json.load(reply)
    except HTTPError as error:
        return error.code, json.load(error)


@contextmanager
def _the_web_pages_show_what_the_scheduler_answers(world: _World, pages: str) -> Iterator[Any]:
    """To a user of team-a that namespace, to one of the cluster all; the stream of the first, which stays open."""
    one, everything = world.token("team-a"), world.token("dovetail-system")
    status, job = _page(f"{pages}api/job/team-a/waits.json?namespace=team-a", one)
    explained = world.ask("alice", "/namespaces/team-a/explanations/waits")["answer"]["job"]
    shown = job["page"]["explained"]["job"]
    assert status == 200 and {name: shown[name] for name in ("pod", "state", "code", "holders", "expected")} == {
        name: explained[name] for name in ("pod", "state", "code", "holders", "expected")
    }
    for path in ("fleet", "queue", "jobs", "teams", "leases", "node/view-node", "job/team-a/waits"):
        status, page = _page(f"{pages}api/{path}.json?namespace=team-a", one)
        assert (status, HIDDEN in json.dumps(page)) == (200, False), (path, page)
        assert _page(f"{pages}api/{path}.json", one)[0] == 403, "of all namespaces"
        assert _page(f"{pages}api/{path}.json?namespace=team-a", "nothing")[0] == 401
        assert _page(f"{pages}api/{path}.json", everything)[0] == 200
    assert _page(f"{pages}api/queue.json?namespace={HIDDEN}-b", one)[0] == 403
    waiting = [each["job"] for each in _page(f"{pages}api/queue.json", everything)[1]["page"]["jobs"]]
    assert sorted(waiting) == sorted(["team-a/waits", f"{HIDDEN}-b/{HIDDEN}-waits"])
    # The account of the process may not ask this: the token of the viewer is passed on.
    drain = {"change": {"type": "drain", "nodes": ["view-node"]}}
    status, found = _page(f"{pages}api/whatif.json?namespace=team-a", one, drain)
    assert (status, HIDDEN in json.dumps(found)) == (200, False), found
    assert any("(other-namespaces) has no controller" in note for note in found["page"]["notes"]), found
    assert _page(f"{pages}api/whatif.json", one, drain)[0] == 403
    status, found = _page(f"{pages}api/whatif.json", everything, drain)
    assert status == 200 and HIDDEN in json.dumps(found)
    asked = Request(
        f"{pages}api/stream?on=fleet&namespace=team-a", headers={"Authorization": f"Bearer {one}"}
    )  # fmt: skip
    with urlopen(asked, timeout=PATIENCE_S) as stream:
        yield stream


def _a_decision_is_opened_from_the_recording_of_the_scheduler(world: _World, pages: str) -> None:
    meta = world.plane.get("/api/v1/namespaces/team-a/pods/runs")["metadata"]
    path = f"{pages}api/decision/{meta['annotations']['dovetail.dev/decision']}.json"
    status, found = _page(path, world.token("dovetail-system"))
    assert status == 200 and any("team-a/runs" in one for one in found["page"]["decided"]), found
    assert _page(path, world.token("team-a"))[0] == 403


IDLE_JOB = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "metadata": {"name": "sweep", "namespace": "team-a"},
    "spec": {
        "parallelism": 0,
        "template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "busybox"}]}},
    },
}


def _viewers_act_as_themselves(world: _World, pages: str) -> None:
    """One with the role edit in team-a suspends a job there and drains nothing; one that operates the cluster drains.
    The account of the process may do neither."""
    one, operator = world.token("team-a"), world.token("dovetail-system")
    world.plane.request("POST", "/apis/batch/v1/namespaces/team-a/jobs", IDLE_JOB)
    suspend = {"type": "suspend", "namespace": "team-a", "job": "sweep", "group": "batch", "kind": "Job"}
    drain = {"type": "drain", "node": "view-node", "reason": "fans"}
    own = "actions.json?namespace=team-a"
    may = _page(f"{pages}api/{own}&on=job&group=batch&kind=Job&of=team-a", one)[1]["page"]["actions"]
    assert may == ["suspend"] and _page(f"{pages}api/{own}&on=node", one)[1]["page"]["actions"] == []
    assert _page(f"{pages}api/actions.json?on=node", operator)[1]["page"]["actions"] == ["drain"]

    status, found = _page(f"{pages}api/{own}", one, {"action": drain})
    assert status == 403 and "no right to list gpunodes.dovetail.dev" in found["error"], found
    status, found = _page(f"{pages}api/{own}", one, {"action": suspend})
    assert status == 200 and found["page"]["user"] == "system:serviceaccount:team-a:default", found
    job = "/apis/batch/v1/namespaces/team-a/jobs/sweep"
    assert not world.plane.get(job)["spec"]["suspend"]
    asked = {"action": suspend, "confirmation": found["page"]["confirmation"]}
    assert _page(f"{pages}api/actions.json", operator, asked)[0] == 409, "the confirmation of another user"
    status, found = _page(f"{pages}api/{own}", one, asked)
    assert status == 200 and world.plane.get(job)["spec"]["suspend"] is True
    assert found["page"]["record"].startswith("an event on the Job"), found
    noted = world.plane.get("/apis/events.k8s.io/v1/namespaces/team-a/events")["items"]
    assert any("system:serviceaccount:team-a:default suspended Job" in one["note"] for one in noted)

    # As the agent makes it: the role has no right to make one.
    made = {"apiVersion": "dovetail.dev/v1alpha1", "kind": "GPUNode", "metadata": {"name": "view-node"}}
    world.plane.request("POST", "/apis/dovetail.dev/v1alpha1/gpunodes", made)
    maintenance = "/apis/dovetail.dev/v1alpha1/gpunodes/view-node"
    for action in (drain, {"type": "undrain", "node": "view-node"}):
        status, found = _page(f"{pages}api/actions.json", operator, {"action": action})
        assert status == 200, found
        asked = {"action": action, "confirmation": found["page"]["confirmation"]}
        status, found = _page(f"{pages}api/actions.json", operator, asked)
        # That role has no right to create events: the log of the process has the record.
        assert status == 200 and "no right to create events.events.k8s.io" in found["page"]["record"], found
        asked_for = world.plane.get(maintenance).get("spec", {}).get("maintenance")
        assert (asked_for or {}).get("by") == (
            "user/system:serviceaccount:dovetail-system:default" if action is drain else None
        )


def _the_web_pages_stay_and_report_since_when(world: _World, pages: str, stream: Any) -> None:
    one = world.token("team-a")
    for line in stream:
        if line.startswith(b"data:") and (silent := json.loads(line.removeprefix(b"data:"))["silent"]):
            assert "does not answer" in silent["fleet"]["why"] and silent["fleet"]["since_ms"] > 0
            # What was shown stays, with its time.
            status, fleet = _page(f"{pages}api/fleet.json?namespace=team-a", one)
            assert status == 200 and fleet["page"]["nodes"] and fleet["asOfMs"] > 0
            # On a slow machine there may have been no answer for a moment before.
            if fleet["asOfMs"] <= silent["fleet"]["since_ms"]:
                break
    else:
        raise AssertionError("the stream ended")
    # What was never asked for is not there.
    status, job = _page(f"{pages}api/job/team-a/small.json?namespace=team-a", one)
    assert (status, job["page"]) == (503, None) and "does not answer" in job["error"]


def _shows_jobs_that_are_done(world: _World) -> None:
    """The names of the own ones; and a scheduler that starts after their end knows them, too (see the restart)."""
    for namespace, name in (("team-a", "ended"), (f"{HIDDEN}-b", f"{HIDDEN}-ended")):
        world.make(namespace, name, 0)
        until(lambda namespace=namespace, name=name: world.bound(namespace, name))  # type: ignore[misc]
        status = f"/api/v1/namespaces/{namespace}/pods/{name}/status"
        world.plane.request("PATCH", status, {"status": {"phase": "Succeeded"}}, "application/merge-patch+json")
    _lists_jobs_that_are_done(world)


def _lists_jobs_that_are_done(world: _World) -> None:
    def listed(user: str) -> subprocess.CompletedProcess[str]:
        return world.dovetail(user, "jobs", "--state", "done", "-o", "name")

    done = until(lambda: listed("alice"), lambda one: "team-a/ended" in one.stdout)
    assert (done.returncode, done.stderr, HIDDEN in done.stdout) == (0, "", False), done
    # It ended later, so a generation may know the first alone.
    done = until(lambda: listed("olga"), lambda one: f"{HIDDEN}-ended" in one.stdout)
    assert done.returncode == 0, done


def _the_screen_shows_nodes(world: _World) -> None:
    """Of `dovetail watch`, to a user that may not read the cluster."""
    config = config_of(world.users["alice"], None)
    watched = WatchedCluster(ClusterSource(PolicyChoice(), "dovetail", (), config), JobFilter())
    watched.read()
    assert [row.name for row in watched.nodes().rows] == ["view-node"]
    assert {row.name for row in watched.node("view-node").holders.rows} == {"team-a/runs", "(other-namespaces)"}


def _costs_no_lists_and_no_reviews(world: _World) -> None:
    """However many ask, the API server is asked for no list and reviews no right."""

    def counted() -> float:
        lines = world.plane.kubectl("get", "--raw", "/metrics").splitlines()
        wanted = ('resource="subjectaccessreviews"', 'resource="tokenreviews"', 'resource="pods",scope="cluster"')
        counts = [line for line in lines if line.startswith("apiserver_request_total{")]
        listed = [line for line in counts if any(one in line for one in wanted) and 'verb="WATCH"' not in line]
        return sum(float(line.rpartition(" ")[2]) for line in listed)

    before = counted()
    for _ in range(10):
        for path in ("explanations/waits", "waitingjobs", "nodelists", "joblists"):
            world.ask("alice", f"/namespaces/team-a/{path}")
    assert counted() == before


def _commands_without_a_scheduler(world: _World) -> None:
    """The admin's commands read the cluster, and alice's report what is missing."""
    world.users["admin"] = str(world.plane.kubeconfig)
    done = world.dovetail("admin", "why", "team-a/waits")
    assert done.returncode == 0 and "NoNodeFits" in done.stdout
    assert "the running scheduler does not answer" in done.stderr
    assert "reading the cluster itself" in done.stderr
    assert world.dovetail("alice", "why", "team-a/waits").returncode == 1
    # The group does not answer, which is no concern of commands that read objects.
    for arguments in READ_OBJECTS:
        done = world.dovetail("admin", *arguments)
        assert done.returncode == 0, (arguments, done)
        assert "views.dovetail.dev" not in done.stderr, (arguments, done)
