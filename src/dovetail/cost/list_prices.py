# SPDX-License-Identifier: Apache-2.0
"""The prices of instances as rules: of the table that comes with Dovetail, or of a file with the same columns.

Rules: an instance type has its prices in one region of the table. They fit nodes of that region, and nodes whose region
is not known. A node that can be interrupted has the spot price, and never that on demand.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dovetail.advice.prices import CloudInstance
from dovetail.cost.price_rules import PriceRule

_CURRENCY = "USD"


def rules(instances: Iterable[CloudInstance], file: str = "") -> Iterator[PriceRule]:
    """The rules for instances; `file` is "" for the table that comes with Dovetail."""
    for one in instances:
        for micro, spot in ((one.price_micro_usd, False), (one.spot_micro_usd, True)):
            if micro is not None:
                source = file or f"list price of {one.cloud} {one.region}"
                yield PriceRule(
                    micro, _CURRENCY, one.price_date, source, instance_type=one.instance_type, region=one.region,
                    spot=spot, anywhere=True, cpu_milli=one.cpu_milli, memory_mib=one.memory_mib,
                )  # fmt: skip
