# SPDX-License-Identifier: Apache-2.0
"""`dovetail cost`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from dovetail.cli.console import Console
from dovetail.cli.cost_columns import COST
from dovetail.cli.history_options import HistoryQuestion, asked_options
from dovetail.cli.listing import ListForm, list_options, write_answer
from dovetail.cli.price_options import price_options

if TYPE_CHECKING:
    from dovetail.cost.price_rules import PriceBook

_FOCUS = "focus"
_IDLE = ("separate", "weighted", "even")


@click.command(name="cost")
@asked_options
@price_options
@click.option(
    "--idle", type=click.Choice(_IDLE), default="separate", show_default=True,
    help="Where GPU time goes that nobody held: rows of its own, or over the groups, weighted or evenly.",
)  # fmt: skip
@click.option(
    "--billing-account", metavar="NAME", default="cluster", show_default=True, help="The billing account in -o focus."
)
@list_options(COST, more=(_FOCUS,))
def command(
    asked: HistoryQuestion, book: PriceBook, idle: str, billing_account: str, form: ListForm
) -> None:  # fmt: skip
    """Show what the GPUs of a period cost, and for which team, user, job or model.

    All rows together are the bill: the price of each GPU for the time for which it was there. Reads a file of the
    history; needs no cluster and no network.
    """
    from dovetail.cli.cost_report import show, write_focus
    from dovetail.cost.costs import costs
    from dovetail.cost.grouping import PLACED_BY
    from dovetail.cost.idle_rules import IDLE_RULES

    if idle != "separate" and asked.by in PLACED_BY:
        raise click.UsageError(
            f"--idle {idle} divides over holders of GPUs: use it with --by team, user or another holder"
        )
    times, grouping, zone = asked.times(book, daily=form.output == _FOCUS)
    if form.output == _FOCUS:
        write_focus(times, billing_account, book.currency)
        return
    rule = next(one for one in IDLE_RULES if one == idle)
    answer = costs(times, grouping, rule, book.currency)
    if form.whole:
        write_answer(form, "Cost", answer)
    else:
        show(answer, form, zone, asked.time_zone, Console())
