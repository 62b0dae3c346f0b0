# SPDX-License-Identifier: Apache-2.0
"""`dovetail why` for requests for leases, and for leases."""

from __future__ import annotations

from dovetail.cli.columns import lease_ends
from dovetail.cli.console import Console, Table, prose
from dovetail.cli.leases_report import devices, notes, offered
from dovetail.cli.output import count, foreign, span
from dovetail.views.forecast_types import PLACED
from dovetail.views.names import some
from dovetail.views.why_types import WhyLease, WhyRequest


def show_request(answer: WhyRequest, now_ms: int, console: Console) -> None:
    """Print what the scheduler wrote about a request, and what each alternative could have now. Why it waits is
    printed as for a job."""
    row = answer.written
    state = foreign(row.state) or "not read by the scheduler yet"
    firm = ", which takes the first that it can have without an offer" if row.firm else ""
    console.print(f"Request [bold]{foreign(row.request)}[/bold] of {foreign(row.plane)}{firm}: {state}.")
    if row.code:
        console.print(f"The scheduler wrote: [bold]{foreign(row.code)}[/bold]: {foreign(row.message)}")
    if answer.lease:
        console.print(f"It led to the lease {foreign(answer.lease)}, which is over.")
    if row.tried_ms > now_ms:
        console.print(f"It is tried again in {span(row.tried_ms - now_ms)}.")
    if row.offers:
        left_ms = row.offers_until_ms - now_ms
        stands, does = ("stands", "does") if len(row.offers) == 1 else ("stand", "do")
        until = f"{stands} for {span(left_ms)} more" if left_ms > 0 else f"{does} not stand any more"
        console.print(f"It has {count(len(row.offers), 'offer')}, which {until}.")
        offered((row,), now_ms, console)
    if answer.answer is not None and answer.answer.state == PLACED:
        how = "grants" if row.firm else "offers"
        console.print(f"The next step of the scheduler {how} it devices on {foreign(answer.answer.node)}.")
    if answer.alternatives:
        console.print("Each alternative now, if it was the only one:")
        table = Table("", prose("alternative"), "now", prose("what, or why not"))
        for number, one in enumerate(answer.alternatives):
            what = one.granted or (f"{one.code}: {one.message}" if one.code else "")
            table.add_row(str(number), foreign(one.alternative), "yes" if one.granted else one.state, foreign(what))
        console.print(table)


def show_lease(answer: WhyLease, now_ms: int, console: Console) -> None:
    """Print how long a lease lasts and why, and what runs inside."""
    row = answer.lease
    state = foreign(row.state) or "not read by the scheduler yet"
    console.print(
        f"Lease [bold]{foreign(row.lease)}[/bold] of {foreign(row.plane)}: {devices(row)}, {foreign(row.service)}; "
        f"{state}, ends {lease_ends(row, now_ms)}."
    )
    for line in notes(row, now_ms):
        console.print(f"It {line}")
    if answer.renewable_ms > now_ms:
        console.print(f"It can be renewed in {span(answer.renewable_ms - now_ms)}, in the last third of its term.")
    elif answer.renewable_ms:
        console.print(f"It can be renewed now, for {span(answer.renewed_ms - now_ms)} at most.")
    console.print(f"Its fence is {row.fence}; it was renewed {count(row.renewals, 'time')}.")
    if row.pods:
        console.print(f"Inside {'runs' if len(row.pods) == 1 else 'run'} {foreign(some(row.pods))}.")
    elif not row.cause and row.revocation is None:
        idle = f"; after {span(answer.idle_ms)} without one it is taken back" if answer.idle_ms else ""
        console.print(f"No pod runs inside{idle}.")
