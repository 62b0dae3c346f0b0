# SPDX-License-Identifier: Apache-2.0
"""Options of commands that read the history: the store, the period, the grouping."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

import click
from msgspec import Struct
from msgspec.structs import replace

from dovetail.cli.history_store import HistorySource, source_options
from dovetail.cli.names import complete_namespaces
from dovetail.historyserver.questions import BY, LABEL, MOST_ROWS

if TYPE_CHECKING:
    from datetime import tzinfo

    from dovetail.history.records import Period
    from dovetail.historyserver.questions import UseQuestion


class HistoryQuestion(Struct, frozen=True):
    """What part of which history was asked for, and by what it is grouped."""

    source: HistorySource
    by: str
    period: str
    time_zone: str
    level: int
    queues: tuple[str, ...]
    limit: int

    @property
    def use(self) -> UseQuestion:
        """The question as it is asked. Raises ClickException."""
        from dovetail.historyserver.questions import UseQuestion

        return UseQuestion(self.by, self.period, self.time_zone, self.level, parents(self.queues), self.limit)

    @property
    def zone(self) -> tzinfo:
        """Raises UsageError."""
        return zone_named(self.time_zone)


def zone_named(text: str) -> tzinfo:
    """Raises UsageError."""
    from dovetail.cost.calendar import PeriodError, zone_of

    try:
        return zone_of(text)
    except PeriodError as error:
        raise click.UsageError(str(error)) from error


def asked_options(command: Callable[..., None]) -> Callable[..., None]:
    """The options; the command gets an `asked` in their place."""

    @wraps(command)
    def formed(source: HistorySource, namespace: str, **options: Any) -> None:
        fields = {name: options.pop(name) for name in HistoryQuestion.__struct_fields__[1:]}
        asked = HistoryQuestion(replace(source, own=namespace), **fields)
        if asked.level != 1 and asked.by != "team":
            raise click.UsageError("--level is of the tree of queues: it goes with --by team")
        if asked.level != 1 and not asked.queues:
            raise click.UsageError("--level needs --queues: the history has no tree of queues")
        command(asked=asked, **options)

    found: Callable[..., None] = source_options(formed)
    for option in reversed(_OPTIONS):
        found = option(found)
    return found


def _by(_ctx: click.Context, _param: click.Parameter, value: str) -> str:
    """Raises BadParameter."""
    from dovetail.historyserver.questions import QuestionError, UseQuestion

    try:
        UseQuestion(value).check()
    except QuestionError as error:
        raise click.BadParameter(str(error)) from error
    return value


PERIOD_OPTIONS = (
    click.option(
        "--period", metavar="PERIOD", default="30d", show_default=True,
        help="The period: 7d, 36h, 2026-11, 2026-11-05, or FROM..TO with dates or times.",
    ),
    click.option(
        "--time-zone", metavar="ZONE", default="UTC", show_default=True,
        help="The zone of days and dates: Europe/Berlin, or an offset such as +05:30.",
    ),
)  # fmt: skip
_OPTIONS = (
    click.option(
        "-n", "--namespace", default="", shell_complete=complete_namespaces,
        help="Show what users of this namespace see: its names, and all others as one row. Default: all names, or "
        "where you may not see them the namespace of the context.",
    ),
    click.option(
        "--by", metavar=f"{'|'.join(BY)}|{LABEL}KEY", default="team", show_default=True, callback=_by,
        help="What to group by; KEY is a label of pods.",
    ),
    *PERIOD_OPTIONS,
    click.option(
        "--level", type=click.IntRange(1, 32), default=1, show_default=True,
        help="With --by team, the level of the tree of queues, 1 at the top.",
    ),
    click.option(
        "--queues", metavar="FILE|FOLDER", multiple=True,
        help="Manifests that have the Queues, and so their parents. Without them each queue is a team.",
    ),
    click.option(
        "--limit", metavar="NUMBER", type=click.IntRange(min=1), default=MOST_ROWS, show_default=True,
        help="Show so many groups, the largest; all others are one row. By day and by queue all are shown. A "
        f"collector shows at most {MOST_ROWS}.",
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
