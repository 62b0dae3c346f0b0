# SPDX-License-Identifier: Apache-2.0
"""The screen of `dovetail status`: everything in the view is on it, and no text of others is markup."""

from __future__ import annotations

from datetime import UTC, datetime
from io import StringIO

from dovetail.cli.console import Console
from dovetail.cli.status import skews
from dovetail.cli.status_report import show
from dovetail.kube.objects.base import ObjectMeta
from dovetail.kube.objects.stack import BlockedNode, ForeignComponent, NodeCounts, RolloutStatus
from dovetail.kube.objects.topology import GPUNode
from dovetail.views.installation import InstallationFacts
from dovetail.views.status import ComponentView, ConditionView, LeaderView, StackView, StatusProblem, StatusView, status

NOW = datetime(2026, 11, 26, 12, 0, tzinfo=UTC)
NOW_MS = int(NOW.timestamp() * 1000)


def screen(view: StatusView) -> list[str]:
    file = StringIO()
    show(view, NOW_MS, Console(file=file))
    return file.getvalue().splitlines()


def test_a_healthy_installation() -> None:
    ready = ConditionView("Ready", "True", "Ready", "", NOW_MS - 90_000)
    view = StatusView(
        stack=StackView("dovetail", "0.1.0", True, False, (ready,)),
        components=(
            ComponentView("dovetail-operator", "Deployment", "s", "", "dovetail:0.1.0", "0.1.0", 2, 2, ""),
            ComponentView("dovetail-agent", "DaemonSet", "a", "default", f"d@sha256:{'ab' * 32}", "", 8, 8, ""),
        ),
        leaders=(LeaderView("dovetail-operator", "pod-a", NOW_MS),),
        versions={"agent": {"0.1.0": 8}, "definitions": {"0.1.0": 3}},
        drivers={"550.54": 7, "560.1": 1},
        nodes=NodeCounts(nodes=8, ready=7, maintenance=1, gpus=64, gpus_ready=56),
    )
    assert screen(view) == [
        "Dovetail is healthy.",
        "GPUStack dovetail is ready since 1 min 30 s.",
        "component          version       ready  leader  why",
        "dovetail-operator  0.1.0           2/2  pod-a   -",
        "dovetail-agent     abababababab    8/8  -       -",
        "GPU nodes: 7 of 8 ready, 1 in maintenance, 0 in repair. GPUs: 56 of 64 ready, 0 in repair.",
        "Agents: 0.1.0 on 8 nodes.",
        "Drivers: 550.54 on 7 nodes, 560.1 on 1 node.",
        "Definitions: release 0.1.0.",
    ]


def test_what_is_broken_has_its_next_step_and_is_never_markup() -> None:
    since = NOW.replace(hour=11)
    view = StatusView(
        problems=(
            StatusProblem("Node n1", "driver: DriverMissing", "install one"),
            StatusProblem("Lease [b]x", "no\x1breplica leads", "look"),
        ),
        blocked=(BlockedNode("n1", "default", "driver", "DriverMissing", "[red]none", "install one", since),),
        foreign=(ForeignComponent("device-plugin", version="0.17", nodes=3),),
        rollout=RolloutStatus("r2", "r1", "Rolling", started=since, total=8, updated=3, working=("n2",)),
        unread=("leases: forbidden",),
    )
    assert screen(view) == [
        "Dovetail is broken: 2 problems.",
        "Rollout r2: Rolling, 3 of 8 nodes; now on n2, since 1 h.",
        "Found: device-plugin 0.17 on 3 nodes, left to it.",
        "blocked node  pool     step    since  why                       next",
        "n1            default  driver  1 h    DriverMissing: [red]none  install one",
        "problem     what              next",
        "Lease [b]x  no replica leads  look",
        "not read: leases: forbidden",
    ]


def test_what_could_not_be_read_is_not_called_healthy() -> None:
    assert screen(StatusView(unread=("nodes: forbidden", "pods: forbidden"))) == [
        "Dovetail is not known to be healthy: 2 lists could not be read.",
        "not read: nodes: forbidden",
        "not read: pods: forbidden",
    ]


def test_where_nothing_is_installed_that_is_the_first_line_and_gpunodes_that_are_left_are_not_ready() -> None:
    view = status(InstallationFacts(gpu_nodes=(GPUNode(metadata=ObjectMeta(name="kept")),)), NOW_MS, lambda _: ())
    assert screen(view) == [
        "Dovetail is not installed.",
        "problem   what                                         next",
        "Dovetail  neither operator nor scheduler is installed  dovetail install",
    ]


def test_versions_are_compared_by_the_table() -> None:
    (found,) = skews({"definitions": ["0.1.0"], "operator": ["0.2.0"], "agent": []})
    assert "definitions 0.1.0" in found.text and found.remedy
