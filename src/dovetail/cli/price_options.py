# SPDX-License-Identifier: Apache-2.0
"""Options of commands that count in money: where prices are from, and in which currency."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from dovetail.cli.files import text_of

if TYPE_CHECKING:
    from dovetail.cost.price_rules import PriceBook
    from dovetail.cost.price_sources import PriceSources

_CURRENCY = re.compile(r"[A-Z]{3}")
_RATE = re.compile(r"([A-Z]{3})=([0-9]{1,9}(?:\.[0-9]{1,9})?)")
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


def price_options(command: Callable[..., None]) -> Callable[..., None]:
    """The options; the command gets PriceSources as `prices` in their place."""

    @wraps(command)
    def priced(
        price_files: tuple[str, ...],
        no_list_prices: bool,
        currency: str,
        rates: dict[str, int],
        gpu_part: str,
        **rest: Any,
    ) -> None:
        if rates and not currency:
            raise click.UsageError("--rate converts into the currency of --currency: name that too")
        if list(price_files).count("-") > 1:
            raise click.UsageError("only one of --prices can be standard input")
        if no_list_prices and not price_files:
            raise click.UsageError("--no-list-prices leaves no prices: name a file with --prices")
        from dovetail.cost.price_sources import PriceSources

        command(prices=PriceSources(price_files, not no_list_prices, currency, rates, gpu_part == "ratio"), **rest)

    found: Callable[..., None] = priced
    for option in reversed(_OPTIONS):
        found = option(found)
    return found


_OPTIONS = (
    click.option(
        "--prices", "price_files", metavar="FILE", multiple=True, help="A file of prices; the first that fits counts."
    ),
    click.option("--no-list-prices", is_flag=True, help="Do not use the list prices that come with Dovetail."),
    click.option(
        "--currency", metavar="CODE", default="", callback=_currency, help="The currency of the answer, as USD."
    ),
    click.option(
        "--rate", "rates", metavar="CODE=NUMBER", multiple=True, callback=_rates,
        help="What 1 of another currency is in that of --currency, as in EUR=1.08.",
    ),
    click.option(
        "--gpu-part", type=click.Choice(["whole", "ratio"]), default="whole", show_default=True,
        help="What of a node's price counts on its GPUs: all, or a part in OpenCost's ratio to CPUs and memory.",
    ),
)  # fmt: skip


def book_of(sources: PriceSources) -> PriceBook:
    """The prices. Raises ClickException."""
    from dovetail.advice.price_table import PriceError

    try:
        return sources.book(lambda file: text_of(file, _TEXT))
    except PriceError as error:
        raise click.ClickException(str(error)) from error
