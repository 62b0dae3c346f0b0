# SPDX-License-Identifier: Apache-2.0
"""What `dovetail cost` and `dovetail report` print."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterator
from datetime import tzinfo
from typing import TypeVar

import click
from msgspec.structs import replace

from dovetail.cli.console import Console
from dovetail.cli.cost_columns import COST, HELD, PLACED, REPORT, SHARED
from dovetail.cli.history_options import covered, time_text
from dovetail.cli.listing import ListColumns, ListForm, ListPrinter, arranged, csv_cell
from dovetail.cli.output import count, foreign, printable, span
from dovetail.cost.cost_lines import cost_lines, use_lines
from dovetail.cost.costs import PPM, CostAnswer, Coverage
from dovetail.cost.focus import COLUMNS, FocusPart
from dovetail.cost.group_sums import OTHERS
from dovetail.cost.grouping import PLACED_BY
from dovetail.cost.rounding import decimal, nearest
from dovetail.cost.utilization import Utilization
from dovetail.history.records import Period
from dovetail.historyserver.questions import FocusQuestion

L = TypeVar("L")
_MOST_GAPS = 3
_CENT_HOUR_S = 36


def show(answer: CostAnswer, form: ListForm, zone: tzinfo, zone_name: str, console: Console) -> None:
    """Print the costs as a table with its total, or as rows for programs."""
    lines, total = cost_lines(answer)
    if form.output == "table" and not form.columns:
        held = HELD if answer.idle == "separate" else SHARED
        form = replace(form, columns=PLACED if answer.by in PLACED_BY else held)
    _write(form, COST, lines, total, console)
    if not form.notes:
        return
    asked, known = Period(answer.asked_start_ms, answer.asked_end_ms), Period(answer.start_ms, answer.end_ms)
    if not lines:
        console.print(_nothing(asked, answer.coverage, zone, zone_name))
        return
    if answer.prices:
        console.print(f"{covered(known, zone, zone_name)}, in {foreign(answer.currency)}.")
        parts = (f"{foreign(one.source)}, of {foreign(one.date) or 'no date'}, for {_hours(one.gpu_s)} GPU-hours"
                 for one in answer.prices)  # fmt: skip
        console.print(f"Prices: {'; '.join(parts)}.")
    else:
        console.print(f"{covered(known, zone, zone_name)}. No GPU has a price.")
    for one in answer.unpriced:
        what = " ".join(part for part in (one.model, one.instance_type, one.region, "spot" * one.spot) if part)
        console.print(
            f"No price: {_hours(one.gpu_s)} GPU-hours of {foreign(what) or 'GPUs of an unknown model'} on "
            f"{count(one.nodes, 'node')}, which are in no sum: {foreign(one.why)}. To do: {foreign(one.fix)}."
        )
    for sentence in (*_others(answer), *_rests_on(asked, answer.coverage, zone, zone_name)):
        console.print(sentence)


def show_use(answer: Utilization, form: ListForm, zone: tzinfo, zone_name: str, console: Console) -> None:
    """Print the use as a table with its total, or as rows for programs."""
    lines, total = use_lines(answer)
    _write(form, REPORT, lines, total, console)
    if not form.notes:
        return
    asked = Period(answer.asked_start_ms, answer.asked_end_ms)
    if not lines:
        console.print(_nothing(asked, answer.coverage, zone, zone_name))
        return
    known = Period(answer.start_ms, answer.end_ms)
    console.print(f"{covered(known, zone, zone_name)}, in GPU-hours.")
    for sentence in (*_others(answer), *_rests_on(asked, answer.coverage, zone, zone_name)):
        console.print(sentence)


def _write(form: ListForm, listing: ListColumns[L], lines: list[L], total: L, console: Console) -> None:
    """The rows, and in a table their total below them."""
    rows = arranged(form, listing, lines)
    table = form.output in ("table", "wide")
    if lines or not table:
        ListPrinter(form, console).print(listing, [*rows, total] if table and form.headers else rows, 0)


def _hours(gpu_s: int) -> str:
    return decimal(nearest(gpu_s, _CENT_HOUR_S), 2)


def _nothing(asked: Period, found: Coverage, zone: tzinfo, name: str) -> str:
    if found.known_start_ms == found.known_end_ms:
        return "The history has no record yet."
    known = covered(Period(found.known_start_ms, found.known_end_ms), zone, name)
    if asked.start_ms < found.known_end_ms and asked.end_ms > found.known_start_ms:
        return f"There was no GPU from {covered(asked, zone, name)}."
    return f"Nothing is known of {covered(asked, zone, name)}: the history is of {known}."


def _others(answer: CostAnswer | Utilization) -> Iterator[str]:
    if answer.others:
        yield f"{OTHERS} has the sums of {count(answer.others, 'smaller group')}: a larger --limit shows them."


def _rests_on(asked: Period, found: Coverage, zone: tzinfo, name: str) -> Iterator[str]:
    if asked.start_ms < found.known_start_ms:
        yield f"The history begins at {time_text(found.known_start_ms, zone)} {name}: nothing before is counted."
    if asked.end_ms > found.known_end_ms:
        yield f"The history ends at {time_text(found.known_end_ms, zone)} {name}: nothing after it is counted."
    if found.gaps:
        longest = sorted(found.gaps, key=lambda gap: gap.start_ms - gap.end_ms)[:_MOST_GAPS]
        parts = (f"{covered(Period(gap.start_ms, gap.end_ms), zone, name)} ({foreign(gap.reason)})" for gap in longest)
        more = f" and {len(found.gaps) - _MOST_GAPS} more" if len(found.gaps) > _MOST_GAPS else ""
        yield (
            f"For {span(found.gap_ms)} nothing was recorded; it is assumed that all stayed as it was before: "
            f"{'; '.join(parts)}{more}."
        )
    if found.measured_ppm:
        yield f"Use was measured for {found.measured_ppm * 100 // PPM} % of the allocated time."
    else:
        yield "Use was not measured."
    if found.unknown_gpu_s:
        yield f"{_hours(found.unknown_gpu_s)} GPU-hours were held of GPUs that no node had then: nobody pays for them."
    if found.assumed_gpu_s:
        yield (
            f"For {_hours(found.assumed_gpu_s)} GPU-hours it is assumed which GPU of its node a pod held, as pods were "
            "only counted there."
        )


def write_focus(question: FocusQuestion, part_of: Callable[[FocusQuestion], FocusPart]) -> None:
    """Write the columns of FOCUS as csv, part by part as the questions for them are answered."""
    part = part_of(question)
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(COLUMNS)
    unpriced = 0
    while True:
        writer.writerows([csv_cell(printable(value)) for value in row] for row in part.rows)
        unpriced += part.unpriced_time
        if part.until_ms >= part.end_ms:
            break
        more = {name: getattr(part, name) for name in ("until_ms", "end_ms", "currency", "carry")}
        part = part_of(replace(question, **more))
    if unpriced:
        hours = decimal(nearest(unpriced, 36_000_000), 2)
        click.echo(f"{hours} GPU-hours have no price, and no row: dovetail cost -o table names them.", err=True)
