# SPDX-License-Identifier: Apache-2.0
"""Finished pods for lists of jobs: what they were, when they ran, and how they ended."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dovetail.kube.api.reflector import Change
from dovetail.kube.objects.pods import Pod
from dovetail.kube.translate.ended import EndedPod
from dovetail.kube.translate.translator import Translator
from tests.cli.listed_jobs import GPU, ended, gang, pod

KILLED = {"exitCode": 137, "reason": "OOMKilled"}


def found(*documents: dict[str, Any], collects: bool = True) -> list[EndedPod]:
    feed = Translator(believes=True)
    feed.over = [] if collects else None
    for number, document in enumerate(documents):
        document["metadata"].setdefault("uid", f"u{number}")
    feed.pods([Change("added", msgspec.convert(document, Pod)) for document in documents])
    return list(feed.ended())


def test_a_pod_of_its_own() -> None:
    (one,) = found(ended(pod("p", {GPU: "1"}, "n", dovetail_user="ada")))
    assert (one.workload, one.job, one.succeeded, one.code, one.message) == ("", "ml/p", True, "", "")
    assert (one.pod.user, one.pod.node, one.ended_ms - one.started_ms) == ("ada", "n", 90 * 60_000)


def test_a_gang() -> None:
    documents = [ended(one) for one in gang("train", "8", ("a", "b"))[1:]]
    assert {(one.workload, one.job) for one in found(*documents)} == {("job.batch/ml/train", "ml/train")}


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        ({"reason": "Evicted"}, "Evicted", ""),
        ({}, "Error", "container main exited with 3"),
        ({"containerStatuses": []}, "Error", ""),
        (
            {"initContainerStatuses": [{"name": "init", "state": {"terminated": KILLED}}]},
            "OOMKilled", "container init exited with 137",
        ),
        ({"containerStatuses": [{"name": "main", "state": {"terminated": {"exitCode": 1}}}]}, "Error",
         "container main exited with 1"),
    ],
)  # fmt: skip
def test_why_it_failed(change: dict[str, Any], code: str, message: str) -> None:
    document = ended(pod("p", {GPU: "1"}, "n"), 3)
    document["status"] |= change
    (one,) = found(document)
    assert (one.succeeded, one.code, one.message) == (False, code, message)


def test_what_is_not_known_is_0() -> None:
    document = pod("p", {GPU: "1"})
    document["status"] = {"phase": "Failed", "reason": "DeadlineExceeded"}
    (one,) = found(document)
    assert (one.started_ms, one.ended_ms, one.code) == (0, 0, "DeadlineExceeded")


def test_pods_of_other_schedulers_and_unfinished_ones_are_left_out() -> None:
    other = ended(pod("other", {GPU: "1"}, "n"))
    other["spec"]["schedulerName"] = "default-scheduler"
    assert found(other, pod("runs", {GPU: "1"}, "n")) == []


def test_nothing_is_kept_unless_it_is_asked_for() -> None:
    assert found(ended(pod("p", {GPU: "1"}, "n")), collects=False) == []
