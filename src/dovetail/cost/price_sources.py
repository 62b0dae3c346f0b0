# SPDX-License-Identifier: Apache-2.0
"""Where the prices of answers are from, and in which currency: the options of commands, and of the collector."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from msgspec import Struct

from dovetail.advice.prices import built_in
from dovetail.cost import list_prices
from dovetail.cost.opencost import BASE, gpu_part
from dovetail.cost.price_files import read
from dovetail.cost.price_rules import GpuPart, PriceBook, PriceRule


class PriceSources(Struct, frozen=True):
    """`files` of prices, in their order; a folder stands for the files in it, by name. Then the list prices that come
    with Dovetail, if `listed`. `rates` are millionths of `currency` for one of another. With `ratio` only a part of a
    node's price counts on its GPUs."""

    files: tuple[str, ...] = ()
    listed: bool = True
    currency: str = ""
    rates: Mapping[str, int] = {}
    ratio: bool = False

    def book(self, text_of: Callable[[str], str]) -> PriceBook:
        """The prices; `text_of` reads a file. Raises PriceError, and what that raises."""
        rules: list[list[PriceRule]] = []
        part: GpuPart | None = BASE if self.ratio else None
        for file in self._each():
            text = text_of(file)
            rules.append(read(text, file, self.currency or "USD"))
            if part is not None and text.lstrip().startswith("{"):
                part = gpu_part(text, file) or part
        listed = tuple(list_prices.rules(built_in())) if self.listed else ()
        return PriceBook(rules, listed, part, self.currency, self.rates)

    def _each(self) -> Iterator[str]:
        """The files. Those of a ConfigMap are links beside hidden folders."""
        for name in self.files:
            path = Path(name)
            if not path.is_dir():
                yield name
                continue
            yield from sorted(str(one) for one in path.iterdir() if one.is_file() and not one.name.startswith("."))
