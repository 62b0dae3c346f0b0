# SPDX-License-Identifier: Apache-2.0
"""A negotiation through objects alone: what agents write is read, what the core decides is written, and a scheduler
that starts goes on from the objects."""

from __future__ import annotations

from copy import deepcopy
from typing import Any, Literal

import msgspec
import pytest

from dovetail.core import events as ev
from dovetail.core.bargaining.types import GpuLease
from dovetail.core.cycle import step
from dovetail.core.decisions import (
    Decision,
    EndLease,
    GrantLease,
    LeaseStatus,
    MakeOffers,
    RequestStatus,
    RevokeLease,
)
from dovetail.core.model import CPU, GPU, MEMORY, PODS, Node
from dovetail.core.policy import Policy
from dovetail.core.queues.types import Queue
from dovetail.core.state import State
from dovetail.kube.api.reflector import Change
from dovetail.kube.objects import leases as wire
from dovetail.kube.translate import lease_documents, leases
from dovetail.kube.translate.lease_records import LeaseRecords

Document = dict[str, Any]
Kind = Literal["added", "modified", "deleted"]
START_MS = 1_769_860_800_250
PLANE = {
    "metadata": {"name": "p", "namespace": "ns", "uid": "p"},
    "spec": {"queue": "agents", "heartbeat": "0s", "idle": "0s", "grace": "1m"},
}


def node(name: str) -> Node:
    amounts = ((CPU, 64_000), (GPU, 4), (MEMORY, 2**38), (PODS, 99))
    return Node(name, amounts, (("dovetail.dev/rack", "r"),), gpu_memory_mib=80 * 1024)


