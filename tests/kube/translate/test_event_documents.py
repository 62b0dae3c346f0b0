# SPDX-License-Identifier: Apache-2.0
"""Events as the API server takes them, whatever they are about."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pytest

from dovetail.kube.api.resources import JOBS, NODES, PODS, Resource
from dovetail.kube.translate.event_documents import (
    EventNote,
    EventObject,
    EventReporter,
    event_document,
    event_name,
    series_document,
)

SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
"""IsDNS1123Subdomain of k8s.io/apimachinery."""


@dataclass
class Written:
    resource: Resource = PODS
    namespace: str = "ml"
    name: str = "train"
    instance: str = "host-1"
    note: str = "it happened"

    @property
    def document(self) -> dict[str, Any]:
        about = EventObject(self.resource, self.namespace, self.name, "u")
        report = EventNote("Why", "Doing", "Normal", self.note)
        return event_document(about, report, EventReporter("dovetail.dev/part", self.instance), 1_500, "1f")


def test_an_event_of_a_pod_is_whole() -> None:
    assert Written().document == {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"namespace": "ml", "name": "train.1f"},
        "eventTime": "1970-01-01T00:00:01.500000Z",
        "reportingController": "dovetail.dev/part",
        "reportingInstance": "host-1",
        "regarding": {"apiVersion": "v1", "kind": "Pod", "namespace": "ml", "name": "train", "uid": "u"},
        "reason": "Why",
        "action": "Doing",
        "type": "Normal",
        "note": "it happened",
    }


def test_other_kinds_have_their_version_and_a_node_is_found_by_kubectl() -> None:
    job = Written(resource=JOBS).document["regarding"]
    assert job == {"apiVersion": "batch/v1", "kind": "Job", "namespace": "ml", "name": "train", "uid": "u"}
    node = Written(resource=NODES, namespace="", name="gpu-1").document
    assert node["regarding"] == {"apiVersion": "v1", "kind": "Node", "name": "gpu-1", "uid": "gpu-1"}
    assert node["metadata"]["namespace"] == "default"


@pytest.mark.parametrize("name", ["a", "a" * 253, "a-" * 126 + "a", "a." * 126 + "a", "a" * 236 + "-b"])
def test_the_name_is_valid_however_the_name_of_the_object_is_cut(name: str) -> None:
    for length in range(1, 40):
        found = event_name(name, "f" * length)
        assert SUBDOMAIN.fullmatch(found) and len(found) <= 253, found
        assert found.startswith(name[:200]) and found.endswith("." + "f" * length)


def test_what_is_too_long_is_cut_in_bytes_and_what_must_be_there_is() -> None:
    long = Written(instance="ä" * 100, note="ä" * 1000).document
    assert long["reportingInstance"] == "ä" * 64
    assert len(long["note"].encode()) <= 1024 and long["note"].endswith(" ...")
    assert Written(instance="").document["reportingInstance"] == "dovetail.dev/part"


def test_here_is_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "box")
    assert EventReporter.here("c") == EventReporter("c", "box")


def test_a_series_has_its_count_and_last_time() -> None:
    series = series_document(3, 61_250)["series"]
    assert series == {"count": 3, "lastObservedTime": "1970-01-01T00:01:01.250000Z"}
    assert datetime.fromisoformat(series["lastObservedTime"]).microsecond == 250_000
