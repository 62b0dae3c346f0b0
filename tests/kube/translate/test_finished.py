# SPDX-License-Identifier: Apache-2.0
"""Pods that are over: when they ended and how, and those that ran while nobody followed."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from dovetail.core import events as ev
from dovetail.kube.gangs.dialects import COSCHEDULING
from dovetail.kube.translate import finished, pod_status, pods
from dovetail.kube.translate.bound import read
from dovetail.kube.translate.sources import outline
from dovetail.kube.translate.translator import Translator
from tests.bound import bound
from tests.kube.yaml_objects import Change, added, deleted, pod, wire

START_MS = 1_767_225_600_000
SCHEDULED = "{type: PodScheduled, status: 'True', lastTransitionTime: 2026-01-01T00:00:00Z}"


def ended(*seconds: int, phase: str = "Succeeded", conditions: str = SCHEDULED, **metadata: Any) -> Any:
    """A pod that began with the year and whose containers ended so many seconds later."""
    states = ", ".join(
        f"{{name: c{i}, state: {{terminated: {{exitCode: 0, finishedAt: '2026-01-01T00:00:{second:02}Z'}}}}}}"
        for i, second in enumerate(seconds)
    )
    text = (
        "spec: {schedulerName: dovetail, nodeName: n1}\n"
        f"status: {{phase: {phase}, conditions: [{conditions}], containerStatuses: [{states}]}}"
    )
    uid = metadata.pop("uid", "u-a")
    return pod(text, uid=uid, name=uid, **metadata)


RUNNING = f"spec: {{schedulerName: dovetail, nodeName: n1}}\nstatus: {{phase: Running, conditions: [{SCHEDULED}]}}"


@pytest.mark.parametrize(("phase", "succeeded"), [("Succeeded", True), ("Failed", False)])
def test_a_pod_that_finishes_reports_when_its_last_container_ended_and_how(phase: str, succeeded: bool) -> None:
    feed = Translator()
    feed.pods(added(pod(RUNNING)))
    over = ended(7, 9, 8, phase=phase)
    assert feed.pods([Change("modified", over)]) == [ev.PodRemoved("u-a", START_MS + 9000, succeeded, not succeeded)]
    assert feed.pods([Change("modified", over)]) == []
    assert feed.pods(deleted(over)) == []


@pytest.mark.parametrize(
    "evicted",
    [
        ended(7, conditions=f"{SCHEDULED}, {{type: DisruptionTarget, status: 'True'}}"),
        ended(7, deletionTimestamp="2026-01-01T00:00:20Z"),
    ],
    ids=["evicted", "deleted"],
)
def test_an_evicted_pod_that_exits_well_is_no_estimate_of_run_times(evicted: Any) -> None:
    feed = Translator()
    feed.pods(added(pod(RUNNING)))
    assert feed.pods([Change("modified", evicted)]) == [ev.PodRemoved("u-a", START_MS + 7000, succeeded=False)]


def test_a_pod_that_is_deleted_ends_now() -> None:
    feed = Translator()
    feed.pods(added(pod(RUNNING)))
    assert feed.pods(deleted(pod(RUNNING))) == [ev.PodRemoved("u-a")]


@pytest.mark.parametrize(
    "known",
    [
        pod("spec: {schedulerName: dovetail}"),
        pod(RUNNING),
        ended(7),
        pod(
            "spec: {schedulerName: dovetail, nodeName: n1}\nstatus: {phase: Failed, reason: OutOfcpu}",
            ownerReferences=[{"uid": "o", "controller": True}],
        ),
    ],
    ids=["pending", "running", "succeeded", "rejected"],
)
def test_of_a_pod_that_went_while_nobody_watched_the_metadata_are_enough(known: Any) -> None:
    reported = []
    for last in (known, outline(known)):
        feed = Translator()
        first = feed.pods(added(known))
        reported.append((first, feed.pods(deleted(last)), feed.reported("u-a")))
    assert reported[0] == reported[1]
    assert reported[0][0], "it was reported"


def test_a_pod_whose_node_was_lost_ended_when_that_was_written_down() -> None:
    gone = "{type: DisruptionTarget, status: 'True', lastTransitionTime: 2026-01-01T00:00:30Z}"
    over = ended(phase="Failed", conditions=f"{SCHEDULED}, {gone}")
    assert pod_status.ended_ms(over) == START_MS + 30_000
    assert pod_status.ended_ms(ended(phase="Failed")) == 0


def test_a_pod_that_ran_while_nobody_followed_is_reported_on_its_node_and_gone() -> None:
    feed = Translator()
    first, second = feed.pods(added(ended(7, labels={"dovetail.dev/queue": "research"})))
    assert isinstance(first, ev.PodChanged)
    reported = first.pod
    assert (reported.node, reported.bound_ms, reported.queue, reported.work.family) == (
        "n1",
        START_MS,
        "research",
        "ml/Pod/u-a@",
    )
    assert second == ev.PodRemoved("u-a", START_MS + 7000, succeeded=True)
    assert feed.pods([Change("modified", ended(7))]) == []
    assert feed.reported("u-a") is None


def test_they_are_reported_in_the_order_in_which_they_ended_and_before_those_that_live() -> None:
    changes = added(pod(RUNNING, uid="live", name="live"), ended(9, uid="late"), ended(3, uid="early"))
    reported = [event.pod.uid if isinstance(event, ev.PodChanged) else event for event in Translator().pods(changes)]
    assert reported == [
        "early", ev.PodRemoved("early", START_MS + 3000, succeeded=True),
        "late", ev.PodRemoved("late", START_MS + 9000, succeeded=True),
        "live",
    ]  # fmt: skip


def test_only_the_newest_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finished, "_NEWEST", 2)
    events = Translator().pods(added(ended(9, uid="c"), ended(1, uid="a"), ended(5, uid="b")))
    assert [event.uid for event in events if isinstance(event, ev.PodRemoved)] == ["b", "c"]


@pytest.mark.parametrize(
    "never_ran",
    [
        ended(phase="Failed"),
        ended(7, conditions=""),
        pod("status: {phase: Failed, reason: Evicted}"),
    ],
    ids=["no end is known", "no begin is known", "on no node"],
)
def test_what_cannot_be_charged_is_not_reported(never_ran: Any) -> None:
    assert Translator().pods(added(never_ran)) == []


def test_pods_of_other_schedulers_are_not_reported() -> None:
    assert Translator("other").pods(added(ended(7))) == []


def test_it_holds_no_devices_and_no_gang_waits_for_it() -> None:
    label, gang = {"scheduling.x-k8s.io/pod-group": "g"}, "podgroup.scheduling.x-k8s.io/ml/g"
    text = "{limits: {nvidia.com/gpu: 2}}"
    over = ended(7, labels=label, annotations=bound("u-a", "0,1", gang=gang))
    containers = pod(f"spec: {{containers: [{{name: main, resources: {text}}}]}}").spec.containers
    over = structs.replace(over, spec=structs.replace(over.spec, containers=containers))
    assert pods.pod(over, "dovetail", read(over).bound).devices == (0, 1)
    feed = Translator()
    (first, _) = feed.pods(added(over))
    assert isinstance(first, ev.PodChanged)
    assert (first.pod.devices, first.pod.gang) == (None, "")
    assert dict(first.pod.request.resources)["nvidia.com/gpu"] == 2


def test_the_queue_of_its_group_is_its_own() -> None:
    feed = Translator()
    meta = "{metadata: {name: g, namespace: ml, labels: {dovetail.dev/queue: research}}, spec: {minMember: 2}}"
    feed.gangs.pod_groups(COSCHEDULING, added(wire(COSCHEDULING.kind, meta)))
    (first, _) = feed.pods(added(ended(7, labels={"scheduling.x-k8s.io/pod-group": "g"})))
    assert isinstance(first, ev.PodChanged)
    assert (first.pod.queue, first.pod.gang) == ("research", "")