class Broker:
    """The core with objects as JSON around it. `granted` are all leases that were ever granted."""

    def __init__(self) -> None:
        self.requests: dict[str, Document] = {}
        self.leases: dict[str, Document] = {}
        self.granted: list[GpuLease] = []
        self.asked = 0
        self.now_ms = START_MS
        self.begin()

    def begin(self) -> None:
        """A scheduler starts: it has the objects, and nothing else."""
        self.state = State(Policy())
        self.findings: list[str] = []
        self.feed = LeaseRecords(lambda name, found: self.findings.extend(f"{name}: {one}" for one in found))
        nodes = [ev.NodeChanged(node(f"n{number}")) for number in range(2)]
        events = self.feed.planes([Change("added", msgspec.convert(PLANE, wire.AgentControlPlane))])
        for document in self.leases.values():
            events += self._lease("added", document)
        for document in self.requests.values():
            events += self._request("added", document)
        self.step(*nodes, ev.QueueChanged(Queue("agents", planes=True)), *events)

    def _request(self, kind: Kind, document: Document) -> list[ev.Event]:
        return self.feed.requests([Change(kind, _read(document, wire.LeaseRequest))])

    def _lease(self, kind: Kind, document: Document) -> list[ev.Event]:
        return self.feed.leases([Change(kind, _read(document, wire.GPULease))])

    def step(self, *events: ev.Event, ms: int = 0) -> None:
        self.now_ms += ms
        queued = list(events)
        for _ in range(100):
            decisions = step(self.state, queued, self.now_ms)
            queued = [event for decision in decisions for event in self._write(decision)]
            if not queued and not self.state.busy and (self.state.next_wake_ms() or self.now_ms + 1) > self.now_ms:
                return
        raise AssertionError("the steps do not come to an end")

    def _write(self, decision: Decision) -> list[ev.Event]:
        match decision:
            case MakeOffers():
                return self._report(decision.request, lease_documents.offered(decision, 1))
            case RequestStatus():
                before = self.requests.get(decision.request, {}).get("status")
                return self._report(decision.request, lease_documents.request_status(decision, 1, before))
            case GrantLease():
                self.granted.append(decision.lease)
                uid = self.requests[decision.lease.id]["metadata"]["uid"]
                document = lease_documents.lease_object(decision.lease, uid)
                document["status"] = lease_documents.lease_status(decision.lease)
                assert leases.lease(_read(document, wire.GPULease)) == (decision.lease, None)
                self.leases[decision.lease.id] = document
                created = self._lease("added", document)
                return created + self._report(decision.lease.id, lease_documents.granted(decision.lease.name, 1))
            case LeaseStatus():
                number = self.leases[decision.lease.id]["spec"].get("action", {}).get("number", 0)
                status = lease_documents.lease_status(decision.lease, decision.state, decision.refused, number)
                return self._change(decision.lease.id, status)
            case RevokeLease():
                live = self.state.leases.live[decision.lease]
                return self._change(decision.lease, lease_documents.lease_status(live.lease, live.state.value))
            case EndLease():
                before = self.leases[decision.lease]["status"]
                return self._change(decision.lease, lease_documents.ended(decision, self.now_ms, before))
        return []

    def _report(self, id_: str, status: Document) -> list[ev.Event]:
        if id_ not in self.requests:
            return []
        self.requests[id_]["status"] = status
        return self._request("modified", self.requests[id_])

    def _change(self, id_: str, status: Document) -> list[ev.Event]:
        self.leases[id_]["status"] = status
        return self._lease("modified", self.leases[id_])

    def ask(self, name: str, *alternatives: Document, **spec: Any) -> str:
        self.asked += 1
        document = {"metadata": {"name": name, "namespace": "ns", "uid": str(self.asked)}}
        document["spec"] = {"plane": "p", "alternatives": list(alternatives)} | spec
        self.requests[f"ns/{name}"] = document
        self.step(*self._request("added", document))
        return f"ns/{name}"

    def answer(self, id_: str, action: str, offer: str = "", **more: Any) -> None:
        offer = offer or self.requests[id_]["status"]["offers"][0]["id"]
        self.requests[id_]["spec"]["answer"] = {"offer": offer, "action": action} | more
        self.step(*self._request("modified", self.requests[id_]))

    def act(self, id_: str, number: int, action: str, **more: Any) -> None:
        document = self.leases[id_]
        document["spec"]["action"] = {"number": number, "fence": document["spec"]["fence"], "action": action} | more
        self.step(*self._lease("modified", document))

    def delete(self, id_: str) -> None:
        request, lease = self.requests.pop(id_, None), self.leases.pop(id_, None)
        events = self._request("deleted", request) if request else []
        self.step(*events, *(self._lease("deleted", lease) if lease else []))


def _read(document: Document, kind: type[Any]) -> Any:
    return msgspec.json.decode(msgspec.json.encode(document), type=kind)


@pytest.mark.parametrize(
    "alternative",
    [
        {"count": 8, "perNode": 4, "duration": "30m"},
        {"count": 4, "least": 2, "perNode": 2, "within": ["rack"], "cpu": "500m", "memory": "1Gi"},
        {"gpuFraction": "0.25", "duration": "90s"},
        {"gpuMemory": "10Gi", "class": "Scavenger", "leastDuration": "1m"},
    ],
)
def test_an_offer_that_is_accepted_is_a_lease_and_what_was_granted_can_be_read(alternative: Document) -> None:
    broker = Broker()
    id_ = broker.ask("one", alternative)
    status = broker.requests[id_]["status"]
    assert (status["state"], status["offers"][0]["now"]) == ("Offered", True)
    broker.answer(id_, "accept")
    assert broker.requests[id_]["status"] == {"observedGeneration": 1, "state": "Granted", "lease": "one"}
    assert broker.leases[id_]["status"]["state"] == "Active"
    assert [lease.id for lease in broker.granted] == [*broker.state.leases.live] == [id_]
    assert broker.findings == []


