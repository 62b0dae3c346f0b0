# SPDX-License-Identifier: Apache-2.0
"""The negotiation on a cluster: what agents write is decided, and what is decided is written, through kills and
errors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import datetime
from functools import partial
from typing import Any

import pytest
from msgspec import structs
from prometheus_client import REGISTRY

from dovetail.core.policy import Policy
from dovetail.kube.api.config import ClusterConfig
from dovetail.kube.reading.state import read_cluster
from dovetail.playground.faults import Fault
from dovetail.scheduler import driver, lease_api, lease_writer, ordered_writes
from dovetail.scheduler.lease_writer import LeaseWriter
from dovetail.scheduler.metrics import LEASE_ENDS
from tests.scheduler.leased import LEASES, PLANES, REQUESTS, LeasedCluster

pytestmark = pytest.mark.usefixtures("no_waits")


@pytest.fixture
async def cluster(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LeasedCluster]:
    monkeypatch.setattr(ordered_writes, "_AGAIN_S", 0.02)
    async with LeasedCluster.opened("one", "two") as cluster:
        yield cluster


@pytest.fixture
def writers(monkeypatch: pytest.MonkeyPatch) -> list[LeaseWriter]:
    """Those of the schedulers, in the order in which they are made."""
    made: list[LeaseWriter] = []

    class Kept(LeaseWriter):
        def __init__(self, *positional: Any, **named: Any) -> None:
            super().__init__(*positional, **named)
            made.append(self)

    monkeypatch.setattr(driver, "LeaseWriter", Kept)
    return made


async def test_an_offer_is_accepted_and_the_lease_is_returned(cluster: LeasedCluster) -> None:
    async with cluster.scheduler():
        cluster.ask("one", "train", {"count": 4, "perNode": 4, "duration": "30m"})
        await cluster.offered("one", "train")
        status = cluster.request("one", "train")
        assert status["observedGeneration"] == 1
        assert status["offers"][0]["now"] and status["offers"][0]["alternative"]["count"] == 4
        cluster.answer("one", "train", "accept")
        await cluster.until(lambda: cluster.state("one", "train") == "Active")
        await cluster.until(lambda: cluster.request("one", "train").get("state") == "Granted")
        spec = cluster.lease("one", "train")["spec"]
        assert len(spec["devices"]) == 4 and len({one["node"] for one in spec["devices"]}) == 1
        await cluster.until(lambda: cluster.plane_status("one").get("leases") == 1)
        assert cluster.plane_status("one")["held"] == {"gpu": "4"}
        cluster.act("one", "train", 1, "return")
        await cluster.until(lambda: not cluster.lease("one", "train"))
        await cluster.until(lambda: cluster.plane_status("one").get("leases") == 0)
        assert int(cluster.plane_status("one")["usage"]["used"]) > 0


async def test_a_pod_is_inside_of_its_lease_for_whatever_reads_the_cluster_later(cluster: LeasedCluster) -> None:
    async with cluster.scheduler():
        spec = await cluster.lease_of("one", "train", {"count": 4, "perNode": 4, "duration": "1h"})
        cluster.pod("one", "works", 2, "train", spec["fence"])
        await cluster.until(lambda: cluster.node_of("one", "works"))
    state = (await read_cluster(ClusterConfig(cluster.playground.url), Policy(), "dovetail")).state
    (parts,) = state.leases.live["one/train"].inside.values()
    assert {gpu for part in parts for gpu in part.devices} < {one.get("gpu", 0) for one in spec["devices"]}
    assert sum(int(bits).bit_count() for bits in state.cluster.nodes.gpu_free_bits) == 12


async def test_answers_and_renewals_are_counted(cluster: LeasedCluster) -> None:
    def counted(name: str, label: str) -> float:
        (key,) = ("result",) if "renewals" in name else ("answer",)
        return REGISTRY.get_sample_value(name, {key: label}) or 0.0

    answers = ("accept", "decline", "counter", "lapsed")
    before = {answer: counted("dovetail_lease_answers_total", answer) for answer in answers}
    refused = counted("dovetail_lease_renewals_total", "refused")
    async with cluster.scheduler(policy=Policy(offer_ms=400)):
        cluster.ask("one", "lapses", {"duration": "30m"})
        await cluster.until(lambda: cluster.request("one", "lapses").get("state") == "BackingOff")
        cluster.playground.delete(REQUESTS, "one", "lapses")
    lapsed = counted("dovetail_lease_answers_total", "lapsed")
    assert lapsed > before["lapsed"]
    # The other offers stand for longer than a loaded machine takes to answer.
    before["lapsed"] = lapsed - 1
    async with cluster.scheduler():
        cluster.ask("one", "declined", {"duration": "30m"})
        await cluster.offered("one", "declined")
        cluster.answer("one", "declined", "decline")
        await cluster.until(lambda: cluster.request("one", "declined").get("state") == "BackingOff")
        cluster.ask("two", "train", {"count": 2, "duration": "30m"})
        await cluster.offered("two", "train")
        cluster.answer("two", "train", "counter", counter={"count": 1, "duration": "30m"})
        await cluster.until(lambda: cluster.request("two", "train")["offers"][0]["alternative"]["count"] == 1)
        cluster.answer("two", "train", "accept")
        await cluster.until(lambda: cluster.state("two", "train") == "Active")
        cluster.act("two", "train", 1, "renew", until="2100-01-01T00:00:00Z")
        await cluster.until(lambda: "refused" in cluster.lease("two", "train")["status"])
    for answer in answers:
        assert counted("dovetail_lease_answers_total", answer) == before[answer] + 1, answer
    assert counted("dovetail_lease_renewals_total", "refused") == refused + 1


async def test_a_pod_runs_on_the_devices_of_its_lease_and_ends_with_it(cluster: LeasedCluster) -> None:
    async with cluster.scheduler():
        spec = await cluster.lease_of("one", "train", {"count": 2, "perNode": 2, "duration": "1h"})
        cluster.pod("one", "stale", 1, "train", spec["fence"] - 1)
        cluster.pod("one", "none", 1)
        cluster.pod("two", "forged", 1, "train", spec["fence"])
        cluster.pod("one", "works", 2, "train", spec["fence"], terminationGracePeriodSeconds=86_400)
        await cluster.until(lambda: cluster.node_of("one", "works"))
        pod = cluster.playground.store.get("pods", "one", "works")
        assert pod is not None
        assert pod["spec"]["nodeName"] == spec["devices"][0]["node"]
        for agent, name, reason in (("one", "stale", "fence"), ("one", "none", "lease"), ("two", "forged", "lease")):
            await cluster.until(partial(_condition, cluster, agent, name))
            assert reason in _condition(cluster, agent, name)
            assert cluster.node_of(agent, name) == ""
        cluster.act("one", "train", 1, "return")
        await cluster.until(lambda: _deleting(cluster, "one", "works"))
        await cluster.until(lambda: not cluster.lease("one", "train"))


@pytest.mark.slow
@pytest.mark.parametrize("carried_out, inside", [(False, True), (True, False), (False, False)])
async def test_killed_at_each_write_the_next_process_finishes_it(
    cluster: LeasedCluster, carried_out: bool, inside: bool
) -> None:
    """From the request to the return, at the first, second, ... write of the first process. `inside`: a pod runs in the
    lease at its end. It is charged until it is gone; else what is charged is what the leases were, to the millisecond.
    """
    due = 0
    for number in range(1, 30):
        name = f"lease-{number}"
        async with cluster.scheduler():
            await cluster.settled()
            cluster.playground.faults.cut_off_at_write(number, carried_out=carried_out)
            finished, charge = await _lived(cluster, name, inside, until_cut_off=True)
        cluster.playground.faults.clear()
        if finished:
            break
        async with cluster.scheduler():
            finished, charge_after = await _lived(cluster, name, inside, until_cut_off=False)
            due += charge_after or charge
            assert finished
        assert cluster.playground.store.list(LEASES) == []
        days = cluster.plane_status("one")["usage"]["days"]
        used = sum(int(day["used"]) for day in days)
        assert (used >= due) if inside else (used == due)
    assert number > 5 and due > 0


async def _lived(cluster: LeasedCluster, name: str, inside: bool, *, until_cut_off: bool) -> tuple[bool, int]:
    """The agent takes the next step whenever it can: whether it comes to the end, and what the lease is to charge, in
    milli-GPU times ms."""
    charge = 0
    playground = cluster.playground
    while not (until_cut_off and playground.faults.cut_off.is_set()):
        await asyncio.sleep(0.002)
        state, request = cluster.state("one", name), playground.store.get(REQUESTS, "one", name)
        pod = playground.store.get("pods", "one", name)
        devices = [
            (one["node"], one["gpu"]) for lease in playground.store.list(LEASES) for one in lease["spec"]["devices"]
        ]
        assert len(devices) == len(set(devices))
        if request is None and not pod:
            cluster.ask("one", name, {"count": 2, "perNode": 2, "class": "Scavenger"}, firm=True)
        elif state == "Active" and cluster.request("one", name).get("state") == "Granted":
            if pod is None and inside:
                cluster.pod("one", name, 2, name, cluster.lease("one", name)["spec"]["fence"])
            elif (cluster.node_of("one", name) or not inside) and "action" not in cluster.lease("one", name)["spec"]:
                cluster.act("one", name, 1, "return")
        if state == "Ended":
            lease = cluster.lease("one", name)
            start, end = (datetime.fromisoformat(one) for one in (lease["spec"]["start"], lease["status"]["ended"]))
            charge = lease["status"]["rate"] * round((end - start).total_seconds() * 1000)
        elif request and request.get("status", {}).get("state") == "Granted" and not state and not pod:
            playground.delete(REQUESTS, "one", name)
            return True, charge
    return False, charge


async def test_errors_of_the_server_delay_a_lease_and_lose_nothing(cluster: LeasedCluster) -> None:
    async with cluster.scheduler():
        for method, resource in (
            ("POST", "gpuleases"),
            ("PATCH", "gpuleases/status"),
            ("PATCH", "leaserequests/status"),
        ):
            cluster.playground.faults.add(Fault("answer", method, resource, "train|", times=3, status=503))
        cluster.ask("one", "train", {"duration": "1h"}, firm=True)
        await cluster.until(lambda: cluster.state("one", "train") == "Active")
        await cluster.until(lambda: cluster.request("one", "train").get("state") == "Granted")


async def test_a_lease_that_the_server_refuses_is_no_lease_and_its_request_begins_again(
    cluster: LeasedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_writer, "_BEGIN_AGAIN_S", 0.1)
    async with cluster.scheduler():
        cluster.playground.faults.add(Fault("answer", "POST", "gpuleases", times=2, status=403))
        cluster.ask("one", "train", {"duration": "1h"}, firm=True)
        await cluster.until(lambda: cluster.state("one", "train") == "Active")
        await cluster.until(lambda: cluster.request("one", "train").get("state") == "Granted")
        await cluster.until(lambda: cluster.plane_status("one").get("leases") == 1)
        cluster.act("one", "train", 1, "return")
        await cluster.until(lambda: not cluster.lease("one", "train"))
        used = _used(cluster.plane_status("one")["usage"])
        assert 60_000 * 1000 <= used < 2 * 60_000 * 1000, "those that were refused are not charged a minute each"


async def test_no_device_is_in_two_leases_although_an_end_is_written_late(cluster: LeasedCluster) -> None:
    async with cluster.scheduler():
        first = await cluster.lease_of("one", "whole", {"count": 16, "perNode": 8, "duration": "1h"})
        cluster.playground.faults.add(Fault("answer", "PATCH", "gpuleases/status", "whole", times=5, status=503))
        cluster.ask("two", "next", {"count": 8, "perNode": 8, "duration": "1h"}, firm=True)
        cluster.act("one", "whole", 1, "return")
        seen = []
        while cluster.state("two", "next") != "Active":
            if cluster.lease("two", "next"):
                seen.append(cluster.state("one", "whole"))
            await asyncio.sleep(0.002)
        assert set(seen) <= {"Ended", ""}
        assert len(first["devices"]) == 16


def _expired() -> float:
    # Of this counter alone: there are hundreds, and a test that waits asks every few milliseconds.
    samples = [one for family in LEASE_ENDS.collect() for one in family.samples]
    return sum(one.value for one in samples if one.name.endswith("_total") and one.labels == {"cause": "Expired"})


@pytest.mark.slow
async def test_leases_that_are_over_before_they_are_made_block_no_later_ones(
    cluster: LeasedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of them, on the same devices one after the other, while the end of an earlier one cannot be written."""
    monkeypatch.setattr(ordered_writes, "_AGAIN_MAX_S", 0.1)
    whole = {"count": 16, "perNode": 8}
    async with cluster.scheduler():
        await cluster.lease_of("one", "first", whole | {"duration": "1h"})
        cluster.playground.faults.add(Fault("answer", "PATCH", "gpuleases/status", "first", times=1000, status=503))
        before = _expired()
        cluster.act("one", "first", 1, "return")
        for name in ("second", "third"):
            cluster.ask("two", name, whole | {"duration": "1s"}, firm=True)
        await cluster.until(lambda: _expired() == before + 2)
        cluster.playground.faults.clear()
        await cluster.lease_of("one", "last", whole | {"duration": "1h"})


