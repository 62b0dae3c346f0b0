# SPDX-License-Identifier: Apache-2.0
"""What `dovetail leases` prints, and parts of it for other commands."""

from __future__ import annotations

from dovetail.cli.columns import devices_of, lease_ends
from dovetail.cli.console import Console, Table, prose, right
from dovetail.cli.output import ago, count, foreign, gpus, span
from dovetail.core.queues.amounts import GPU
from dovetail.views.lease_types import LeaseRow, LeasesView, LeaseTotals, OfferRow, PlaneRow, RequestRow
from dovetail.views.names import some

_PODS_SHOWN = 2


def show(answer: LeasesView, console: Console) -> None:
    """Print the tables: leases, requests, control planes; and totals of what the user may not see."""
    if answer.planes or answer.requests or answer.leases:
        _show_own(answer, console)
    elif answer.elsewhere is None:
        console.print("There is no control plane of a software agent, no request for a lease, and no lease.")
    else:
        console.print("You have no control plane of a software agent, no request for a lease, and no lease.")
    if answer.elsewhere is not None:
        console.print(_elsewhere(answer.elsewhere))


def _elsewhere(totals: LeaseTotals) -> str:
    if not (totals.planes or totals.requests or totals.leases):
        return "Other namespaces have none."
    return (
        f"Other namespaces have {count(totals.planes, 'control plane')} with {count(totals.leases, 'lease')} "
        f"({gpus(totals.gpus_milli)} GPUs), and {count(totals.requests, 'request')}."
    )


def _show_own(answer: LeasesView, console: Console) -> None:
    if answer.leases:
        console.print("Leases:")
        table = Table("lease", "plane", "class", prose("devices"), "state", "ends", "renewals", prose("pods inside"))
        for lease in answer.leases:
            table.add_row(
                foreign(lease.lease), foreign(lease.plane), foreign(lease.service), devices(lease), _state(lease),
                lease_ends(lease, answer.now_ms), str(lease.renewals), foreign(some(lease.pods, _PODS_SHOWN)) or "none",
            )  # fmt: skip
        console.print(table)
        for lease in answer.leases:
            for line in notes(lease, answer.now_ms):
                console.print(f"{foreign(lease.lease)} {line}")
    else:
        console.print("No lease is live.")
    if answer.requests:
        console.print("Requests:")
        table = Table(
            "request", "plane", prose("first alternative"), "state", "waiting", prose("why, or what is offered")
        )
        for request in answer.requests:
            table.add_row(
                foreign(request.request), foreign(request.plane), _alternatives(request),
                foreign(request.state) or "new", ago(request.since_ms, answer.now_ms), _why(request, answer.now_ms),
            )  # fmt: skip
        console.print(table)
        offered(answer.requests, answer.now_ms, console)
    else:
        console.print("No request waits.")
    _planes(answer, console)


def devices(lease: LeaseRow) -> str:
    """What a lease is of, as in `columns`."""
    return foreign(devices_of(lease))


def _state(lease: LeaseRow) -> str:
    return foreign(lease.state) or "new"


def notes(lease: LeaseRow, now_ms: int) -> list[str]:
    """Sentences about a lease, without its name before them."""
    found: list[str] = []
    gone = lease.revocation
    if lease.cause:
        found.append(f"has ended: {foreign(lease.cause)}.")
    elif gone is not None:
        left = f"{span(gone.deadline_ms - now_ms)} are left" if gone.deadline_ms > now_ms else "the deadline has passed"
        more = f": {foreign(gone.message)}" if gone.message else ""
        found.append(f"is taken back ([bold]{foreign(gone.cause)}[/bold]), {left}{more}.")
    if lease.refused:
        found.append(f"had its last action refused: {foreign(lease.refused)}.")
    if lease.waiting:
        wait = "waits" if len(lease.waiting) == 1 else "wait"
        found.append(f"is named by {foreign(some(lease.waiting))}, which {wait}.")
    if lease.problem:
        found.append(f"is no lease that the scheduler wrote: {foreign(lease.problem)}.")
    return found


def _alternatives(request: RequestRow) -> str:
    first = request.alternatives[0] if request.alternatives else "none"
    others = len(request.alternatives) - 1
    return foreign(first) + (f", or {count(others, 'other')}" if others > 0 else "")


def _why(request: RequestRow, now_ms: int) -> str:
    """Why it waits, or how long its offers stand."""
    parts = []
    if request.offers:
        left_ms = request.offers_until_ms - now_ms
        stand = f"for {span(left_ms)} more" if left_ms > 0 else "no more, and are not answered"
        verb = "stands" if len(request.offers) == 1 else "stand"
        parts.append(f"{count(len(request.offers), 'offer')}, which {verb} {stand}")
    if request.code:
        parts.append(f"{foreign(request.code)}: {foreign(request.message)}")
    if request.expected_start_ms > now_ms:
        parts.append(f"it starts in {span(request.expected_start_ms - now_ms)} at the latest")
    if request.tried_ms > now_ms:
        parts.append(f"tried again in {span(request.tried_ms - now_ms)}")
    if not request.current:
        parts.append("the request was changed after that")
    return "; ".join(parts) or "the scheduler has not read it yet"


def offered(requests: tuple[RequestRow, ...], now_ms: int, console: Console) -> None:
    """Print the outstanding offers of these requests."""
    if not any(request.offers for request in requests):
        return
    console.print("Offers:")
    table = Table("offer", "starts", prose("what"), prose("why nothing better"))
    for request in requests:
        for offer in request.offers:
            starts = offer_start(offer, now_ms)
            table.add_row(foreign(offer.id), starts, foreign(offer.alternative), foreign(offer.why) or "-")
    console.print(table)


def offer_start(offer: OfferRow, now_ms: int) -> str:
    """When what is offered starts at the latest."""
    return f"in {span(offer.start_ms - now_ms)}" if offer.start_ms > now_ms else "now"


def _planes(answer: LeasesView, console: Console) -> None:
    if not answer.planes:
        return
    console.print("Control planes:")
    table = Table(
        "plane", "queue", "phase", right("GPUs held"), right("limit"), right("weight"), right("credit"),
        right("leases"), right("requests"), "heard", prose("what is wrong"),
    )  # fmt: skip
    for one in answer.planes:
        limit = gpus(dict(one.limit)[GPU]) if GPU in dict(one.limit) else "-"
        credit = f"{one.credit_gpu_hours:+.1f}" if one.credit_gpu_hours is not None else "-"
        counts = (f"{one.leases} of {one.most_leases}", f"{one.requests} of {one.most_requests}")
        table.add_row(
            foreign(one.plane), foreign(one.queue), foreign(one.phase) or "new", gpus(dict(one.held).get(GPU, 0)),
            limit, str(one.weight), credit, *counts,
            _heard(one, answer.now_ms), foreign(one.message) or "-",
        )  # fmt: skip
    console.print(table)


def _heard(one: PlaneRow, now_ms: int) -> str:
    if not one.heartbeat_ms:
        return "not expected"
    return f"{span(max(0, now_ms - one.heard_ms))} ago" if one.heard_ms else "never"
