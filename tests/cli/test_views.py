# SPDX-License-Identifier: Apache-2.0
"""Commands ask the running scheduler first, and read the cluster where it does not answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from dovetail.cli import cli, cluster
from dovetail.core.state import State
from dovetail.kube.api.errors import Forbidden
from dovetail.kube.objects.views import ViewDocument
from dovetail.kube.reading import state, views
from dovetail.kube.reading.live_cluster import LiveCluster
from dovetail.kube.reading.views import NoSuchObject, NotServed, NoView, ViewRequest
from dovetail.kube.translate.translator import Translator
from dovetail.views.queue_positions import QueuePosition, queue_positions
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


def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, view: Any, *arguments: str, read: Any = None
) -> tuple[Any, list[ViewRequest]]:
    """Run a command where `view` is what the scheduler answers, or raises. Gives its result and what was asked."""
    asked: list[ViewRequest] = []

    async def read_view(_: object, request: ViewRequest) -> ViewDocument:
        asked.append(request)
        if isinstance(view, Exception):
            raise view
        answer = view if isinstance(view, bytes) else msgspec.json.encode(view)
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


def test_leases_are_explained_from_their_objects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done, asked = run(tmp_path, monkeypatch, NoView("none"), "why", "leaserequest/x")
    assert (done.exit_code, asked) == (1, [])
    _, (one,) = run(tmp_path, monkeypatch, NoView("none"), "why", "queue/default")
    assert (one.namespace, one.name, dict(one.query)) == ("ns", "queue:default", {"queue": "default"})


@pytest.mark.parametrize(
    ("arguments", "query"),
    [
        (("why", "job/x"), {}),
        (("why", "pod/x"), {}),
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