def test_a_lease_is_renewed_and_returned_by_its_object() -> None:
    broker = Broker()
    id_ = broker.ask("one", {"duration": "10m"}, firm=True)
    end = broker.leases[id_]["status"]["end"]
    broker.act(id_, 1, "renew", until="2026-01-31T12:15:00Z")
    assert (broker.leases[id_]["status"]["action"], broker.leases[id_]["status"]["end"]) == (1, end)
    assert "can be renewed in the last" in broker.leases[id_]["status"]["refused"]
    broker.step(ms=8 * 60_000)
    broker.act(id_, 2, "renew", until="2026-01-31T12:15:00Z")
    status = broker.leases[id_]["status"]
    assert (status["action"], status["renewals"], status["end"]) == (2, 1, "2026-01-31T12:15:00.000Z")
    assert "refused" not in status
    broker.act(id_, 3, "return")
    assert (broker.leases[id_]["status"]["state"], broker.leases[id_]["status"]["cause"]) == ("Ended", "Returned")
    assert broker.state.leases.live == {}


def test_a_scheduler_that_starts_goes_on_from_the_objects() -> None:
    broker = Broker()
    for name in ("one", "two"):
        broker.ask(name, {"count": 2, "perNode": 2, "duration": "1h"}, firm=True)
    waits = broker.ask("waits", {"count": 8, "perNode": 4, "duration": "1h"})
    broker.act("ns/two", 1, "renew", until="2026-01-31T12:30:00Z")
    live = {id_: one.lease for id_, one in broker.state.leases.live.items()}
    objects = deepcopy(broker.leases)
    broker.begin()
    assert {id_: one.lease for id_, one in broker.state.leases.live.items()} == live
    assert [lease.id for lease in broker.granted] == ["ns/one", "ns/two"]
    assert broker.leases == objects, "no action is dealt with twice"
    assert broker.requests[waits]["status"]["state"] in ("Pending", "Reserved")
    broker.act("ns/one", 1, "return")
    broker.begin()
    assert [*broker.state.leases.live] == ["ns/two"]


def test_a_name_is_free_again_when_its_lease_is_gone_and_the_fence_has_grown() -> None:
    broker = Broker()
    id_ = broker.ask("one", {"duration": "10m"}, firm=True)
    first = broker.leases[id_]
    del broker.requests[id_]
    broker.step(*broker.feed.requests([]), ms=1000)
    broker.ask("one", {"duration": "10m"}, firm=True)
    assert broker.requests[id_]["status"]["state"] == "Denied"
    assert "of an older request" in broker.requests[id_]["status"]["message"]
    assert broker.leases[id_] == first
    broker.act(id_, 1, "return")
    lease = broker.leases.pop(id_)
    broker.step(*broker.feed.leases([Change("deleted", _read(lease, wire.GPULease))]), ms=1000)
    assert broker.requests[id_]["status"]["state"] == "Granted"
    assert broker.leases[id_]["spec"]["fence"] > first["spec"]["fence"]


def test_what_cannot_be_honoured_is_denied_with_the_field_and_a_stale_answer_changes_nothing() -> None:
    broker = Broker()
    bad = broker.ask("bad", {"count": 2, "least": 3})
    status = broker.requests[bad]["status"]
    assert (status["state"], status["reason"]) == ("Denied", "InvalidInput")
    assert "spec.alternatives[0].least" in status["message"]
    id_ = broker.ask("one", {})
    before = broker.requests[id_]["status"]
    broker.answer(id_, "accept", "ns/one/no-such-offer")
    status = broker.requests[id_]["status"]
    assert (status["state"], status["reason"], broker.leases) == ("Offered", "OfferGone", {})
    now, then = _read(status, wire.LeaseRequestStatus), _read(before, wire.LeaseRequestStatus)
    assert (now.offers, now.offers_until) == (then.offers, then.offers_until)
    broker.answer(id_, "counter", counter={"duration": "5m"})
    assert broker.requests[id_]["status"]["offers"][0]["alternative"]["duration"] == "5m"
