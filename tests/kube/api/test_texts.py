# SPDX-License-Identifier: Apache-2.0
"""Texts that go into objects are as long as the API server takes them, and no longer than anybody reads."""

from __future__ import annotations

import json
import time

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.kube.api.client import STRATEGIC_PATCH, Client
from dovetail.kube.api.config import load_kubeconfig
from dovetail.kube.api.errors import reply_error
from dovetail.kube.api.resources import EVENTS, PODS
from dovetail.kube.api.texts import MESSAGE_BYTES, NOTE_BYTES, clipped
from dovetail.kube.translate.event_documents import EventNote, EventObject, EventReporter, event_document
from dovetail.scheduler import wire
from tools.controlplane.plane import Plane

NOW_MS = 1_764_000_000_000
LONG = ["x" * 1_025, "ü" * 513, "…" * 342, "é" + "x" * 1_023, "😀" * 100_000]


def event(note: str, instance: str = "me") -> bytes:
    about, report = EventObject(PODS, "texts", "p", "u"), EventNote("FailedScheduling", "Scheduling", "Warning", note)
    reporter = EventReporter("dovetail", instance)
    return msgspec.json.encode(event_document(about, report, reporter, NOW_MS, f"{time.time_ns():x}"))


@given(st.text(), st.integers(8, 64))
def test_what_is_cut_fits_is_marked_and_stays_text(text: str, most_bytes: int) -> None:
    cut = clipped(text, most_bytes)
    assert len(cut.encode()) <= most_bytes
    assert cut == text or (cut.endswith(" ...") and text.startswith(cut[:-4]) and len(text.encode()) > most_bytes)


@pytest.mark.parametrize("note", LONG)
def test_a_note_is_counted_in_bytes(note: str) -> None:
    reported = json.loads(event(note, instance="host-ü" * 40))
    assert NOTE_BYTES - 8 < len(reported["note"].encode()) <= NOTE_BYTES
    assert reported["note"].endswith(" ...")
    assert len(reported["reportingInstance"].encode()) <= 128


def test_a_note_that_just_fits_is_whole() -> None:
    assert json.loads(event("ü" * 512))["note"] == "ü" * 512


@pytest.mark.parametrize("body", [wire.unschedulable, wire.disruption_target])
def test_the_message_of_a_condition_has_a_bound(body: object) -> None:
    (condition,) = json.loads(body("u", "Unschedulable", "y" * 255_000, NOW_MS))["status"]["conditions"]
    assert (len(condition["message"]), condition["message"][-4:]) == (MESSAGE_BYTES, " ...")


def test_so_has_that_of_a_group_and_of_an_error() -> None:
    (condition,) = json.loads(wire.group_condition("T", False, "R", "y" * 255_000, NOW_MS))["status"]["conditions"]
    assert len(condition["message"]) == MESSAGE_BYTES
    body = json.dumps({"reason": "Invalid", "message": "y" * 255_000}).encode()
    assert len(str(reply_error(422, {}, body, "PATCH /x", harmless=True))) < MESSAGE_BYTES + 100


@pytest.mark.plane
async def test_the_real_api_server_takes_them(plane: Plane) -> None:
    for manifest in (
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "texts"}},
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": "texts"}},
        {
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "texts"},
            "spec": {"schedulerName": "none", "containers": [{"name": "m", "image": "i"}]},
        },
    ):  # fmt: skip
        plane.kubectl("apply", "-f", "-", input=json.dumps(manifest))
    async with Client(load_kubeconfig([plane.kubeconfig])) as client:
        for note in LONG:
            await client.request("POST", EVENTS.path("texts"), event(note, instance="ü" * 200))
        uid = plane.kubectl("--namespace=texts", "get", "pod", "p", "--output=jsonpath={.metadata.uid}")
        body = wire.unschedulable(uid, "Unschedulable", "ü" * 255_000, NOW_MS)
        await client.request("PATCH", PODS.path("texts", "p", "status"), body, content_type=STRATEGIC_PATCH)
