# SPDX-License-Identifier: Apache-2.0
"""Files of prices, in any of four forms, each recognized by its content.

Rules
- A table with COLUMNS: a row is the price of a node or of each of its GPUs (`per`), for the GPUs that its cells name.
  An empty cell fits all.
- A table of instances, as of `dovetail instances --prices`, and both forms of OpenCost (`opencost`).
"""

from __future__ import annotations

from datetime import UTC, date, datetime, time

from dovetail.advice import prices
from dovetail.advice.price_table import PriceError, PriceRow, head_of, rows
from dovetail.cost import list_prices, opencost
from dovetail.cost.price_cells import money
from dovetail.cost.price_rules import PriceRule, model_of, rule_of

COLUMNS = (
    "per", "price_h", "currency", "price_date", "source", "valid_from", "node", "instance_type", "gpu_model", "region",
    "zone", "spot", "vcpus", "memory_gib",
)  # fmt: skip
_NEEDED = ("per", "price_h", "currency", "price_date")
_PER = {"node": False, "gpu": True}
_SPOT = {"": None, "yes": True, "no": False}


def read(text: str, file: str, currency: str = "USD") -> list[PriceRule]:
    """The prices of a file; `currency` is that of forms that name none. Raises PriceError."""
    if text.lstrip().startswith("{"):
        return list(opencost.custom_pricing(text, file, currency))
    head = head_of(text)
    if "MarketPriceHourly" in head:
        return list(opencost.table(text, file, currency))
    if "price_usd_h" in head:
        return list(list_prices.rules(prices.read(text, file), file))
    found: list[PriceRule] = []
    lines: list[int] = []
    for row in rows(text, file, COLUMNS, _NEEDED, comments=True):
        rule = _rule(row)
        twin = rule_of(found, rule)
        if twin is not None:
            first = lines[found.index(twin)]
            raise PriceError(
                file, row.line, "", f"is for the same GPUs as line {first}, from the same day on: remove one"
            )
        found.append(rule)
        lines.append(row.line)
    if not found:
        raise PriceError(file, 1, "", "no price follows the names of the columns")
    return found


def _rule(row: PriceRow) -> PriceRule:
    cells = row.cells
    if cells["per"] not in _PER:
        raise row.wrong("per", "node or gpu: the price is that of a whole node, or of each GPU")
    if cells["spot"] not in _SPOT:
        raise row.wrong("spot", "yes, no or empty")
    known = bool(cells["vcpus"] or cells["memory_gib"])
    return PriceRule(
        money(row, "price_h"), _currency(row), row.day("price_date"), cells["source"] or row.file,
        per_gpu=_PER[cells["per"]], node=cells["node"], instance_type=cells["instance_type"],
        model=model_of(cells["gpu_model"]), region=cells["region"], zone=cells["zone"], spot=_SPOT[cells["spot"]],
        from_ms=_epoch_ms(row.day("valid_from")) if cells["valid_from"] else 0,
        cpu_milli=row.scaled("vcpus", 1000, "a number of CPUs") if known else 0,
        memory_mib=row.scaled("memory_gib", 1024, "GiB of memory") if known else 0,
    )  # fmt: skip


def _currency(row: PriceRow) -> str:
    cell = row.cells["currency"]
    if not (len(cell) == 3 and cell.isascii() and cell.isalpha() and cell.isupper()):
        raise row.wrong("currency", "a currency in three letters, such as USD")
    return cell


def _epoch_ms(day: str) -> int:
    return int(datetime.combine(date.fromisoformat(day), time(), UTC).timestamp()) * 1000