async def test_a_lease_that_is_refused_when_it_is_over_blocks_no_later_ones(
    cluster: LeasedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a quota of the agent's namespace refuses it."""
    monkeypatch.setattr(ordered_writes, "_AGAIN_MAX_S", 0.1)
    whole = {"count": 16, "perNode": 8}
    async with cluster.scheduler():
        await cluster.lease_of("one", "first", whole | {"duration": "1h"})
        cluster.playground.faults.add(Fault("answer", "PATCH", "gpuleases/status", "first", times=1000, status=503))
        before = _expired()
        cluster.act("one", "first", 1, "return")
        cluster.ask("two", "second", whole | {"duration": "1s"}, firm=True)
        await cluster.until(lambda: _expired() == before + 1)
        cluster.playground.faults.clear()
        refused = cluster.playground.faults.add(Fault("answer", "POST", "gpuleases", status=403))
        await cluster.until(lambda: not refused.times)
        await cluster.lease_of("one", "last", whole | {"duration": "1h"})


TOO_LARGE = "etcdserver: request is too large"


@pytest.mark.parametrize("refusal", [Fault("answer", status=403), Fault("answer", status=500, message=TOO_LARGE)])
async def test_a_request_whose_status_is_refused_holds_up_neither_its_lease_nor_those_of_others(
    cluster: LeasedCluster, monkeypatch: pytest.MonkeyPatch, refusal: Fault
) -> None:
    """As an agent can fill its request."""
    monkeypatch.setattr(ordered_writes, "_AGAIN_MAX_S", 0.1)
    whole = {"count": 16, "perNode": 8}
    async with cluster.scheduler():
        fault = structs.replace(refusal, verb="PATCH", resource="leaserequests/status", name="full", times=1000)
        cluster.playground.faults.add(fault)
        await cluster.lease_of("one", "full", whole | {"duration": "1s"})
        await cluster.lease_of("two", "next", whole | {"duration": "1h"})
        await cluster.until(lambda: not cluster.lease("one", "full"))
        assert "state" not in cluster.request("one", "full")


@pytest.mark.parametrize(
    "refusal",
    [
        Fault("answer", status=403),
        Fault("answer", status=422),
        Fault("answer", status=413),
        Fault("answer", status=500, message=TOO_LARGE),
    ],
    ids=lambda fault: str(fault.status),
)
@pytest.mark.slow
async def test_a_lease_whose_end_is_refused_is_deleted_and_its_devices_go_to_others(
    cluster: LeasedCluster, refusal: Fault
) -> None:
    whole = {"count": 16, "perNode": 8, "duration": "1h"}
    async with cluster.scheduler():
        spec = await cluster.lease_of("one", "first", whole)
        cluster.pod("one", "works", 8, "first", spec["fence"])
        await cluster.until(lambda: cluster.node_of("one", "works"))
        cluster.act("one", "first", 1, "return")
        fault = structs.replace(refusal, verb="PATCH", resource="gpuleases/status", name="first", times=1000)
        cluster.playground.faults.add(fault)
        cluster.ask("two", "next", whole, firm=True)
        await cluster.until(lambda: cluster.lease("two", "next"))
        assert not cluster.lease("one", "first")
        await cluster.until(lambda: cluster.node_of("one", "works") == "gone")
        await cluster.until(lambda: cluster.plane_status("one").get("leases") == 0)
        assert _used(cluster.plane_status("one")["usage"]) >= 60_000 * 16 * 1000
        assert fault.times >= 998


async def test_a_lease_that_waits_for_the_status_of_a_plane_goes_with_the_plane(cluster: LeasedCluster) -> None:
    async with cluster.scheduler():
        await cluster.lease_of("one", "train", {"duration": "1h"})
        await cluster.settled()
        cluster.playground.faults.add(Fault("answer", "PATCH", "agentcontrolplanes/status", times=1000, status=503))
        cluster.act("one", "train", 1, "return")
        await cluster.until(lambda: cluster.state("one", "train") == "Ended")
        await asyncio.sleep(0.2)
        cluster.playground.delete(PLANES, "one", "one")
        await cluster.until(lambda: not cluster.lease("one", "train"))


async def test_of_requests_that_are_gone_nothing_is_kept(cluster: LeasedCluster, writers: list[LeaseWriter]) -> None:
    async with cluster.scheduler():
        cluster.ask("one", "train", {"duration": "30m"})
        await cluster.offered("one", "train")
        assert writers[0]._requests
        cluster.playground.delete(REQUESTS, "one", "train")
        await cluster.until(lambda: not writers[0]._requests and not writers[0]._answers)


async def test_the_next_leader_knows_what_was_charged_while_it_followed(cluster: LeasedCluster) -> None:
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(cluster.scheduler(leader_elect=True, identity="first"))
        await cluster.settled()
        await stack.enter_async_context(cluster.scheduler(leader_elect=True, identity="second"))
        await asyncio.sleep(0.5)
        await cluster.lease_of("one", "train", {"count": 4, "perNode": 4, "duration": "1h"})
        cluster.act("one", "train", 1, "return")
        await cluster.until(lambda: not cluster.lease("one", "train"))
        await cluster.until(lambda: _used(_queue(cluster)["usage"]) >= 240_000_000)
        first.cancel()
        as_of, queue_as_of = cluster.plane_status("one")["usage"]["asOf"], _queue(cluster)["usage"]["asOf"]
        await asyncio.gather(first, return_exceptions=True)
        await cluster.lease_of("one", "again", {"duration": "1h"})
        await cluster.until(lambda: cluster.plane_status("one").get("leases") == 1)
        assert cluster.plane_status("one")["usage"]["asOf"] > as_of
        assert _used(cluster.plane_status("one")["usage"]) >= 240_000_000
        await cluster.until(lambda: _queue(cluster)["usage"]["asOf"] > queue_as_of)
        assert _used(_queue(cluster)["usage"]) >= 240_000_000


def _queue(cluster: LeasedCluster) -> dict[str, Any]:
    return dict((cluster.playground.store.get("queues.dovetail.dev", "", "agents") or {})["status"])


def _used(usage: dict[str, Any]) -> int:
    """Milli-GPU times ms: a minute of 4 GPUs is the least that a lease is charged."""
    return sum(int(day["used"]) for day in usage["days"])


@pytest.mark.parametrize("written", [True, False])
@pytest.mark.slow
async def test_a_lease_that_is_first_read_when_it_is_over_is_charged_once(
    cluster: LeasedCluster, writers: list[LeaseWriter], written: bool
) -> None:
    """By a list, as after a broken watch: its end is in the API by then, or is not `written` yet."""
    faults = cluster.playground.faults
    async with cluster.scheduler():
        await cluster.settled()
        faults.lose_events("gpuleases", 1000)
        held_back = "agentcontrolplanes/status" if written else "gpuleases/status"
        faults.add(Fault("answer", "PATCH", held_back, times=10_000, status=503))
        before = _expired()
        cluster.ask("one", "train", {"duration": "1s"}, firm=True)
        await cluster.until(lambda: _expired() == before + 1)
        await cluster.until(lambda: cluster.state("one", "train") == ("Ended" if written else ""))
        known = writers[0]._mirror.gpu_leases.known
        assert not known
        faults.lose_events("gpuleases", 0)
        faults.expire_history()
        faults.break_watches()
        await cluster.until(lambda: known)
        await asyncio.sleep(0.3)
        assert not writers[0]._state().leases.live
        faults.clear()
        await cluster.until(lambda: not cluster.lease("one", "train"))
        await cluster.settled()
        assert _used(cluster.plane_status("one")["usage"]) == 60_000 * 1000
    assert _expired() == before + 1


async def test_a_request_leads_to_one_lease_although_its_status_is_read_after_the_end_of_that(
    cluster: LeasedCluster, writers: list[LeaseWriter]
) -> None:
    """As when the watch of requests breaks: it is back some seconds later than that of leases."""
    faults = cluster.playground.faults
    async with cluster.scheduler():
        held_back = faults.add(Fault("answer", "PATCH", "leaserequests/status", times=10_000, status=503))
        await cluster.lease_of("one", "train", {"duration": "1h"})
        await cluster.until(lambda: writers[0]._mirror.gpu_leases.known)
        faults.lose_events("leaserequests", 1000)
        held_back.times = 0
        await cluster.until(lambda: cluster.request("one", "train").get("state") == "Granted")
        cluster.act("one", "train", 1, "return")
        await cluster.until(lambda: not cluster.lease("one", "train"))
        await cluster.until(lambda: not writers[0]._mirror.gpu_leases.known)
        await cluster.settled()
        assert not cluster.lease("one", "train")
        assert _used(cluster.plane_status("one")["usage"]) == 60_000 * 1000


async def test_a_request_whose_lease_is_over_when_the_next_process_reads_it_is_granted(cluster: LeasedCluster) -> None:
    """The first process ended between the lease and the status of its request."""
    faults = cluster.playground.faults
    faults.add(Fault("answer", "PATCH", "leaserequests/status", times=10_000, status=503))
    async with cluster.scheduler():
        await cluster.lease_of("one", "train", {"duration": "1s"})
    await asyncio.sleep(1)
    faults.clear()
    async with cluster.scheduler():
        await cluster.until(lambda: not cluster.lease("one", "train"))
        await cluster.settled()
        assert cluster.request("one", "train") == {"observedGeneration": 1, "state": "Granted", "lease": "train"}


async def test_a_revoked_lease_has_its_deadline_and_a_deleted_plane_loses_its_leases(cluster: LeasedCluster) -> None:
    async with cluster.scheduler():
        await cluster.lease_of("one", "train", {"duration": "1h"})
        cluster.playground.delete(PLANES, "one", "one")
        await cluster.until(lambda: cluster.state("one", "train") == "Revoking")
        revocation = cluster.lease("one", "train")["status"]["revocation"]
        assert revocation["cause"] == "PlaneDeleted" and revocation["deadline"]


def _condition(cluster: LeasedCluster, namespace: str, name: str) -> str:
    pod = cluster.playground.store.get("pods", namespace, name) or {}
    conditions = pod.get("status", {}).get("conditions", [])
    return next((one["message"] for one in conditions if one.get("reason") == "Unschedulable"), "")


def _deleting(cluster: LeasedCluster, namespace: str, name: str) -> bool:
    pod = cluster.playground.store.get("pods", namespace, name)
    if pod is None:
        return True
    return bool(pod["metadata"].get("deletionGracePeriodSeconds", 10**9) <= lease_api.ENDED_GRACE_S)


async def test_a_lease_that_came_and_went_between_two_statuses_of_its_plane_leaves_no_object(
    cluster: LeasedCluster,
) -> None:
    async with cluster.scheduler():
        for number in range(5):
            await cluster.lease_of("one", f"short-{number}", {"duration": "1h"})
            cluster.act("one", f"short-{number}", 1, "return")
            await cluster.until(lambda number=number: not cluster.lease("one", f"short-{number}"))


async def test_a_scheduler_ends_in_order_with_the_statuses_that_leases_wait_for(cluster: LeasedCluster) -> None:
    for number in range(3):
        async with cluster.scheduler() as scheduler:
            await cluster.lease_of("one", f"held-{number}", {"duration": "1h"})
            cluster.act("one", f"held-{number}", 1, "return")
            await cluster.until(lambda number=number: cluster.state("one", f"held-{number}") in ("Ended", ""))
        assert scheduler.cancelled()


async def test_a_request_of_the_name_of_one_whose_lease_is_being_made_has_a_lease_of_its_own(
    cluster: LeasedCluster,
) -> None:
    faults = cluster.playground.faults
    async with cluster.scheduler():
        held_back = faults.add(Fault("answer", "POST", "gpuleases", "train|", times=10_000, status=503))
        cluster.ask("one", "train", {"count": 16, "perNode": 8, "duration": "1h"}, firm=True)
        await cluster.until(lambda: held_back.times < 10_000)
        cluster.playground.delete(REQUESTS, "one", "train")
        cluster.ask("one", "train", {"count": 1, "duration": "1h"}, firm=True)
        await asyncio.sleep(20)
        faults.clear()
        await cluster.until(lambda: cluster.state("one", "train") == "Active")
        await cluster.settled()
        assert len(cluster.lease("one", "train")["spec"]["devices"]) == 16
        assert cluster.request("one", "train")["state"] == "Denied"
        cluster.act("one", "train", 1, "return")
        await cluster.until(lambda: cluster.request("one", "train").get("state") == "Granted")
        await cluster.until(lambda: cluster.state("one", "train") == "Active")
        assert len(cluster.lease("one", "train")["spec"]["devices"]) == 1


async def test_a_lease_that_the_last_leader_made_late_does_not_end_that_of_the_next(cluster: LeasedCluster) -> None:
    """Its request was under way when the next one granted the same request."""
    faults = cluster.playground.faults
    async with cluster.scheduler():
        await cluster.lease_of("one", "other", {"count": 1, "duration": "1h"})
        held_back = faults.add(Fault("answer", "POST", "gpuleases", "train|", times=10_000, status=503))
        cluster.ask("one", "train", {"count": 1, "duration": "1h"}, firm=True)
        await cluster.until(lambda: held_back.times < 10_000)
        uid = cluster.playground.store.get(REQUESTS, "one", "train")["metadata"]["uid"]
        late = cluster.lease("one", "other")["spec"] | {"requestUid": uid, "fence": 1}
        kind = {"apiVersion": "dovetail.dev/v1alpha1", "kind": "GPULease"}
        cluster.playground.put(kind | {"metadata": {"name": "train", "namespace": "one"}, "spec": late})
        await asyncio.sleep(0.3)
        faults.clear()
        await cluster.until(lambda: cluster.lease("one", "train").get("spec", late)["fence"] > 1)
        await cluster.settled()
        assert cluster.state("one", "train") == "Active"
