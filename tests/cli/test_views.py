# SPDX-License-Identifier: Apache-2.0
"""Commands ask the running scheduler first, and read the cluster where it does not answer."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from dovetail.cli import cli, cluster
from dovetail.core.state import State
from dovetail.kube.api.errors import Forbidden
from dovetail.kube.nodes.purchase import NodePurchase
from dovetail.kube.objects.views import ViewDocument
from dovetail.kube.reading import state, views
from dovetail.kube.reading.live_cluster import LiveCluster
from dovetail.kube.reading.views import NoSuchObject, NotServed, NoView, OlderScheduler, ViewRequest
from dovetail.kube.translate.translator import Translator
from dovetail.views.defrag_types import DefragQuestion
from dovetail.views.drain_types import DrainQuestion
from dovetail.views.free_types import Free, StrandedGpus, StrandedPart
from dovetail.views.job_types import JobList
from dovetail.views.lease_types import LeasesView, LeaseTotals
from dovetail.views.node_types import NodeHealthView, NodeList
from dovetail.views.priced_types import ChangedNodes, PricedNode
from dovetail.views.queue_drain_types import QueueDrainQuestion
from dovetail.views.queue_positions import queue_positions
from dovetail.views.queue_types import QueuePosition
from dovetail.views.topology_types import NodeInside, NodeTopology, Policies
from dovetail.views.whatif_types import (
    AddNodesLike,
    ChangeQuota,
    DrainNodes,
    ResumeQueue,
    StopQueue,
    Submit,
    WhatIf,
    WhatIfQuestion,
)
from dovetail.views.why_types import WhyQuestion
from tests.views.queued import NOW, node, pod, state_of

CONFIG = """
apiVersion: v1
clusters: [{name: c, cluster: {server: "http://127.0.0.1:1"}}]
users: [{name: u, user: {}}]
contexts: [{name: x, context: {cluster: c, user: u, namespace: ns}}]
current-context: x
"""


def world() -> State:
    return state_of(node("n0"), pod("runs", 8, "n0"), pod("waits", 8))


KIND = PricedNode("NVIDIA-H100-80GB-HBM3", 8, NodePurchase("p5.48xlarge", "us-east-1"))
"""Of a list price."""


def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, view: Any, *arguments: str, read: Any = None
) -> tuple[Any, list[ViewRequest]]:
    """Run a command where `view` is what the scheduler answers, or raises. Gives its result and what was asked."""
    asked: list[ViewRequest] = []

    async def read_view(_: object, request: ViewRequest) -> ViewDocument:
        asked.append(request)
        if isinstance(view, Exception):
            raise view
        found = view(request) if callable(view) else view
        answer = found if isinstance(found, bytes) else msgspec.json.encode(found)
        return ViewDocument(as_of_ms=NOW, answer=msgspec.Raw(answer))

    async def read_cluster(*_: object, ended: bool = False) -> LiveCluster:
        feed = Translator()
        feed.schedulers = {}
        return LiveCluster(world(), feed)

    monkeypatch.setattr(views, "read_view", read_view)
    monkeypatch.setattr(state, "read_cluster", read or read_cluster)
    monkeypatch.setattr(cluster, "now_ms", lambda: NOW)
    config = tmp_path / "config"
    config.write_text(CONFIG)
    return CliRunner().invoke(cli, [*arguments, "--kubeconfig", str(config)]), asked


def test_the_scheduler_s_answer_is_printed_and_the_cluster_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = QueuePosition("", NOW, (), whole=True, elsewhere=3)
    done, (asked,) = run(tmp_path, monkeypatch, view, "queue")
    assert (done.exit_code, done.stdout, done.stderr) == (
        0,
        "No job of yours waits; 3 jobs of other namespaces wait.\n",
        "",
    )
    assert (asked.resource.plural, asked.namespace) == ("waitingjobs", "ns")


@pytest.mark.parametrize(
    ("view", "line"),
    [
        (NoView("the API server has no views"), "note: the API server has no views; reading the cluster itself"),
        (b'{"queue": 3}', "reading the cluster itself"),
    ],
)
def test_without_an_answer_the_cluster_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, view: Any, line: str
) -> None:
    done, _ = run(tmp_path, monkeypatch, view, "queue", "-o", "json")
    assert (done.exit_code, line in done.stderr) == (0, True), done.stderr
    assert msgspec.json.decode(done.stdout, type=QueuePosition) == queue_positions(world(), NOW)


def test_without_views_the_cluster_is_read_and_nothing_printed_unless_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done, _ = run(tmp_path, monkeypatch, NotServed("the API server has no views"), "queue")
    assert (done.exit_code, done.stderr) == (0, "")

    async def forbidden(*_: object, ended: bool = False) -> LiveCluster:
        raise Forbidden(403, "Forbidden", "nodes is forbidden", "GET /api/v1/nodes")

    done, _ = run(tmp_path, monkeypatch, NotServed("the API server has no views"), "queue", read=forbidden)
    first, second = done.stderr.splitlines()
    assert (done.exit_code, first) == (1, "note: the API server has no views; reading the cluster itself")
    assert second.startswith("Error: ")


def test_what_the_scheduler_does_not_know_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done, _ = run(tmp_path, monkeypatch, NoSuchObject("there is no pod ns/x"), "why", "x")
    assert (done.exit_code, done.stderr) == (1, "Error: there is no pod ns/x\n")


def test_an_answer_of_long_ago_is_reported_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    view = QueuePosition("", NOW, (), whole=True)
    monkeypatch.setattr(cluster, "_OLD_MS", -1)
    done, _ = run(tmp_path, monkeypatch, view, "queue")
    assert done.stderr == "note: the scheduler answered this 0 s ago\n"


@pytest.mark.parametrize("options", [("--policy", "tightest"), ("--scheduler-name", "x"), ("--fabric", "a/b")])
def test_options_that_describe_another_scheduler_are_not_for_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, str]
) -> None:
    done, asked = run(tmp_path, monkeypatch, NoView("none"), "queue", *options)
    assert (done.exit_code, done.stderr, asked) == (0, "", [])


@pytest.mark.parametrize("policy", ["dovetail", "expected-fill"])
def test_both_names_of_its_policy_are_for_the_scheduler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    view = QueuePosition("", NOW, (), whole=True)
    done, asked = run(tmp_path, monkeypatch, view, "queue", "--policy", policy)
    assert (done.exit_code, len(asked)) == (0, 1)


@pytest.mark.parametrize(
    ("arguments", "resource", "body"),
    [
        (("why", "leaserequest/x"), "leaseexplanations", WhyQuestion("ns/x", "leaserequest/")),
        (("why", "gl/x", "-n", "team"), "leaseexplanations", WhyQuestion("team/x", "gpulease/")),
        (("drain", "n0", "--evict", "--dry-run"), "drainplans", DrainQuestion(("n0",), "Evict")),
        (("drain", "n0", "--dry-run", "--start", "2100-01-01T00:00:00Z"), "drainplans",
         DrainQuestion(("n0",), "WaitForJobs", 4_102_444_800_000)),
        (("queue", "drain", "a", "--dry-run"), "queuedrainplans", QueueDrainQuestion("a")),
        (("queue", "drain", "a", "--evict", "--dry-run"), "queuedrainplans", QueueDrainQuestion("a", "HoldAndDrain")),
        (("defrag", "waits"), "defragplans", DefragQuestion("ns/waits")),
        (("defrag", "--shape", "2x8xH100", "--cpu", "4"), "defragplans", DefragQuestion("", "2x8xH100", 4000)),
    ],
)  # fmt: skip
def test_what_is_asked_in_a_body(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], resource: str, body: Any
) -> None:
    _, (asked,) = run(tmp_path, monkeypatch, NoSuchObject("there is none"), *arguments)
    assert (asked.resource.plural, asked.body) == (resource, msgspec.json.encode(body))
    assert asked.namespace == ("team" if "team" in arguments else "ns")


def test_a_queue_is_asked_by_a_name_that_no_pod_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, (one,) = run(tmp_path, monkeypatch, NoView("none"), "why", "queue/default")
    assert (one.namespace, one.name, dict(one.query)) == ("ns", "queue:default", {"queue": "default"})


@pytest.mark.parametrize(
    ("arguments", "query"),
    [
        (("why", "job/x"), {"kind": "job"}),
        (("why", "pod/x"), {"kind": "pod"}),
        (("why", "x"), {"queue": "x"}),
        (("queue", "queue/stop"), {"queue": "stop"}),
    ],
)
def test_what_a_kind_before_a_name_asks_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], query: dict[str, str]
) -> None:
    done, (asked,) = run(tmp_path, monkeypatch, NoSuchObject("there is none"), *arguments)
    assert (done.exit_code, asked.namespace, dict(asked.query)) == (1, "ns", query)
    assert asked.name == ("x" if arguments[0] == "why" else "")


NODE = NodeHealthView("n0", "healthy", 8, {}, 0, "", "", "", (), used=8, jobs=("ns/runs", "(other-namespaces)"))


@pytest.mark.parametrize(
    ("arguments", "view", "asked", "shown"),
    [
        (("nodes",), NodeList((NODE,), 1), ("nodelists", {}), "n0"),
        (("nodes", "n*", "--unhealthy"), NodeList((), 1), ("nodelists", {"name": "n*", "unhealthy": "true"}), "No GPU"),
        (
            ("leases", "ns"),
            LeasesView(NOW, (), (), (), LeaseTotals(1, 2, 3, 4000)),
            ("leaselists", {"of": "ns"}),
            "Other namespaces have 1 control plane with 3 leases (4 GPUs), and 2 requests.",
        ),
        (
            ("topology", "n0"),
            NodeTopology(NodeInside("n0", 8, 1, None, (), Policies(), ())),
            ("nodetopologies", {"node": "n0"}),
            "Node n0 offers 8 GPUs, 1 free.",
        ),
        (("leases",), LeasesView(NOW, (), (), ()), ("leaselists", {}), "There is no control plane"),
        (
            ("leases",),
            LeasesView(NOW, (), (), (), LeaseTotals(0, 0, 0, 0)),
            ("leaselists", {}),
            "You have no control plane of a software agent, no request for a lease, and no lease.\n"
            "Other namespaces have none.",
        ),
        (
            ("whatif", "drain", "n0"),
            WhatIf(NOW, (), (), (), (), 0, (), whole=True, elsewhere=2),
            ("whatifs", {}),
            "The change makes no difference to waiting jobs of yours.\n"
            "The change makes a difference to 2 jobs of other namespaces.",
        ),
        (
            ("whatif", "drain", "n0"),
            WhatIf(NOW, (), (), (), (), 0, (), True, 0, (ChangedNodes(KIND, ("n0",), False),), ()),
            ("whatifs", {}),
            "The change saves 55.04 USD an hour, 39,628.80 USD in 30 days",
        ),
        (
            ("free",),
            Free((), (), (), (), StrandedGpus(8000, 4000, (8,), (StrandedPart(KIND, ("n0",), 4000, "cpu", "", 8),))),
            ("capacities", {"cpuMilli": "0", "memoryBytes": "0"}),
            "cannot use 4 of 8 free GPUs, which cost 27.52 USD an hour",
        ),
    ],
)
def test_the_answer_of_each_view_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], view: Any, asked: Any, shown: str
) -> None:
    async def never(*_: object, ended: bool = False) -> LiveCluster:
        raise AssertionError("the cluster is read")

    done, (one,) = run(tmp_path, monkeypatch, view, *arguments, read=never)
    assert (done.exit_code, done.stderr) == (0, "")
    assert shown in done.stdout
    assert (one.resource.plural, one.namespace, dict(one.query)) == (asked[0], "ns", asked[1])


@pytest.mark.parametrize(
    ("arguments", "change"),
    [
        (("drain", "n0", "n1"), DrainNodes(("n0", "n1"))),
        (
            ("add-nodes", "4x8xH100", "--label", "a=b"),
            AddNodesLike(gpus=8, model="H100", count=4, labels=(("a", "b"),)),
        ),
        (("add-nodes", "--like", "n0"), AddNodesLike("n0")),
        (("quota", "q", "--limit", "gpu=4", "--weight", "2"), ChangeQuota("q", (), ("gpu=4",), 2)),
        (("stop", "q", "--evict"), StopQueue("q", True)),
        (("resume", "q"), ResumeQueue("q")),
    ],
)
def test_the_change_of_a_what_if_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], change: Any
) -> None:
    _, (asked,) = run(tmp_path, monkeypatch, NoSuchObject("none"), "whatif", *arguments)
    assert msgspec.json.decode(asked.body, type=WhatIfQuestion).change == change


def test_submitted_objects_are_those_of_the_context_and_sent_with_the_pods_of_workloads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(
        "{apiVersion: batch/v1, kind: Job, metadata: {name: train}, spec: {parallelism: 2, template: {spec: "
        "{containers: [{name: c}]}}}}"
    )
    _, (asked,) = run(tmp_path, monkeypatch, NoSuchObject("none"), "whatif", "submit", str(file))
    change = msgspec.json.decode(asked.body, type=WhatIfQuestion).change
    assert isinstance(change, Submit)
    assert [(one["kind"], one["metadata"]["namespace"]) for one in change.objects] == [
        ("Job", "ns"), ("Pod", "ns"), ("Pod", "ns")
    ]  # fmt: skip


@pytest.mark.parametrize("arguments", [("nodes",), ("leases",), ("whatif", "drain", "n0"), ("jobs", "--all")])
def test_an_older_scheduler_leaves_the_reading_of_the_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    older = OlderScheduler("the running scheduler is older than this command and does not answer this; it answers why")
    done, _ = run(tmp_path, monkeypatch, older, *arguments)
    assert (done.exit_code, done.stderr) == (0, f"note: {older}; reading the cluster itself\n")


def test_where_neither_works_jobs_that_are_not_done_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def forbidden(*_: object, ended: bool = False) -> LiveCluster:
        raise Forbidden(403, "Forbidden", "nodes is forbidden", "GET /api/v1/nodes")

    def answer(request: ViewRequest) -> Any:
        if "Failed" in request.query["filter"]:
            raise OlderScheduler("the running scheduler is older than this command")
        return JobList(datetime.fromtimestamp(NOW // 1000, UTC), False, True, ())

    done, asked = run(tmp_path, monkeypatch, answer, "jobs", "--all", read=forbidden)
    assert (done.exit_code, len(asked)) == (0, 2)
    assert done.stderr.splitlines() == [
        "note: the running scheduler is older than this command; reading the cluster itself",
        "note: jobs that are done are not listed, as the cluster cannot be read",
    ]
    done, asked = run(tmp_path, monkeypatch, answer, "jobs", "--state", "done", read=forbidden)
    assert (done.exit_code, len(asked)) == (1, 1)
