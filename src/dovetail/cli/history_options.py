# SPDX-License-Identifier: Apache-2.0
"""Options of commands that read the history: the store, the period, the grouping."""

from __future__ import annotations

import gc
import re
import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec import Struct

from dovetail.cli.history_store import opened, store_option

if TYPE_CHECKING:
    from datetime import tzinfo

    from dovetail.cost.cells import GpuTimes
    from dovetail.cost.grouping import Grouping
    from dovetail.cost.price_rules import PriceBook
    from dovetail.history.records import Period

BY = ("team", "queue", "namespace", "user", "job", "pod", "node", "model", "gpu", "day")
"""What GPU time can be grouped by, besides labels."""
LABEL = "label="
_LABEL_KEY = re.compile(r"label=([A-Za-z0-9]([-A-Za-z0-9_./]{0,315}[A-Za-z0-9])?)")


class HistoryQuestion(Struct, frozen=True):
    """What part of which history was asked for, and by what it is grouped."""

    store: Path
    by: str
    period: str
    time_zone: str
    level: int
    queues: tuple[str, ...]

    def times(self, book: PriceBook | None, daily: bool = False) -> tuple[GpuTimes, Grouping, tzinfo]:
        """The GPU time of the period, by day if it is grouped so or `daily`. Raises ClickException."""
        from dovetail.cost.calendar import PeriodError, days, period_of, zone_of
        from dovetail.cost.cells import gpu_times
        from dovetail.cost.grouping import Grouping
        from dovetail.cost.price_rules import CurrencyError

        with opened(self.store) as reader:
            known = reader.known()
            try:
                zone = zone_of(self.time_zone)
                period = period_of(self.period, zone, known.end_ms or int(time.time() * 1000))
            except PeriodError as error:
                raise click.UsageError(str(error)) from error
            inside = known.clipped(period.start_ms, period.end_ms) if known.ms else period
            named = list(days(inside, zone)) if inside.ms and (daily or self.by == "day") else []
            # Records are many and none is garbage: the collector would take a quarter of the time to find none.
            gc.disable()
            try:
                times = gpu_times(reader, period, book, [part for _, part in named], self.by)
            except CurrencyError as error:
                raise click.ClickException(str(error)) from error
            finally:
                gc.enable()
        return times, Grouping(self.by, self.level, parents(self.queues), tuple(day for day, _ in named)), zone


def asked_options(command: Callable[..., None]) -> Callable[..., None]:
    """The options; the command gets an `asked` in their place."""

    @wraps(command)
    def formed(
        store: Path, by: str, period: str, time_zone: str, level: int, queues: tuple[str, ...], **rest: Any
    ) -> None:
        if level != 1 and by != "team":
            raise click.UsageError("--level is of the tree of queues: it goes with --by team")
        if level != 1 and not queues:
            raise click.UsageError("--level needs --queues: the history has no tree of queues")
        command(asked=HistoryQuestion(store, by, period, time_zone, level, queues), **rest)

    found: Callable[..., None] = formed
    for option in reversed(_OPTIONS):
        found = option(found)
    return found


def _by(_ctx: click.Context, _param: click.Parameter, value: str) -> str:
    """Raises BadParameter."""
    if value in BY or _LABEL_KEY.fullmatch(value):
        return value
    raise click.BadParameter(f"{value!r} is none of {', '.join(BY)} and {LABEL}KEY, where KEY is a label of pods")


_OPTIONS = (
    store_option,
    click.option(
        "--by", metavar=f"{'|'.join(BY)}|{LABEL}KEY", default="team", show_default=True, callback=_by,
        help="What to group by; KEY is a label of pods.",
    ),
    click.option(
        "--period", metavar="PERIOD", default="30d", show_default=True,
        help="The period: 7d, 36h, 2026-11, 2026-11-05, or FROM..TO with dates or times.",
    ),
    click.option(
        "--time-zone", metavar="ZONE", default="UTC", show_default=True,
        help="The zone of days and dates: Europe/Berlin, or an offset such as +05:30.",
    ),
    click.option(
        "--level", type=click.IntRange(1, 32), default=1, show_default=True,
        help="With --by team, the level of the tree of queues, 1 at the top.",
    ),
    click.option(
        "--queues", metavar="FILE|FOLDER", multiple=True,
        help="Manifests that have the Queues, and so their parents. Without them each queue is a team.",
    ),
)  # fmt: skip


def parents(files: tuple[str, ...]) -> dict[str, str]:
    """The parents of the queues in these manifests, by name. Raises ClickException."""
    if not files:
        return {}
    from dovetail.kube.manifests.documents import ManifestError, read_documents

    found: dict[str, str] = {}
    try:
        for document in read_documents(files):
            value = document.value
            if not (isinstance(value, dict) and value.get("kind") == "Queue"):
                continue
            name = _text_at(value, "metadata", "name")
            if not name:
                raise ManifestError("the Queue has no name: set metadata.name", document.file, document.line())
            found[name] = _text_at(value, "spec", "parent")
    except ManifestError as error:
        raise click.ClickException(str(error)) from error
    if not found:
        raise click.ClickException(f"{', '.join(files)}: there is no Queue in it")
    return found


def _text_at(value: dict[str, Any], field: str, name: str) -> str:
    inner = value.get(field)
    text = inner.get(name) if isinstance(inner, dict) else None
    return text if isinstance(text, str) else ""


def time_text(at_ms: int, zone: tzinfo) -> str:
    """A time in the zone: `2026-11-05 12:00`."""
    from dovetail.cost.calendar import local

    return local(at_ms, zone).strftime("%Y-%m-%d %H:%M")


def covered(period: Period, zone: tzinfo, name: str) -> str:
    """The period in the zone, of this name."""
    return f"{time_text(period.start_ms, zone)} to {time_text(period.end_ms, zone)} {name}"
