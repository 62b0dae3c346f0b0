# SPDX-License-Identifier: Apache-2.0
"""What `dovetail whatif` prints."""

from __future__ import annotations

from collections.abc import Iterator

from dovetail.cli.change_prices import ChangePrice, PricedJob, PricedNodes, PricedWhatIf
from dovetail.cli.console import Console, Table, prose
from dovetail.cli.leases_report import offer_start
from dovetail.cli.markup import escape
from dovetail.cli.money import money, price_of, unpriced
from dovetail.cli.output import LOOK_AHEAD_ENDED, count, foreign, gpus, indices, span, start
from dovetail.core.reasons import Expected, When
from dovetail.views.forecast_types import ForecastVictim
from dovetail.views.names import some
from dovetail.views.whatif_types import WhatIf, WhatifOutcome

_NODES_SHOWN = 3
_MOST_ROWS = 40


def show(answer: PricedWhatIf, console: Console) -> None:
    """Print the differences, and what the change costs."""
    if answer.jobs:
        table = Table("job", "queue", "GPUs", "effect", "without", "with", prose("where, or why not"))
        console.print_rows(table, [_row(one, answer.now_ms) for one in answer.jobs], _MOST_ROWS)
    else:
        whose = "waiting jobs of yours" if answer.elsewhere else "waiting jobs"
        console.print(f"The change makes no difference to {whose}.")
    _offers(answer, console)
    _victims(answer.evicted, "Evicted only with the change:", answer.now_ms, console)
    _victims(answer.spared, "Evicted only without the change:", answer.now_ms, console)
    if answer.queues:
        console.print("GPUs after the next step of the scheduler:")
        table = Table("queue", "without", "with")
        for gain in answer.queues:
            table.add_row(gain.queue, gpus(gain.before_milli), gpus(gain.after_milli))
        console.print(table)
    if answer.unchanged and answer.jobs:
        console.print(f"The change makes no difference to {count(answer.unchanged, 'other waiting job')}.")
    if answer.elsewhere:
        console.print(f"The change makes a difference to {count(answer.elsewhere, 'job')} of other namespaces.")
    if answer.price is None:
        console.print("The running scheduler is older than this command: what the change costs is not known.")
    else:
        for line in _price(answer.price):
            console.print(foreign(line))
    for note in answer.notes:
        console.print(f"[yellow]attention:[/yellow] {escape(note)}")
    if not answer.whole:
        console.print(LOOK_AHEAD_ENDED)


def _price(price: ChangePrice) -> Iterator[str]:
    """What the change costs, in lines."""
    yield from (_nodes_price(one, price.currency) for one in price.nodes)
    if len(price.nodes) > 1 and price.per_hour_micro is not None and price.per_30d_micro is not None:
        both = f"{money(price.per_hour_micro, price.currency)} an hour, {money(price.per_30d_micro, price.currency)}"
        yield f"All together: {both} in 30 days."
    yield from (_job_price(one, price.currency) for one in price.jobs)
    if any(one.per_hour_micro is not None for one in price.jobs):
        yield "What is submitted runs on nodes that are there: it adds nothing to the bill."
    if not price.nodes and not price.jobs:
        yield "The change adds and takes away no GPUs: the bill stays as it is."


def _nodes_price(one: PricedNodes, currency: str) -> str:
    what = f"{count(one.nodes, 'node')} with {count(one.gpus, 'GPU')} ({one.model or 'of an unknown model'})"
    if one.per_hour_micro is None or one.per_30d_micro is None:
        return f"No price of {what}: {unpriced(one)}"
    amount = f"{money(one.per_hour_micro, currency)} an hour, {money(one.per_30d_micro, currency)} in 30 days"
    if one.added:
        return f"The change costs {amount}: {what}; {price_of(one)}."
    return f"The change saves {amount}, once it is not paid any more for {what}; {price_of(one)}."


def _job_price(one: PricedJob, currency: str) -> str:
    what = f"{one.job}, {gpus(one.gpus_milli)} GPUs{f' ({one.model})' if one.model else ''}"
    if one.per_hour_micro is None:
        return f"No price of {what}: {unpriced(one)}"
    hour = f"{money(one.per_hour_micro, currency)} an hour"
    if one.cost_micro is None:
        limit = "its run time is not known: set dovetail.dev/max-runtime"
        return f"Price of {what}: {hour}; {limit}; {price_of(one)}."
    cost = money(one.cost_micro, currency)
    return f"Price of {what}: {hour}, at most {cost} in its run-time limit of {span(one.run_ms)}; {price_of(one)}."


def _offers(answer: WhatIf, console: Console) -> None:
    """Print what the agents of requests are offered."""
    rows = [
        (foreign(one.job), offer_start(offer, answer.now_ms), foreign(offer.alternative), foreign(offer.why) or "-")
        for one in answer.jobs
        for offer in one.offers
    ]
    if rows:
        console.print("Offers with the change, of which the first is accepted here:")
        table = Table("request", "starts", prose("what"), prose("why nothing better"))
        console.print_rows(table, rows, _MOST_ROWS)


def _row(one: WhatifOutcome, now_ms: int) -> tuple[str, ...]:
    before = f"on {some(one.left)}" if one.left and one.before is None else _start(one.before_state, one.before, now_ms)
    after = _start(one.state, one.after, now_ms)
    return one.job, one.queue, gpus(one.gpus_milli), one.effect, before, after, escape(_where(one))


def _start(state: str, expected: Expected | None, now_ms: int) -> str:
    return "never" if state == When.NEVER else start(expected, now_ms)


def _where(one: WhatifOutcome) -> str:
    if one.granted:
        return f"{places_of(one)}: {one.granted}"
    if one.places:
        return places_of(one)
    if one.state == When.NEVER or one.after is None:
        return one.code
    return one.after.basis


def places_of(one: WhatifOutcome) -> str:
    """`gpu-1 GPU 0-3 at 300 of 450 GB/s; gpu-2 and 5 more`."""
    shown = []
    for place in one.places[:_NODES_SHOWN]:
        which = f" GPU {indices(place.gpus)}" if place.gpus else ""
        rate = f" at {place.mbps / 1000:.0f} of {place.ideal_mbps / 1000:.0f} GB/s" if place.mbps else ""
        shown.append(f"{place.node}{which}{rate}")
    more = len(one.places) - _NODES_SHOWN
    expected = f"; {one.all_reduce}" if one.all_reduce is not None and len(one.places) > 1 else ""
    return "; ".join(shown) + (f" and {more} more" if more > 0 else "") + expected


def _victims(victims: tuple[ForecastVictim, ...], title: str, now_ms: int, console: Console) -> None:
    if not victims:
        return
    console.print(title)
    table = Table("pod", "node", "GPUs", "when", "cause", "for")
    rows = []
    for one in victims:
        when = "now" if one.at_ms <= now_ms else f"in {span(one.at_ms - now_ms)}"
        rows.append((one.pod, one.node, gpus(one.gpus_milli), when, one.cause, one.for_job or "-"))
    console.print_rows(table, rows, _MOST_ROWS)
