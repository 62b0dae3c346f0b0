# SPDX-License-Identifier: Apache-2.0
"""The doctor's facts, from lists of which some could not be read, and some have objects that could not be decoded."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec import convert

from dovetail.advice.doctor.lists import LISTS, UnreadKind, View, facts_of, requests
from dovetail.advice.doctor.records import ClusterFacts
from dovetail.kube.api.decoding import BadObject
from dovetail.kube.reading.lists import ListReply

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
VIEW = View("dovetail", int(NOW.timestamp()) * 1000)


def facts(**replies: ListReply) -> tuple[ClusterFacts, tuple[UnreadKind, ...]]:
    """From empty lists, but for these, by their fields."""
    return facts_of([replies.get(name, ListReply(())) for name in LISTS], VIEW, ())


def reply(field: str, *documents: dict[str, Any]) -> ListReply:
    kind = LISTS[field].request.kind
    assert kind is not None
    return ListReply(tuple([convert(one, kind) for one in documents]))


@pytest.mark.parametrize("field", LISTS)
def test_a_list_that_was_left_out_is_none_and_named(field: str) -> None:
    found, unread = facts(**{field: ListReply(None, unread="forbidden")})
    assert [name for name in LISTS if getattr(found, name) is None] == [field]
    assert unread == (UnreadKind(f"list/{LISTS[field].request.resource.plural}", "forbidden"),)


def test_an_object_that_could_not_be_decoded_is_named_beside_the_others() -> None:
    resource = LISTS["pods"].request.resource
    bad = (BadObject(resource, ("ns", "a"), "Expected `str`"), BadObject(resource, None, "truncated"))
    found, unread = facts(pods=ListReply((), bad))
    assert found.pods is not None
    assert unread == (UnreadKind("pod/ns/a", "Expected `str`"), UnreadKind("pod/?", "truncated"))


def test_each_request_has_one_reply() -> None:
    with pytest.raises(ValueError, match="argument 2"):
        facts_of([ListReply(())] * (len(requests()) - 1), VIEW, ())


@pytest.mark.parametrize(("age_s", "held"), [(0, True), (45, True), (46, False)])
def test_a_lease_has_a_holder_for_three_times_its_duration(age_s: int, held: bool) -> None:
    lease = {
        "metadata": {"name": "l", "namespace": "n", "annotations": {"dovetail.dev/scheduler-name": "dovetail"}},
        "spec": {"holderIdentity": "a", "leaseDurationSeconds": 15, "renewTime": NOW - timedelta(seconds=age_s)},
    }
    found, _ = facts(leases=reply("leases", lease))
    assert [one.renewed_s for one in found.leases or ()] == ([age_s] if held else [])


def test_a_pod_waits_since_it_was_made() -> None:
    pod = {
        "metadata": {"name": "p", "namespace": "n", "creationTimestamp": NOW - timedelta(seconds=90)},
        "spec": {"schedulerName": "other", "containers": [{"resources": {"limits": {"nvidia.com/gpu": "1"}}}]},
        "status": {"phase": "Pending"},
    }
    found, _ = facts(pods=reply("pods", pod))
    assert found.pods is not None
    (pending,) = found.pods.pending
    assert (pending.pod, pending.age_s, pending.ours, pending.asks) == ("n/p", 90, False, ("nvidia.com/gpu",))
