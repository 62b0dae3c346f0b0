# SPDX-License-Identifier: Apache-2.0
"""`dovetail cost`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from dovetail.cli.answer_form import write_answer
from dovetail.cli.console import Console
from dovetail.cli.cost_columns import COST
from dovetail.cli.history_options import HistoryQuestion, asked_options
from dovetail.cli.listing import ListForm, list_options
from dovetail.cli.price_options import book_of, price_options

if TYPE_CHECKING:
    from dovetail.cost.price_sources import PriceSources

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
    asked: HistoryQuestion, prices: PriceSources, idle: str, billing_account: str, form: ListForm
) -> None:  # fmt: skip
    """Show what the GPUs of a period cost, and for which team, user, job or model.

    All rows together are the bill: the price of each GPU for the time for which it was there. Asks the
    collector of the cluster, which has its prices; with --store or --prometheus it reads the history itself, with
    the prices of the options.
    """
    from dovetail.cli.cost_report import show, write_focus
    from dovetail.cost.costs import CostAnswer
    from dovetail.cost.focus import FocusPart
    from dovetail.historyserver.answers import costs_of, focus_of
    from dovetail.historyserver.questions import CostQuestion, FocusQuestion

    source, use, zone = asked.source, asked.use, asked.zone
    source.check_prices(prices)
    if form.output == _FOCUS:
        if source.own:
            raise click.UsageError(f"-o {_FOCUS} has the rows of all namespaces: leave out --namespace")

        def part_of(asked: FocusQuestion) -> FocusPart:
            return source.answer(asked, FocusPart, lambda reader: focus_of(reader, asked, book_of(prices)))

        write_focus(FocusQuestion(use.period, use.time_zone, billing_account), part_of)
        return
    question = CostQuestion(use.by, use.period, use.time_zone, use.level, use.parents, use.limit, idle)
    answer = source.answer(question, CostAnswer, lambda reader: costs_of(reader, question, book_of(prices), source.own))
    if form.whole:
        write_answer(form, "Cost", answer)
    else:
        show(answer, form, zone, asked.time_zone, Console())
