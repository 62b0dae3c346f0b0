# SPDX-License-Identifier: Apache-2.0
"""The two forms in which OpenCost reads prices: custom pricing (JSON) and its table (CSV).

Rules
- Custom pricing has prices for an hour: `GPU` and `spotGPU` are those of any GPU, and count only where nothing else has
  a price. Its prices of CPUs and memory are those of the ratio (`GpuPart`).
- A row of the table is of a `node`, found by its name or its instance type, or of a `gpu`, found by its model and added
  to the node's price for each GPU. Rows of volumes, and nodes that are named by fields that the history does not keep,
  are left out. Instances of the same type and region with different prices count with their mean, as in OpenCost.
- Neither form has a date, and both have one currency, which is not in the table.
"""

from __future__ import annotations

from collections.abc import Iterator

from dovetail.advice.price_table import PriceError, rows
from dovetail.core.json_text import JsonError, decode_json
from dovetail.cost.price_cells import MOST, micro_of, money
from dovetail.cost.price_rules import GpuPart, PriceRule, model_of
from dovetail.cost.rounding import nearest

COLUMNS = (
    "EndTimestamp", "InstanceID", "Region", "AssetClass", "InstanceIDField", "InstanceType", "MarketPriceHourly",
    "Version",
)  # fmt: skip
BASE = GpuPart(31_611, 4_237, 950_000)
"""The ratio of OpenCost's default prices of a CPU, a GiB and a GPU."""
_NODE_NAME = "metadata.name"
_TYPE_LABELS = (
    "metadata.labels.node.kubernetes.io/instance-type", "metadata.labels.beta.kubernetes.io/instance-type",
)  # fmt: skip


def custom_pricing(text: str, file: str, currency: str) -> Iterator[PriceRule]:
    """The prices of any GPU. Raises PriceError."""
    values = _values(text, file)
    found = {name: _price(values, name, file) for name in ("GPU", "spotGPU") if values.get(name)}
    if "GPU" not in found:
        raise PriceError(file, 1, "GPU", 'is missing: name the price of a GPU for an hour, as in "GPU": "0.95"')
    for name, micro in found.items():
        yield PriceRule(
            micro,
            values.get("currencyCode") or currency,
            "",
            file,
            per_gpu=True,
            spot=True if name == "spotGPU" else None,
        )


def gpu_part(text: str, file: str) -> GpuPart:
    """The ratio of prices of custom pricing. Raises PriceError."""
    values = _values(text, file)
    return GpuPart(*(_price(values, name, file) for name in ("CPU", "RAM", "GPU")))


def _values(text: str, file: str) -> dict[str, str]:
    try:
        return decode_json(text, dict[str, str])
    except JsonError as error:
        rule = f'is not OpenCost\'s custom pricing, an object whose values are texts such as "0.95": {error}'
        raise PriceError(file, 1, "", rule) from error


def _price(values: dict[str, str], name: str, file: str) -> int:
    micro = micro_of(values.get(name, ""))
    if micro is None:
        rule = f'{values.get(name, "")!r} is not a price for an hour: a number from 0 to {MOST}, such as "0.95"'
        raise PriceError(file, 1, name, rule)
    return micro


def table(text: str, file: str, currency: str) -> Iterator[PriceRule]:
    """The prices of nodes and GPUs of the table. Raises PriceError."""
    of_types: dict[tuple[str, str], list[int]] = {}
    known = 0
    for row in rows(text, file, COLUMNS, COLUMNS, comments=True):
        known += 1
        cells = row.cells
        kind, region, field = cells["AssetClass"], cells["Region"], cells["InstanceIDField"]
        instance_type = cells["InstanceType"] or (cells["InstanceID"] if field in _TYPE_LABELS else "")
        if kind not in ("node", "gpu", "pv"):
            raise row.wrong("AssetClass", "node, gpu or pv")
        micro = money(row, "MarketPriceHourly")
        if kind == "gpu":
            yield PriceRule(
                micro, currency, "", file, per_gpu=True, model=model_of(row.text("InstanceID")), region=region
            )
        elif kind == "node" and field == _NODE_NAME:
            name = row.text("InstanceID")
            yield PriceRule(micro, currency, "", file, node=name, region=region, plus_gpus=True)
        elif kind == "node" and instance_type:
            of_types.setdefault((region, instance_type), []).append(micro)
    if not known:
        raise PriceError(file, 1, "", "no price follows the names of the columns")
    for (region, instance_type), micros in of_types.items():
        mean = nearest(sum(micros), len(micros))
        yield PriceRule(mean, currency, "", file, instance_type=instance_type, region=region, plus_gpus=True)
