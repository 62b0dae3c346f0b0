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

from collections.abc import Callable, Collection, Iterator
from functools import cache
from pathlib import Path

from msgspec import Struct

from dovetail.advice import gpus
from dovetail.advice.gpus import GpuProduct
from dovetail.advice.price_table import PriceError, PriceRow, rows

COLUMNS = (
    "cloud", "instance_type", "gpu_model", "gpu_count", "gpu_memory_gb", "vcpus", "host_memory_gib", "network_gbit",
    "rdma", "local_nvme_gb", "region", "price_usd_h", "spot_usd_h_min", "spot_usd_h_median", "price_date", "source",
)  # fmt: skip
BUILT_IN = "instances.csv"
"""The file of the built-in table."""


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


@cache
def built_in() -> tuple[CloudInstance, ...]:
    """The instances of the built-in table."""
    return read(built_in_text(), BUILT_IN)


def built_in_text() -> str:
    """The built-in table as CSV."""
    return Path(__file__).with_name(BUILT_IN).read_text(encoding="utf-8")


def read(text: str, file: str) -> tuple[CloudInstance, ...]:
    """The instances of a CSV file. Raises PriceError."""
    return tuple(map(instance, distinct(text, file, COLUMNS)))


def key(row: PriceRow) -> tuple[str, str, str]:
    """What a table has once."""
    return row.cells["cloud"], row.cells["instance_type"], row.cells["region"]


def distinct(text: str, file: str, needed: Collection[str]) -> Iterator[PriceRow]:
    """The lines of a CSV file that has the `needed` ones of COLUMNS. Raises PriceError."""
    first_of: dict[tuple[str, str, str], int] = {}
    for row in rows(text, file, COLUMNS, needed):
        if key(row) in first_of:
            rule = f"{' '.join(key(row)).rstrip()} is in line {first_of[key(row)]} already"
            raise PriceError(file, row.line, "instance_type", rule)
        first_of[key(row)] = row.line
        yield row
    if not first_of:
        raise PriceError(file, 1, "", "no instance follows the names of the columns")


def instance(row: PriceRow) -> CloudInstance:
    """The instance of a line. Raises PriceError."""

    def dollars(column: str) -> int:
        return row.scaled(column, 10**6, "dollars for an hour")

    model = row.text("gpu_model")
    gpu = gpus.named(model)
    memory_mib = row.scaled("gpu_memory_gb", 10**9, "GB") >> 20
    for column in ("network_gbit", "local_nvme_gb"):
        _maybe(row, column, lambda name: row.scaled(name, 1000, "a number"))
    price, lowest, spot = (_maybe(row, c, dollars) for c in ("price_usd_h", "spot_usd_h_min", "spot_usd_h_median"))
    if lowest is not None and (spot is None or spot < lowest):
        raise row.wrong("spot_usd_h_median", "at least spot_usd_h_min")
    return CloudInstance(
        row.text("cloud"), row.text("instance_type"), model, row.scaled("gpu_count", 1000, "a number"),
        gpu.usable_mib if gpu else memory_mib, row.scaled("vcpus", 1000, "a number"),
        row.scaled("host_memory_gib", 1024, "GiB"), row.cells["rdma"],
        row.cells["region"] if price is None and spot is None else row.text("region"),
        price, spot, row.day("price_date"), row.text("source"), gpu,
    )  # fmt: skip


def _maybe(row: PriceRow, column: str, read: Callable[[str], int]) -> int | None:
    return read(column) if row.cells[column] else None
