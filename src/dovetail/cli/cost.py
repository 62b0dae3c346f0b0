# SPDX-License-Identifier: Apache-2.0
"""`dovetail cost`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import click

from dovetail.cli.console import Console
from dovetail.cli.cost_columns import COST
from dovetail.cli.files import text_of
from dovetail.cli.history_options import HistoryQuestion, asked_options
from dovetail.cli.listing import ListForm, list_options, write_answer

if TYPE_CHECKING:
    from dovetail.cost.price_rules import GpuPart, PriceBook, PriceRule

_FOCUS = "focus"
_CURRENCY = re.compile(r"[A-Z]{3}")
_RATE = re.compile(r"([A-Z]{3})=([0-9]{1,9}(?:\.[0-9]{1,9})?)")
_IDLE = ("separate", "weighted", "even")
_TEXT = "utf-8-sig"


def _currency(_ctx: click.Context, _param: click.Parameter, value: str) -> str:
    """Raises BadParameter."""
    if value and not _CURRENCY.fullmatch(value):
        raise click.BadParameter(f"{value!r} is not a currency in three letters, such as USD")
    return value


def _rates(_ctx: click.Context, _param: click.Parameter, values: tuple[str, ...]) -> dict[str, int]:
    """Millionths by currency. Raises BadParameter."""
    found: dict[str, int] = {}
    for value in values:
        match = _RATE.fullmatch(value)
        micro = _micro(match[2]) if match is not None else 0
        if match is None or not micro:
            raise click.BadParameter(f"{value!r} is not a rate above 0, such as EUR=1.08")
        if match[1] in found:
            raise click.BadParameter(f"there are two rates for {match[1]}: name one")
        found[match[1]] = micro
    return found


def _micro(text: str) -> int:
    from dovetail.cost.price_cells import micro_of

    return micro_of(text) or 0


@click.command(name="cost")
@asked_options
@click.option("--prices", "files", metavar="FILE", multiple=True, help="A file of prices; the first that fits counts.")
@click.option("--no-list-prices", is_flag=True, help="Do not use the list prices that come with Dovetail.")
@click.option("--currency", metavar="CODE", default="", callback=_currency, help="The currency of the answer, as USD.")
@click.option(
    "--rate", "rates", metavar="CODE=NUMBER", multiple=True, callback=_rates,
    help="What 1 of another currency is in that of --currency, as in EUR=1.08.",
)  # fmt: skip
@click.option(
    "--idle", type=click.Choice(_IDLE), default="separate", show_default=True,
    help="Where GPU time goes that nobody held: rows of its own, or over the groups, weighted or evenly.",
)  # fmt: skip
@click.option(
    "--gpu-part", type=click.Choice(["whole", "ratio"]), default="whole", show_default=True,
    help="What of a node's price counts on its GPUs: all, or a part in OpenCost's ratio to CPUs and memory.",
)  # fmt: skip
@click.option(
    "--billing-account", metavar="NAME", default="cluster", show_default=True, help="The billing account in -o focus."
)
@list_options(COST, more=(_FOCUS,))
def command(
    asked: HistoryQuestion, files: tuple[str, ...], no_list_prices: bool, currency: str, rates: dict[str, int],
    idle: str, gpu_part: str, billing_account: str, form: ListForm,
) -> None:  # fmt: skip
    """Show what the GPUs of a period cost, and for which team, user, job or model.

    All rows together are the bill: the price of each GPU for the time for which it was there. Reads a file of the
    history; needs no cluster and no network.
    """
    from dovetail.cli.cost_report import show, write_focus
    from dovetail.cost.costs import costs
    from dovetail.cost.grouping import PLACED_BY
    from dovetail.cost.idle_rules import IDLE_RULES

    if rates and not currency:
        raise click.UsageError("--rate converts into the currency of --currency: name that too")
    if idle != "separate" and asked.by in PLACED_BY:
        raise click.UsageError(
            f"--idle {idle} divides over holders of GPUs: use it with --by team, user or another holder"
        )
    book = _book(files, no_list_prices, currency, rates, gpu_part)
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


def _book(
    files: tuple[str, ...], no_list_prices: bool, currency: str, rates: dict[str, int], gpu_part: str
) -> PriceBook:
    """The prices. Raises ClickException."""
    from dovetail.advice.price_table import PriceError
    from dovetail.advice.prices import built_in
    from dovetail.cost import list_prices
    from dovetail.cost.price_files import read
    from dovetail.cost.price_rules import PriceBook

    if list(files).count("-") > 1:
        raise click.UsageError("only one of --prices can be standard input")
    if no_list_prices and not files:
        raise click.UsageError("--no-list-prices leaves no prices: name a file with --prices")
    rules: list[list[PriceRule]] = []
    part: GpuPart | None = _default_part() if gpu_part == "ratio" else None
    try:
        for file in files:
            text = text_of(file, _TEXT)
            rules.append(read(text, file, currency or "USD"))
            part = _ratio(text, file) or part if part is not None else None
    except PriceError as error:
        raise click.ClickException(str(error)) from error
    listed = () if no_list_prices else tuple(list_prices.rules(built_in()))
    return PriceBook(rules, listed, part, currency, rates)


def _default_part() -> GpuPart:
    from dovetail.cost.opencost import BASE

    return BASE


def _ratio(text: str, file: str) -> GpuPart | None:
    """The ratio that a file of OpenCost has, or None. Raises PriceError."""
    from dovetail.cost.opencost import gpu_part

    return gpu_part(text, file) if text.lstrip().startswith("{") else None
