# SPDX-License-Identifier: Apache-2.0
"""Why requests wait and how long leases last: numbers, alternatives, starts, and pods that name a lease."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from dovetail.core.cycle import enter
from dovetail.core.events import PodRemoved
from dovetail.core.model import Maintenance
from dovetail.core.state import State
from dovetail.kube.manifests import cluster
from dovetail.kube.manifests.documents import Document as Manifest
from dovetail.kube.translate.lease_records import LeaseObjects
from dovetail.views.drain import drain_plan
from dovetail.views.names import JobNotFound
from dovetail.views.queue_positions import queue_positions
from dovetail.views.rank import rank
from dovetail.views.whatif import ChangeError, drain, submit, whatif
from dovetail.views.why import why
from dovetail.views.why_lease import WhyLeases, why_lease
from dovetail.views.why_queue import why_queue
from dovetail.views.why_types import PodLease, Why, WhyLease, WhyRequest
from tests.views.agents import CLUSTER, FENCE, NOW, Document, document, lease, node, plane, pod, request

MINUTE = 60_000
AGENTS = (node("n1"), node("n2"), document("Queue", "agents", planes=True), plane("ada"), plane("bob"))
HELD = (lease("ada", "all", "n1", tuple(range(8))), lease("ada", "some", "n2", (0, 1, 2, 3)))


def read(documents: Iterable[Document]) -> tuple[State, LeaseObjects]:
    found = cluster.of_documents([Manifest("x", one) for one in documents], "dovetail")
    state = State()
    enter(state, found.events, NOW)
    return state, found.feed.leases.objects


def leased(documents: Iterable[Document], key: str) -> WhyLeases:
    return why_lease(*read(documents), key, NOW)


def of_request(documents: Iterable[Document], key: str) -> tuple[WhyRequest, Why]:
    found = leased(documents, key).request
    assert found is not None and found.answer is not None
    return found, found.answer


def of_lease(documents: Iterable[Document], key: str) -> WhyLease:
    found = leased(documents, key).lease
    assert found is not None
    return found


def of_pod(documents: Iterable[Document], key: str) -> Why:
    return why(read(documents)[0], key, NOW)


def test_a_request_that_waits_is_explained_with_the_numbers_the_holders_and_its_start() -> None:
    asked = request("bob", "r", {"count": 8, "perNode": 8, "duration": "1h"})
    _, answer = of_request((*AGENTS, *HELD, asked), "bob/r")
    assert (answer.state, answer.code) == ("NotYet", "NoNodeFits")
    assert "needs 8, n2 has free 4" in answer.message
    assert {one.pod for one in answer.holders} == {"gpulease/ada/all", "gpulease/ada/some"}
    assert answer.expected is not None
    assert answer.expected.start_ms - NOW == 20 * MINUTE
    assert answer.granted == "8 GPUs, on one node, for 1h, Burst"
    assert answer.queue == "planes/bob/bob" and dict(answer.wanted)["gpu"] == 8000
    assert [term.queue for term in answer.terms] == ["agents", "planes/bob/bob"]


def test_each_alternative_is_tried_on_its_own() -> None:
    asked = request(
        "bob", "r", {"count": 8, "perNode": 8}, {"count": 4, "perNode": 4, "duration": "5m"}, {"models": ["H9000"]}
    )
    found, answer = of_request((*AGENTS, *HELD, asked), "bob/r")
    whole, half, other = found.alternatives
    assert (whole.state, whole.code, whole.granted) == ("NotYet", "NoNodeFits", "")
    assert (half.state, half.granted) == ("Placed", "4 GPUs on n2 4,5,6,7, for 5m")
    assert (other.state, other.code) == ("Never", "NoNodeFits")
    assert (answer.state, answer.node) == ("Placed", "n2")


def test_a_start_may_be_that_of_another_alternative() -> None:
    full = (lease("ada", "all", "n1", tuple(range(8))), lease("ada", "most", "n2", tuple(range(8)), {"end": END}))
    asked = request("bob", "r", {"count": 16, "perNode": 8}, {"count": 2, "perNode": 2}, firm=True)
    _, answer = of_request((*AGENTS, *full, asked), "bob/r")
    assert answer.expected is not None and answer.expected.start_ms - NOW == 5 * MINUTE
    assert answer.granted == "2 GPUs, on one node, for 10m, Burst"


def test_a_request_can_start_although_its_first_alternative_never_can() -> None:
    asked = request("bob", "r", {"models": ["H9000"]}, {"count": 8, "perNode": 8})
    state, objects = read((*AGENTS, *HELD, asked))
    found = why_lease(state, objects, "bob/r", NOW).request
    assert found is not None and found.answer is not None
    assert [one.state for one in found.alternatives] == ["Never", "NotYet"]
    assert found.answer.state == "NotYet" and found.answer.expected is not None
    assert found.answer.expected.start_ms - NOW == 20 * MINUTE
    (waiting,) = queue_positions(state, NOW).jobs
    assert (waiting.job, waiting.state, waiting.expected) == ("bob/r", "NotYet", found.answer.expected)


END = "2026-01-31T12:05:00Z"


@pytest.mark.parametrize(
    ("documents", "code"),
    [
        ((plane("bob", "Silent"), request("bob", "r")), "PlaneSilent"),
        ((request("bob", "r"),), "PlaneMissing"),
        ((plane("bob"), request("bob", "r", {"earliest": "2026-01-31T13:00:00Z"})), "TooEarly"),
    ],
)
def test_a_request_that_is_in_no_queue_is_explained(documents: tuple[Document, ...], code: str) -> None:
    found, answer = of_request((*AGENTS[:3], *documents), "bob/r")
    assert (answer.state, answer.code, found.alternatives) == ("NotYet", code, ())


def test_a_request_that_starts_later_by_its_own_will_has_that_start() -> None:
    asked = request("bob", "r", {"earliest": "2026-01-31T13:00:00Z"})
    _, answer = of_request((*AGENTS, asked), "bob/r")
    assert answer.expected is not None
    assert 60 * MINUTE <= answer.expected.start_ms - NOW <= 64 * MINUTE


def test_a_request_that_is_invalid_never_starts_and_one_that_led_to_a_lease_names_it() -> None:
    _, answer = of_request((*AGENTS, request("bob", "r", {"perNode": 3, "count": 4})), "bob/r")
    assert (answer.state, answer.code, answer.expected) == ("Never", "InvalidInput", None)
    over = leased((*AGENTS, request("bob", "r", status={"state": "Granted", "lease": "r"})), "bob/r").request
    assert over is not None and over.answer is None and over.lease == "r"


def test_a_lease_has_its_end_its_renewal_and_its_revocation() -> None:
    found = of_lease(CLUSTER, "ada/train")
    assert found.lease.pods == ("ada/worker",) and found.idle_ms == 300_000
    assert (found.renewable_ms - NOW, found.renewed_ms - NOW) == (10 * MINUTE, 40 * MINUTE)
    revoked = of_lease(CLUSTER, "bob/small")
    assert revoked.lease.revocation is not None and (revoked.renewable_ms, revoked.renewed_ms) == (0, 0)


def test_the_request_that_led_to_a_lease_is_left_out_and_an_older_one_of_its_name_is_not() -> None:
    led = request("ada", "train", status={"state": "Granted"})
    led["metadata"]["uid"] = "r"
    assert leased((*CLUSTER, led), "ada/train").request is None
    other = leased((*CLUSTER, request("ada", "train")), "ada/train")
    assert other.lease is not None and other.request is not None and other.request.answer is not None
    assert "must be another name" in other.request.answer.message


def test_pods_that_name_a_lease_are_explained_with_it() -> None:
    worker = of_pod(CLUSTER, "ada/worker")
    assert (worker.state, worker.gpus) == ("Bound", (0, 1))
    assert worker.lease == PodLease("ada/train", "ada/ada", "Active", NOW + 20 * MINUTE, FENCE, FENCE)
    stale = of_pod(CLUSTER, "ada/stale")
    assert (stale.state, stale.code) == ("Never", "LeaseFenced") and stale.lease is not None
    assert (stale.lease.fence, stale.lease.shown) == (FENCE, 5)
    full = of_pod(CLUSTER, "ada/full")
    assert full.code == "LeaseFull" and full.expected is not None
    assert full.expected.basis == "no pod of its lease is expected to end before the lease does"
    missing = of_pod((*CLUSTER, pod("bob", "lost", 1, lease="gone")), "bob/lost")
    assert missing.code == "LeaseMissing" and missing.lease == PodLease("bob/gone", "", "", 0, 0, FENCE)


def test_placeholders_have_no_names_of_pods() -> None:
    state, objects = read(CLUSTER)
    for key in ("ada/train", "bob/many"):
        with pytest.raises(JobNotFound):
            why(state, key, NOW)
    assert why_lease(state, objects, "ada/nothing", NOW) == WhyLeases(None, None)


def test_a_queue_whose_first_job_is_a_request_is_explained() -> None:
    asked = request("bob", "r", {"count": 8, "perNode": 8})
    found = why_queue(read((*AGENTS, *HELD, asked))[0], "agents", NOW)
    assert found.reasons == (("NoNodeFits", 1),) and found.head is not None
    assert (found.head.pod, found.head.code) == ("bob/r", "NoNodeFits")


def test_the_position_of_a_request_in_the_queue_is_explained() -> None:
    idle = {"count": 8, "perNode": 8, "class": "Scavenger"}
    asked = (request("bob", "s", idle), request("ada", "r", {"count": 8, "perNode": 8}))
    state, _ = read((*AGENTS, *HELD, *asked))
    found = rank(state, "bob/s", NOW)
    assert (found.position, found.waiting, found.queue) == (2, 2, "planes/bob/bob")
    assert [(level.own, level.by) for level in found.levels] == [("agents", "alone"), ("planes/bob/bob", "class")]
    (before,) = found.before
    assert (before.job, before.by) == ("ada/r", "class")
    assert [term.queue for term in found.levels[1].terms] == ["planes/ada/ada", "planes/bob/bob"]
    # Its next lease counts as used: it comes after a plane that used more, and asks for less.
    many = rank(read(CLUSTER)[0], "bob/many", NOW)
    assert [term.queue for term in many.levels[1].terms] == ["planes/cy/cy", "planes/ada/ada", "planes/bob/bob"]
    early = request("bob", "r", {"earliest": "2026-01-31T13:00:00Z"})
    with pytest.raises(JobNotFound, match="in no queue now"):
        rank(read((*AGENTS, early))[0], "bob/r", NOW)


def test_what_a_request_would_be_offered_and_when() -> None:
    state, _ = read((*AGENTS, *HELD))
    for alternatives, starts_ms, granted in (
        (({"count": 8, "perNode": 8}, {"count": 2, "perNode": 2}), 0, "2 GPUs, on one node, for 10m, Burst"),
        (({"count": 8, "perNode": 8},), 20 * MINUTE, "8 GPUs, on one node, for 10m, Burst"),
    ):
        asked = cluster.of_documents([Manifest("x", request("bob", "new", *alternatives))], whole=False)
        change = submit(state, asked.events, NOW)
        (job,) = whatif(state, change, NOW).jobs
        assert (job.job, job.granted) == ("bob/new", granted) and job.after is not None
        assert job.after.start_ms - NOW == starts_ms
        assert job.offers[0].alternative == granted
        assert {place.pod for place in job.places} == {"bob/new"}
    again = cluster.of_documents([Manifest("x", request("ada", "all"))], whole=False)
    with pytest.raises(ChangeError, match="exists already"):
        submit(state, again.events, NOW)


def test_a_drain_by_hand_takes_no_lease_back_and_a_maintenance_does() -> None:
    state, _ = read((*AGENTS, *HELD, pod("ada", "worker", 2, "n1", "all", "0,1")))
    change = drain(state, ["n1"], NOW)
    assert "gpulease/ada/all stays on n1: a cordon takes no lease back, maintenance does" in change.notes
    assert not [event for event in change.events if isinstance(event, PodRemoved) and "lease/" in event.uid]
    (planned,) = drain_plan(state, ["n1"], Maintenance(drain="Evict"), NOW).nodes
    shown = {one.pod: (one.what, one.left_ms - NOW) for one in planned.pods}
    assert shown == {"gpulease/ada/all": ("is evicted", MINUTE), "ada/worker": ("is evicted", MINUTE + 30_000)}
    assert all("the lease is taken back" in one.basis for one in planned.pods)
