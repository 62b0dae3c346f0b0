# SPDX-License-Identifier: Apache-2.0
"""The kinds of series that the exporter has: one table, `kinds.csv`.

Rules
- A kind has DCGM's name, type and unit where DCGM has one; help texts are our own. Other names begin with dovetail_.
- `source` is where the value comes from; alternatives are separated by "|", and the first that the GPU supports
  counts. An alternative is one of
    field:NAME[(SCOPE)][+NAME...]  NVML's field values NVML_FI_DEV_NAME, summed; the scope is a number, `all`, or
                                   `links`: the sum over the GPU's NVLinks
    call:NAME[(INT,...)][.FIELD|[INDEX]]  a call of NVML with the device as first argument, and the part of its result
    gpm:NAME                       NVML_GPM_METRIC_NAME, the mean between two readings
    own:PART                       made by a part of the agent
    none:REASON                    a name of DCGM that is accepted in counter lists, and always absent
  followed by `*FACTOR`, and by `@minute` if one reading per minute is enough.
- A kind with `per_instance` is also read for MIG instances.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Literal, cast

import pynvml
from msgspec import Struct

TABLE = Path(__file__).with_name("kinds.csv")
KindType = Literal["gauge", "counter", "label"]
ALL_LINKS = 0xFFFFFFFF
_LINKS = "links"
_FACTOR = re.compile(r"^(?P<rest>.*?)(?:\*(?P<factor>[0-9.e+-]+))?(?P<minute>@minute)?$")
_CALL = re.compile(r"^(?P<name>\w+)(?:\((?P<arguments>[^)]*)\))?(?:\.(?P<field>\w+)|\[(?P<index>\d+)\])?$")
_FIELD = re.compile(r"^(?P<name>\w+)(?:\((?P<scope>\w+)\))?$")


class FieldSource(Struct, frozen=True):
    """Field values that are summed: ids with their scope; `per_link` for one of each link."""

    fields: tuple[tuple[int, int], ...]
    per_link: bool = False
    factor: float = 1.0

    @property
    def text(self) -> str:
        return "nvmlDeviceGetFieldValues"


class CallSource(Struct, frozen=True):
    """`part` is a field's name, an index, or None for the whole result. `slow`: once per minute."""

    name: str
    arguments: tuple[int, ...] = ()
    part: str | int | None = None
    factor: float = 1.0
    slow: bool = False

    @property
    def text(self) -> str:
        return self.name


class GpmSource(Struct, frozen=True):
    metric: int
    factor: float = 1.0

    @property
    def text(self) -> str:
        return "nvmlGpmMetricsGet"


class OwnSource(Struct, frozen=True):
    """Made by a part of the agent, or (`reason`) by none."""

    part: str
    reason: str = ""

    @property
    def text(self) -> str:
        return self.reason or self.part


Source = FieldSource | CallSource | GpmSource | OwnSource


class Kind(Struct, frozen=True):
    """A row of the table. `sources`: the alternatives, in the order in which they are tried."""

    name: str
    type: KindType
    unit: str
    help: str
    sources: tuple[Source, ...]
    group: str
    per_instance: bool


@cache
def table() -> Mapping[str, Kind]:
    """All kinds by name, in the order of the table."""
    with TABLE.open(newline="", encoding="utf-8") as file:
        return {row["name"]: _kind(row) for row in csv.DictReader(file)}


def _kind(row: Mapping[str, str]) -> Kind:
    found = (_source(text) for text in row["source"].split("|"))
    sources = tuple(source for source in found if source is not None)
    sort = cast(KindType, row["type"])
    return Kind(row["name"], sort, row["unit"], row["help"], sources, row["group"], row["per_instance"] == "yes")


def _source(text: str) -> Source | None:
    """None for a field or metric that the binding does not know yet."""
    sort, _, rest = text.partition(":")
    if sort in ("own", "none"):
        return OwnSource(rest) if sort == "own" else OwnSource("none", rest)
    found = _FACTOR.match(rest)
    assert found is not None, text
    factor, rest = float(found["factor"] or 1), found["rest"]
    if sort == "gpm":
        metric = getattr(pynvml, f"NVML_GPM_METRIC_{rest}", None)
        return GpmSource(metric, factor) if metric is not None else None
    if sort == "field":
        return _fields(rest, factor)
    call = _CALL.match(rest)
    assert sort == "call" and call is not None, text
    arguments = tuple(int(each, 0) for each in (call["arguments"] or "").split(",") if each)
    part = int(call["index"]) if call["index"] else call["field"]
    return CallSource(call["name"], arguments, part, factor, bool(found["minute"]))


def _fields(text: str, factor: float) -> FieldSource | None:
    fields, per_link = [], False
    for each in text.split("+"):
        found = _FIELD.match(each)
        assert found is not None, text
        number = getattr(pynvml, f"NVML_FI_DEV_{found['name']}", None)
        if number is None:
            return None
        scope = found["scope"] or "0"
        per_link = per_link or scope == _LINKS
        fields.append((number, 0 if scope == _LINKS else ALL_LINKS if scope == "all" else int(scope)))
    return FieldSource(tuple(fields), per_link, factor)
