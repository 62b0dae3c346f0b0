# SPDX-License-Identifier: Apache-2.0
"""What `dovetail capacity` prints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import tzinfo

from msgspec.structs import replace

from dovetail.cli.capacity_columns import CAPACITY
from dovetail.cli.console import Console
from dovetail.cli.history_options import covered
from dovetail.cli.listing import ListForm, write_rows
from dovetail.cli.money import money, price_of, unpriced
from dovetail.cli.output import count, foreign, span
from dovetail.cost.capacity import CapacityAdvice, CapacityAnswer
from dovetail.cost.price_rules import model_of
from dovetail.history.records import Period

_HOURS_MONTH = 730
_HOUR_S = 3600
_CAUSES = {"fragmented": "too few on a node", "cpu": "without CPUs", "memory": "without memory"}


def with_purchases(answer: CapacityAnswer, purchases: Mapping[str, int]) -> CapacityAnswer:
    """The answer, with after how many months of renting all the time buying pays, where the price to buy is known."""
    return replace(answer, kinds=tuple(_with_purchase(one, purchases) for one in answer.kinds))


def _with_purchase(one: CapacityAdvice, purchases: Mapping[str, int]) -> CapacityAdvice:
    each = purchases.get(model_of(one.model))
    if each is None or one.change_nodes <= 0 or not one.per_hour_micro:
        return one
    whole = each * one.change_nodes * one.node_gpus
    return replace(one, pays_after_months=-(-whole // (one.per_hour_micro * _HOURS_MONTH)))


def show(answer: CapacityAnswer, form: ListForm, zone: tzinfo, zone_name: str, console: Console) -> None:
    """Print the kinds of nodes as a table, then the advice for each."""
    if answer.kinds or not form.notes:
        write_rows(form, CAPACITY, answer.kinds, answer.end_ms, console)
    if not form.notes:
        return
    asked = covered(Period(answer.asked_start_ms, answer.asked_end_ms), zone, zone_name)
    if not answer.kinds:
        console.print(f"Nothing is known of GPUs from {asked}.")
        return
    for one in answer.kinds:
        console.print(f"\n[bold]{foreign(one.model) or 'unknown model'}[/bold]: {_title(one)}")
        for line in _lines(one, answer.currency):
            console.print(f"  {foreign(line)}")
    for verdict, one in {one.verdict: one for one in answer.kinds if one.risk}.items():
        console.print(f"\n[bold]{verdict}[/bold]\n  risk      {one.risk}\n  wrong if  {one.wrong_if}")
    console.print(f"\n{covered(Period(answer.start_ms, answer.end_ms), zone, zone_name)}.")
    if answer.end_ms - answer.start_ms < answer.asked_end_ms - answer.asked_start_ms:
        console.print(f"Asked was {asked}: nothing else is known of it.")
    if answer.gap_ms:
        console.print(
            f"For {span(answer.gap_ms)} nothing was recorded; it is assumed that all stayed as it was before."
        )
    if answer.unknown_gpu_s:
        hours = f"{answer.unknown_gpu_s / _HOUR_S:,.0f}"
        console.print(f"Jobs that never started waited for {hours} GPU-hours: for which model is not known.")


def _title(one: CapacityAdvice) -> str:
    nodes, gpus = abs(one.change_nodes), abs(one.change_nodes) * one.node_gpus
    what = f"{count(nodes, 'node')} with {gpus} GPUs"
    match one.verdict:
        case "give back":
            return f"give back {what}, of {count(one.nodes, 'node')} with {one.gpus}"
        case "rent or buy":
            return f"rent {what}, or buy them, beside {count(one.nodes, 'node')} with {one.gpus}"
    return f"{one.verdict}; {count(one.nodes, 'node')} with {count(one.gpus, 'GPU')}"


def _stranded(one: CapacityAdvice, currency: str) -> Iterator[str]:
    """What was free and of no use, first while jobs waited."""
    pod = f"a pod of {count(one.typical_gpus, 'GPU')}, as most GPUs were held by"
    for waited, when in ((True, "while jobs waited that could not use them"), (False, f"of no use for {pod}")):
        rows = [row for row in one.stranded if row.waited == waited]
        if not rows:
            continue
        hours = sum(row.gpu_s for row in rows) / _HOUR_S
        micro = [row.cost_micro for row in rows]
        known = [cost for cost in micro if cost is not None]
        cost = f", {money(sum(known), currency)}" if len(known) == len(micro) else ", without a price"
        causes = ", ".join(f"{row.gpu_s / _HOUR_S:,.0f} {_CAUSES[row.cause]}" for row in rows)
        yield f"{'stranded ' if waited else 'left over'} {hours:,.0f} free GPU-hours{cost}, {when}: {causes}"


def _lines(one: CapacityAdvice, currency: str) -> Iterator[str]:
    yield f"why       {one.evidence}"
    if one.per_hour_micro is not None and one.per_30d_micro is not None:
        hour, month = money(abs(one.per_hour_micro), currency), money(abs(one.per_30d_micro), currency)
        verb = "saves" if one.per_hour_micro < 0 else "costs"
        yield f"{verb}     {hour} an hour, {month} in 30 days; {price_of(one)}"
    elif one.why:
        yield f"no price  {unpriced(one)}"
    yield from _stranded(one, currency)
    if one.pays_after_months is not None:
        yield f"buying    pays after {count(one.pays_after_months, 'month')} of renting all the time"
    elif one.change_nodes > 0:
        yield "buying    when it pays is not known: name what a GPU costs with --buy-price"
