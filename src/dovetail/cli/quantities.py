# SPDX-License-Identifier: Apache-2.0
"""Values of options that must have a unit."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

import click

from dovetail.kube.translate.durations import duration_ms

_PERCENT = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,6})?)\s*%")


class DurationParam(click.ParamType[float]):
    """A duration such as 90s or 1h30m, in seconds; at least `least` seconds."""

    name = "DURATION"

    def __init__(self, least: int = 1) -> None:
        self._least = least

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        try:
            found = duration_ms(value) / 1000
        except ValueError:
            self.fail(f"{value!r} is not a duration with units, such as 90s, 5m, 1h30m or 2d", param, ctx)
        if found < self._least:
            self.fail(f"{value!r} must be at least {self._least} s", param, ctx)
        return found


class Percent(click.ParamType[float]):
    """A percentage such as 60%, as a number from 0 to less than 1."""

    name = "PERCENT%"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        match = _PERCENT.fullmatch(value)
        if match is None:
            self.fail(f"{value!r} is not a percentage such as 60%", param, ctx)
        found = float(Decimal(match[1]) / 100)
        if found >= 1:
            self.fail(f"{value!r} must be less than 100%", param, ctx)
        return found
