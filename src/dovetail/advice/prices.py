# SPDX-License-Identifier: Apache-2.0
"""Cloud instances and their prices per hour, from a CSV file. Each price has its date.

Rules
- The first line names the columns, in any order: all of COLUMNS, and no others.
- An unknown value is an empty cell. An instance without a price is kept, and reported as passed over.
- For a GPU model of `gpus`, usable memory and NVLink are from there. For any other, the memory is that of the file, in
  GB (10^9 bytes), and NVLink is unknown.
The sources and licences of the built-in table are in the NOTICE file and docs/reference/instances.md.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator
from datetime import date
from decimal import Decimal
from importlib.resources import files

from msgspec import Struct

from dovetail.advice import gpus
from dovetail.advice.gpus import GpuProduct

COLUMNS = (
    "cloud", "instance_type", "gpu_model", "gpu_count", "gpu_memory_gb", "vcpus", "host_memory_gib", "network_gbit",
    "rdma", "local_nvme_gb", "region", "price_usd_h", "spot_usd_h_min", "spot_usd_h_median", "price_date", "source",
)  # fmt: skip
_NUMBER = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


class PriceError(Exception):
    """A problem of a price file. `line` counts from 1; `column` is "" if the problem is not in one column."""

    def __init__(self, file: str, line: int, column: str, rule: str) -> None:
        super().__init__(file, line, column, rule)
        self.file, self.line, self.column, self.rule = file, line, column, rule

    def __str__(self) -> str:
        where = f", column {self.column}" if self.column else ""
        return f"{self.file}:{self.line}{where}: {self.rule}"


class CloudInstance(Struct, frozen=True):
    """An instance type in a region. Prices are in millionths of a dollar per hour, None if unknown. `usable_mib` is per
    GPU; `gpu` is None for a model that is not in `gpus`."""

    cloud: str
    instance_type: str
    gpu_model: str
    gpu_milli: int
    usable_mib: int
    cpu_milli: int
    memory_mib: int
    rdma: str
    region: str
    price_micro_usd: int | None
    spot_micro_usd: int | None
    price_date: str
    source: str
    gpu: GpuProduct | None


def built_in() -> tuple[CloudInstance, ...]:
    """The instances of the built-in table."""
    return read(files("dovetail.advice").joinpath("instances.csv").read_text(encoding="utf-8"), "instances.csv")


def read(text: str, file: str) -> tuple[CloudInstance, ...]:
    """The instances of a CSV file. Raises PriceError."""
    return tuple(_rows(text, file))


def _rows(text: str, file: str) -> Iterator[CloudInstance]:
    lines = csv.reader(text.splitlines(), strict=True)
    try:
        head = [name.strip() for name in next(lines, [])]
        _check_head(head, file)
        first_of: dict[tuple[str, str, str], int] = {}
        for cells in lines:
            if not cells:
                continue
            if len(cells) != len(head):
                raise PriceError(file, lines.line_num, "", f"has {len(cells)} cells, the first line names {len(head)}")
            row = _Row(dict(zip(head, (cell.strip() for cell in cells), strict=True)), file, lines.line_num)
            key = (row.cells["cloud"], row.cells["instance_type"], row.cells["region"])
            if key in first_of:
                rule = f"{' '.join(key).rstrip()} is in line {first_of[key]} already"
                raise PriceError(file, lines.line_num, "instance_type", rule)
            first_of[key] = lines.line_num
            yield _instance(row)
    except csv.Error as error:
        raise PriceError(file, lines.line_num, "", f"is not CSV: {error}") from error
    if not first_of:
        raise PriceError(file, 1, "", "no instance follows the names of the columns")


def _check_head(head: list[str], file: str) -> None:
    for name in head:
        if name not in COLUMNS or head.count(name) > 1:
            rule = "is there twice" if name in COLUMNS else f"is not known; expected are {', '.join(COLUMNS)}"
            raise PriceError(file, 1, repr(name), rule)
    for name in COLUMNS:
        if name not in head:
            raise PriceError(file, 1, name, f"is missing; the first line must name {', '.join(COLUMNS)}")


class _Row(Struct, frozen=True):
    cells: dict[str, str]
    file: str
    line: int

    def wrong(self, column: str, expected: str) -> PriceError:
        return PriceError(self.file, self.line, column, f"{self.cells[column]!r} is not {expected}")

    def text(self, column: str) -> str:
        if not self.cells[column]:
            raise self.wrong(column, "a name")
        return self.cells[column]

    def scaled(self, column: str, scale: int, what: str) -> int:
        """A number above 0, times `scale` and rounded down."""
        cell = self.cells[column]
        found = int(Decimal(cell) * scale) if _NUMBER.fullmatch(cell) else 0
        if found <= 0:
            raise self.wrong(column, f"{what} above 0, such as 8 or 0.5")
        return found

    def maybe(self, column: str, read: Callable[[str], int]) -> int | None:
        return read(column) if self.cells[column] else None


def _instance(row: _Row) -> CloudInstance:
    def dollars(column: str) -> int:
        return row.scaled(column, 10**6, "dollars for an hour")

    model = row.text("gpu_model")
    gpu = gpus.named(model)
    memory_mib = row.scaled("gpu_memory_gb", 10**9, "GB") >> 20
    for column in ("network_gbit", "local_nvme_gb"):
        row.maybe(column, lambda name: row.scaled(name, 1000, "a number"))
    price, lowest, spot = (row.maybe(c, dollars) for c in ("price_usd_h", "spot_usd_h_min", "spot_usd_h_median"))
    if lowest is not None and (spot is None or spot < lowest):
        raise row.wrong("spot_usd_h_median", "at least spot_usd_h_min")
    return CloudInstance(
        row.text("cloud"), row.text("instance_type"), model, row.scaled("gpu_count", 1000, "a number"),
        gpu.usable_mib if gpu else memory_mib, row.scaled("vcpus", 1000, "a number"),
        row.scaled("host_memory_gib", 1024, "GiB"), row.cells["rdma"],
        row.cells["region"] if price is None and spot is None else row.text("region"),
        price, spot, _date(row), row.text("source"), gpu,
    )  # fmt: skip


def _date(row: _Row) -> str:
    cell = row.cells["price_date"]
    try:
        if not _DATE.fullmatch(cell):
            raise ValueError
        date.fromisoformat(cell)
    except ValueError as error:
        raise row.wrong("price_date", "a date such as 2026-07-20") from error
    return cell
