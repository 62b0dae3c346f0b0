# SPDX-License-Identifier: Apache-2.0
"""Prometheus' text format, read: as much as is needed of the answers of exporters.

Rules
- Lines of other metrics than the requested ones, and lines that are not in the format, are left out.
- Lines with the same labels are joined: the exporters of GPUs write each label set once for every metric.
- NaN, infinities and DCGM's values for "no data" are left out. Label values may hold anything: whoever prints them
  escapes them.
Source: https://prometheus.io/docs/instrumenting/exposition_formats/ (text format 0.0.4).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from functools import lru_cache
from math import isfinite

from msgspec import Struct

_LINE = re.compile(
    r"^[ \t]*([a-zA-Z_:][a-zA-Z0-9_:]*)(?:[ \t]*\{(.*)\}[ \t]*|[ \t]+)([^\s}]+)(?:[ \t]+-?[0-9]+)?[ \t\r]*$",
    re.MULTILINE,
)
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*"((?:[^"\\]|\\.)*)"')
_ESCAPED = re.compile(r"\\(.)")
_UNESCAPED = {"n": "\n", "\\": "\\", '"': '"'}
_INT32_BLANK, _INT64_BLANK, _FP64_BLANK = 0x7FFFFFF0, 0x7FFFFFFFFFFFFFF0, 140737488355328.0
_BLANKS = 16
"""Each type has values from its blank on: not found, not supported, not permitted ... (dcgm_structs.h)."""


class SeriesValues(Struct, frozen=True, gc=False):
    """The values of one set of labels, by metric."""

    labels: Mapping[str, str]
    values: Mapping[str, float]


def parse(text: str, names: Collection[str]) -> list[SeriesValues]:
    """The values of the metrics `names`, in the order in which their labels come first."""
    found: dict[str, dict[str, float]] = {}
    for name, labels, written in _LINE.findall(text):
        if name in names:
            try:
                value = float(written)
            except ValueError:
                continue
            if has_data(value):
                found.setdefault(labels, {})[name] = value
    return [SeriesValues(labels_of(labels), values) for labels, values in found.items()]


def has_data(value: float) -> bool:
    """Whether the value is one, and not one of DCGM's for "no data"."""
    if -_INT32_BLANK < value < _INT32_BLANK:
        return True
    if not isfinite(value) or value >= _INT64_BLANK:
        return False
    return not any(blank <= value < blank + _BLANKS for blank in (_INT32_BLANK, _FP64_BLANK))


@lru_cache(maxsize=1 << 16)
def labels_of(text: str) -> Mapping[str, str]:
    """The labels of a line, without its braces. Kept from scrape to scrape."""
    return {name: _unescaped(value) if "\\" in value else value for name, value in _LABEL.findall(text)}


def _unescaped(value: str) -> str:
    return _ESCAPED.sub(lambda match: _UNESCAPED.get(match[1], match[0]), value)
