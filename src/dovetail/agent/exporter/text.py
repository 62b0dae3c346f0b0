# SPDX-License-Identifier: Apache-2.0
"""Prometheus' text format, for many lines of equal labels.

Rules: all lines of a kind are together, after its HELP and TYPE, in the order of the table. In label values backslash,
quote and line feed are escaped; other control characters are removed. The begin of each line is kept from scrape to
scrape, as long as its labels are used.
Source: https://prometheus.io/docs/instrumenting/exposition_formats/ (text format 0.0.4).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from dovetail.agent.exporter.kinds import Kind

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")
_LARGEST_EXACT = 2.0**53


class Series(Struct, frozen=True):
    """Values by kind with the same labels (`rendered`, as of `labels_of`). `labelled` have one more label."""

    labels: str
    values: Mapping[str, float]
    labelled: Mapping[str, Sequence[tuple[str, str, float]]] = {}


def labels_of(labels: Iterable[tuple[str, str]]) -> str:
    """The labels without braces."""
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in labels)


def _escaped(value: str) -> str:
    return _CONTROL.sub("", value).replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


class Writer:
    """Writes series of these kinds."""

    def __init__(self, kinds: Iterable[Kind]) -> None:
        self._heads = {kind.name: _head(kind) for kind in kinds}
        self._begins: dict[str, dict[str, str]] = {}

    def write(self, series: Sequence[Series]) -> dict[str, str]:
        """The text of each kind that has a value, by name, with a line feed at its end. Series of other kinds are left
        out."""
        used = {one.labels for one in series}
        for labels in self._begins.keys() - used:
            del self._begins[labels]
        begins = [self._begins.setdefault(one.labels, {}) for one in series]
        found: dict[str, str] = {}
        labelled = defaultdict(list)
        for one in series:
            for name, values in one.labelled.items():
                labelled[name].append((one.labels, values))
        for name, head in self._heads.items():
            lines = [head]
            for one, begin in zip(series, begins, strict=True):
                value = one.values.get(name)
                if value is None:
                    continue
                start = begin.get(name)
                if start is None:
                    start = begin[name] = f"{name}{{{one.labels}}} " if one.labels else f"{name} "
                lines.append(start + _number(value))
            for labels, values in labelled.get(name, ()):
                comma = "," if labels else ""
                for label, text, number in values:
                    lines.append(f'{name}{{{labels}{comma}{label}="{_escaped(text)}"}} {_number(number)}')
            if len(lines) > 1:
                lines.append("")
                found[name] = "\n".join(lines)
        return found


def _head(kind: Kind) -> str:
    text = _CONTROL.sub("", kind.help).replace("\\", r"\\").replace("\n", r"\n")
    return f"# HELP {kind.name} {text}\n# TYPE {kind.name} {kind.type}"


def _number(value: float) -> str:
    """Whole numbers without a fraction, others so that they read back equal."""
    if isinstance(value, int) or (value.is_integer() and abs(value) <= _LARGEST_EXACT):
        return str(int(value))
    return repr(value)
