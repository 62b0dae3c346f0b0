# SPDX-License-Identifier: Apache-2.0
"""The forms of values that only `dovetail simulate` takes."""

from __future__ import annotations

import re
from typing import Any

import click


class SimulatedTime(click.ParamType[Any]):
    name = "TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        from dovetail.kube.translate.durations import DURATION_RULE, duration_ms

        try:
            return duration_ms(value) or self.fail(f"{value!r} {DURATION_RULE}", param, ctx)
        except ValueError:
            self.fail(f"{value!r} {DURATION_RULE}", param, ctx)


class NodeFailures(SimulatedTime):
    name = "UP:DOWN"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        up, colon, down = value.partition(":")
        if not colon:
            self.fail(f"{value!r} must be two durations such as 30d:4h: between failures, and of a repair", param, ctx)
        return super().convert(up, param, ctx), super().convert(down, param, ctx)


class QueueWeight(click.ParamType[Any]):
    name = "QUEUE=N"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, int]:
        match = re.fullmatch(r"(.+)=([1-9][0-9]{0,5})", value)
        return (match[1], int(match[2])) if match else self.fail(f"{value!r} must be QUEUE=N: team-a=3", param, ctx)


class LevelPercents(click.ParamType[Any]):
    name = "N,N..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if not re.fullmatch(r"(100|[1-9][0-9]?)(,(100|[1-9][0-9]?))*", value):
            self.fail(f"{value!r} must be percents from 1 to 100, such as 100,50,25", param, ctx)
        return tuple(map(int, value.split(",")))
