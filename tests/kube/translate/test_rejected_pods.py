# SPDX-License-Identifier: Apache-2.0
"""Which failed pods are reported as rejected by a kubelet, when, and how often."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
from msgspec.structs import replace

from dovetail.core import events as ev
from dovetail.kube.objects.base import OwnerReference
from dovetail.kube.objects.pods import Pod
from dovetail.kube.translate.finished import Finished
from dovetail.kube.translate.pod_status import rejection
from dovetail.kube.translate.pods import owner_of
from dovetail.kube.translate.translator import Translator
from tests.kube.yaml_objects import Change, added, deleted, pod

OWNERS = [
    {"apiVersion": "v1", "kind": "ConfigMap", "name": "other", "uid": "other"},
    {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "rs-1", "controller": True},
]
REJECTED = ev.PodRejected("ml/rs-1", "n1", "TopologyAffinityError")


def of(uid: str = "u", phase: str = "Pending", reason: str = "", node: str = "n1", **metadata: Any) -> Pod:
    text = f"spec: {{nodeName: '{node}'}}\nstatus: {{phase: {phase}, reason: '{reason}'}}"
    return pod(text, **{"uid": uid, "name": uid, "ownerReferences": OWNERS} | metadata)


def failed(uid: str = "u", reason: str = "TopologyAffinityError", **metadata: Any) -> Pod:
    return of(uid, "Failed", reason, **metadata)


def modified(obj: Pod) -> list[Change[Pod]]:
    return [Change("modified", obj)]


def test_the_owner_is_the_controller() -> None:
    feed = Translator()
    (event,) = feed.pods(added(of()))
    assert isinstance(event, ev.PodChanged)
    assert event.pod.owner == "ml/rs-1"
    assert owner_of(of(ownerReferences=OWNERS[:1]).metadata) == ""


@pytest.mark.parametrize(
    ("reason", "is_one"),
    [
        ("TopologyAffinityError", True),
        ("SMTAlignmentError", True),
        ("EmptyPodSharedPoolError", True),
        ("UnexpectedAdmissionError", True),
        ("OutOfcpu", True),
        ("OutOfnvidia.com/gpu", True),
        ("NodeAffinity", True),
        ("NodeShutdown", True),
        ("Evicted", False),
        ("Terminated", False),
        ("DeadlineExceeded", False),
        ("Preempting", False),
        ("", False),
    ],
)
def test_what_is_a_rejection(reason: str, is_one: bool) -> None:
    assert rejection(failed(reason=reason)) == (reason if is_one else "")
    assert rejection(of(phase="Running", reason=reason)) == ""
    assert rejection(of(phase="Failed", reason=reason, node="")) == ""


def test_a_rejection_is_reported_before_the_pod_s_removal_and_once() -> None:
    feed = Translator()
    feed.pods(added(of()))
    assert feed.pods(modified(failed())) == [REJECTED, ev.PodRemoved("u", failed=True)]
    assert feed.pods(modified(failed(labels={"a": "b"}))) == []
    assert feed.pods(deleted(failed())) == []


def test_a_pod_that_fails_and_goes_between_two_looks_is_reported() -> None:
    feed = Translator()
    feed.pods(added(of()))
    assert feed.pods(deleted(failed())) == [REJECTED, ev.PodRemoved("u", failed=True)]


def test_of_what_had_failed_before_two_count() -> None:
    feed = Translator()
    assert feed.pods(added(*(failed(f"u{n}") for n in range(5)))) == [REJECTED, REJECTED]
    assert feed.pods(added(failed("x", reason="OutOfcpu"))) == [ev.PodRejected("ml/rs-1", "n1", "OutOfcpu")]
    feed.pods(added(of("late")))
    assert feed.pods(modified(failed("late"))) == [REJECTED, ev.PodRemoved("late", failed=True)]


@pytest.mark.slow
def test_what_is_remembered_of_pods_that_had_failed_before_is_bounded() -> None:
    finished, one = Finished("dovetail"), failed()

    def reported(number: int) -> int:
        owner = OwnerReference(uid=f"{number}-{'u' * 170}", controller=True)
        obj = replace(one, metadata=replace(one.metadata, owner_references=(owner,)))
        return len(list(finished.rejection(Change("added", obj), known=False)))

    tracemalloc.start()
    try:
        assert [reported(n) for n in range(40_000)] == [1] * 40_000
        mib = tracemalloc.get_traced_memory()[0] / 2**20
    finally:
        tracemalloc.stop()
    assert mib < 12
    assert [reported(39_999) for _ in range(3)] == [1, 0, 0]


@pytest.mark.parametrize(
    "obj",
    [
        pytest.param(failed(ownerReferences=OWNERS[:1]), id="nobody makes it again"),
        pytest.param(
            pod(
                "spec: {nodeName: n1, schedulerName: x}\nstatus: {phase: Failed, reason: OutOfcpu}",
                ownerReferences=OWNERS,
            ),
            id="another scheduler's",
        ),
        pytest.param(failed(reason=""), id="it ran"),
    ],
)
def test_the_controller_does_not_matter(obj: Pod) -> None:
    assert Translator().pods(added(obj)) == []
