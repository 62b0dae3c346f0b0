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
    from dovetail.cost.price_rules import GpuPart, PriceBook, PriceRule

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
    """The options; the command gets a PriceBook as `book` in their place."""

    @wraps(command)
    def priced(
        files: tuple[str, ...], no_list_prices: bool, currency: str, rates: dict[str, int], gpu_part: str, **rest: Any
    ) -> None:
        if rates and not currency:
            raise click.UsageError("--rate converts into the currency of --currency: name that too")
        command(book=_book(files, no_list_prices, currency, rates, gpu_part), **rest)

    found: Callable[..., None] = priced
    for option in reversed(_OPTIONS):
        found = option(found)
    return found


_OPTIONS = (
    click.option(
        "--prices", "files", metavar="FILE", multiple=True, help="A file of prices; the first that fits counts."
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
