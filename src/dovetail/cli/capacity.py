# SPDX-License-Identifier: Apache-2.0
"""`dovetail capacity`."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from dovetail.cli.answer_form import write_answer
from dovetail.cli.capacity_columns import CAPACITY
from dovetail.cli.console import Console
from dovetail.cli.history_options import PERIOD_OPTIONS, zone_named
from dovetail.cli.history_store import HistorySource, source_options
from dovetail.cli.listing import ListForm, list_options
from dovetail.cli.price_options import book_of, price_options

if TYPE_CHECKING:
    from dovetail.cost.price_sources import PriceSources

_PURCHASE = re.compile(r"(\S+)=([0-9]{1,9}(?:\.[0-9]{1,6})?)")


def _purchases(_ctx: click.Context, _param: click.Parameter, values: tuple[str, ...]) -> dict[str, int]:
    """Millionths by model. Raises BadParameter."""
    from dovetail.cost.price_cells import micro_of
    from dovetail.cost.price_rules import model_of

    found: dict[str, int] = {}
    for value in values:
        match = _PURCHASE.fullmatch(value)
        micro = micro_of(match[2]) if match is not None else None
        if match is None or not micro:
            raise click.BadParameter(f"{value!r} is not a model with the price of a GPU, such as H100-SXM5=31000")
        found[model_of(match[1])] = micro
    return found


def _period_options(command: Callable[..., None]) -> Callable[..., None]:
    for option in reversed(PERIOD_OPTIONS):
        command = option(command)
    return command


@click.command(name="capacity")
@source_options
@_period_options
@click.option(
    "--buy-price", "purchases", metavar="MODEL=PRICE", multiple=True, callback=_purchases,
    help="What a GPU of a model costs to buy, with its part of the node, in the currency of the answer.",
)  # fmt: skip
@price_options
@list_options(CAPACITY)
def command(
    source: HistorySource, period: str, time_zone: str, purchases: dict[str, int], prices: PriceSources, form: ListForm
) -> None:
    """Advise which GPUs to rent, to buy or to give back, from what was held and what waited, by kind of node.

    Nodes are to be returned only where all that pods held and waited for in the period, replayed, fits on the others;
    they are to be rented where jobs lacked their GPUs often enough. Asks the collector of the cluster, which answers
    users that may see all namespaces; with --store or --prometheus it reads the history itself.
    Nothing is changed.

    Exit code 0, also if there is advice. 1: the history cannot be read. 2: wrong usage.
    """
    from dovetail.cli.capacity_report import show, with_purchases
    from dovetail.cost.capacity import CapacityAnswer
    from dovetail.historyserver.answers import capacity_of
    from dovetail.historyserver.questions import CapacityQuestion

    source.check_prices(prices)
    zone, question = zone_named(time_zone), CapacityQuestion(period, time_zone)
    found = source.answer(question, CapacityAnswer, lambda reader: capacity_of(reader, question, book_of(prices)))
    answer = with_purchases(found, purchases)
    if form.whole:
        write_answer(form, "Capacity", answer)
    else:
        show(answer, form, zone, time_zone, Console())
