# SPDX-License-Identifier: Apache-2.0
"""The lines of `dovetail top`: one for each GPU, node, job, team or replica, as cells of text with a style.

Rules
- Colours show states only: green computes, yellow is held and idle or used and not held, red is
  unhealthy or hangs, dim is free.
- With a width, columns are left out until the line fits, the least important first, and long names are cut with `…`.
  Without one, nothing is cut.
- Control characters, and those that change the direction of text, are printed as escapes. There is no markup here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from msgspec import Struct
from rich.cells import cell_len, set_cell_size

from dovetail.cli.output import gpus
from dovetail.monitoring.bottleneck import HUNG
from dovetail.views.top import By, Top, TopGroup
from dovetail.views.top_rows import GpuRow

T = TypeVar("T")
Cell = tuple[str, str]
"""Text and style: "", "bold", "dim", "green", "yellow", "red" or "reverse"."""
Line = list[Cell]
_LONGEST = 256
_EIGHTHS = " ▏▎▍▌▋▊▉"
_BAR = 6
_GAP = "  "
_GIB, _TIB = 1 << 10, 1 << 20
_NARROWEST = 8
_SGR = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "reverse": "7"}

NOTHING = (
    "No GPU metrics: no pod of the agent (label app.kubernetes.io/name=dovetail-agent) or of dcgm-exporter was found. "
    "Install the agent: kubectl apply -k deploy/agent. Or name a Prometheus that scrapes one of them: dovetail top "
    "--prometheus URL"
)


class TopColumn(Struct, Generic[T], frozen=True):
    """A column. `width` 0: as wide as its longest cell, and cut if need be. `drop`: columns with higher numbers are
    left out first, 0 never."""

    heading: str
    cell: Callable[[T], str]
    width: int = 0
    drop: int = 0


def printable(text: str) -> str:
    """The text of a name from a cluster, safe to print."""
    if len(text) > _LONGEST:
        text = text[: _LONGEST - 1] + "…"
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def clipped(line: Line, width: int) -> Line:
    """The line, cut to so many columns."""
    left, cells = width, []
    for text, style in line:
        length = len(text) if text.isascii() else cell_len(text)
        if length > left:
            cells.append((set_cell_size(text, left), style))
            break
        cells.append((text, style))
        left -= length
    return cells


def plain(line: Line) -> str:
    """The text of the line."""
    return "".join(text for text, _ in line)


def painted(line: Line, *, colours: bool) -> str:
    """The line with the terminal's codes for its styles; without colours only the selection is marked."""
    codes = _SGR if colours else {"reverse": _SGR["reverse"], "bold": _SGR["bold"]}
    return "".join(f"\x1b[{codes[style]}m{text}\x1b[0m" if style in codes else text for text, style in line)


def percent(value: float | None) -> str:
    """`73`, `-` if it is not known."""
    return "-" if value is None else f"{value:.0f}"


def bar(value: float | None) -> str:
    """A bar of fixed width for percent, and the number."""
    if value is None:
        return f"{'':{_BAR}} {'-':>4}"
    eighths = round(min(100.0, max(0.0, value)) / 100 * _BAR * 8)
    full, part = divmod(eighths, 8)
    drawn = "█" * full + (_EIGHTHS[part] if part else "")
    return f"{drawn:{_BAR}} {value:3.0f}%"


def memory(used_mib: float | None, total_mib: float | None) -> str:
    """`41/80G`; terabytes for many GPUs."""
    if used_mib is None:
        return "-"
    unit, letter = (_TIB, "T") if (total_mib or used_mib) >= 10 * _TIB else (_GIB, "G")
    total = f"/{total_mib / unit:.0f}" if total_mib else ""
    return f"{used_mib / unit:.0f}{total}{letter}"


def pods_of(row: GpuRow) -> str:
    """The first pod on it, and how many more there are; `free` without one."""
    if not row.holders:
        return "free"
    pods = list(dict.fromkeys(holder.pod for holder in row.holders))
    more = f" +{len(pods) - 1}" if len(pods) > 1 else ""
    return printable(pods[0]) + more


def job_of(row: GpuRow) -> str:
    """Job and queue, as far as they are known and differ from the pod."""
    if not row.holders:
        return ""
    jobs = dict.fromkeys(holder.job.partition("/")[2] for holder in row.holders)
    queues = dict.fromkeys(holder.queue for holder in row.holders if holder.queue)
    job = next(iter(jobs)) if len(jobs) == 1 else f"{len(jobs)} jobs"
    queue = f" @{next(iter(queues))}" if len(queues) == 1 else ""
    return printable(job + queue)


def style_of(row: GpuRow) -> str:
    """The colour of the state of a GPU."""
    if not row.healthy or row.bottleneck == HUNG.name:
        return "red"
    if not row.allocated:
        return "dim" if row.idle else "yellow"
    return "yellow" if row.idle_allocated else "" if row.idle else "green"


def group_style(group: TopGroup) -> str:
    """That of the worst of its GPUs."""
    if group.fault or group.unhealthy or any(name == HUNG.name for name, _ in group.classes):
        return "red"
    if not group.allocated:
        return "dim"
    return "yellow" if group.idle_allocated else "green" if group.computing else ""


_GPU_COLUMNS: tuple[TopColumn[GpuRow], ...] = (
    TopColumn("NODE", lambda row: printable(row.node)),
    TopColumn("GPU", lambda row: str(row.gpu), 3),
    TopColumn("MIG", lambda row: printable(row.profile), drop=5),
    TopColumn("POD", pods_of),
    TopColumn("JOB @QUEUE", job_of, drop=6),
    TopColumn("USE", lambda row: bar(row.used), _BAR + 5),
    TopColumn("SM%", lambda row: percent(row.sm), 3, 2),
    TopColumn("TC%", lambda row: percent(row.tensor), 3, 3),
    TopColumn("MEM%", lambda row: percent(row.dram), 4, 3),
    TopColumn("MEMORY", lambda row: memory(row.memory_used_mib, row.memory_total_mib), 8, 1),
    TopColumn("POWER", lambda row: "-" if row.power_w is None else f"{row.power_w:.0f}W", 5, 7),
    TopColumn("TEMP", lambda row: "-" if row.temperature_c is None else f"{row.temperature_c:.0f}C", 4, 8),
    TopColumn("CLASS", lambda row: row.bottleneck if row.allocated or not row.idle else ""),
    TopColumn("HEALTH", lambda row: "" if row.healthy else printable(row.health), drop=4),
)


def _group_columns(by: By) -> tuple[TopColumn[TopGroup], ...]:
    held = TopColumn[TopGroup]("ALLOCATED", lambda one: gpus(round(one.allocated * 1000)), 9, 3)
    queue = TopColumn[TopGroup]("QUEUE", lambda one: printable(one.queue), drop=4)
    nodes = TopColumn[TopGroup]("NODES", lambda one: str(one.nodes), 5, 5)
    return (
        TopColumn(by.upper(), lambda one: printable(one.name)),
        *([queue] if by == "job" else []),
        TopColumn("GPUS", lambda one: gpus(round(one.gpus * 1000)), 5),
        held if by == "node" else nodes,
        TopColumn("USE", lambda one: bar(one.used), _BAR + 5),
        TopColumn("SM%", lambda one: percent(one.sm), 3, 2),
        TopColumn("TC%", lambda one: percent(one.tensor), 3, 2),
        TopColumn("MEM%", lambda one: percent(one.dram), 4, 2),
        TopColumn("MEMORY", lambda one: memory(one.memory_used_mib, one.memory_total_mib), 10, 6),
        TopColumn("POWER", lambda one: f"{one.power_w / 1000:.1f}kW", 8, 7),
        TopColumn("IDLE", lambda one: str(one.idle_allocated) if one.idle_allocated else "", 4, 3),
        TopColumn("CLASS", lambda one: printable(one.fault) or _classes(one)),
    )


def _classes(group: TopGroup) -> str:
    if len(group.classes) == 1:
        return group.classes[0][0]
    return ", ".join(f"{number} {name}" for name, number in group.classes[:3])


class Lines(Struct, Generic[T], frozen=True):
    """The columns with their widths, and how a row is styled."""

    columns: tuple[tuple[TopColumn[T], int], ...]
    style: Callable[[T], str]

    @property
    def heading(self) -> Line:
        return [(_joined(_placed(column, column.heading, width) for column, width in self.columns), "bold")]

    def line(self, row: T) -> Line:
        """The cells of a row; all of a free or unhealthy one has its colour, else use and class have it."""
        style = self.style(row)
        cells: Line = []
        for column, width in self.columns:
            colour = style if style in ("dim", "red") or column.heading in ("USE", "CLASS") else ""
            cells.append((_placed(column, column.cell(row), width), colour))
            cells.append((_GAP, ""))
        return cells[:-1]


def gpu_lines(rows: Sequence[GpuRow], width: int | None) -> Lines[GpuRow]:
    """The lines of GPUs, for a terminal of so many columns or, with None, as wide as they are."""
    return Lines(fitted(_GPU_COLUMNS, rows, width), style_of)


def group_lines(groups: Sequence[TopGroup], by: By, width: int | None) -> Lines[TopGroup]:
    """The lines of nodes, jobs or teams."""
    return Lines(fitted(_group_columns(by), groups, width), group_style)


def summary(top: Top) -> str:
    """The numbers of all GPUs as a sentence."""
    of = top.summary
    parts = [
        f"{of.gpus} GPUs" if of.devices == of.gpus else f"{of.gpus} GPUs ({of.devices} with MIG instances)",
        f"{of.allocated} allocated", f"{of.computing} computing", f"{of.idle_allocated} allocated and idle",
        f"{of.unhealthy} unhealthy",
    ]  # fmt: skip
    unread = f"; {of.unread_nodes} of {of.nodes} nodes do not answer" if of.unread_nodes else ""
    return f"{', '.join(parts)}{unread}"


def fitted(
    columns: Sequence[TopColumn[Any]], rows: Sequence[Any], width: int | None
) -> tuple[tuple[TopColumn[Any], int], ...]:
    """The columns with their widths, for a terminal of so many columns or, with None, as wide as they are."""
    sizes = {
        column.heading: column.width
        or max((cell_len(column.heading), *(cell_len(column.cell(row)) for row in rows)), default=0)
        for column in columns
    }
    # A column without a cell is left out, but for those that name the row.
    chosen = [one for one in columns if one.width or not one.drop or sizes[one.heading] > len(one.heading)
              or any(one.cell(row) for row in rows)]  # fmt: skip
    if width is None:
        return tuple((column, sizes[column.heading]) for column in chosen)

    def least() -> int:
        return sum(one.width or min(sizes[one.heading], _NARROWEST) for one in chosen) + len(_GAP) * (len(chosen) - 1)

    def wanted() -> int:
        return sum(min(sizes[one.heading], 3 * _NARROWEST) for one in chosen) + len(_GAP) * (len(chosen) - 1)

    while wanted() > width and any(one.drop for one in chosen):
        chosen.remove(max(chosen, key=lambda one: one.drop))
    elastic = [one.heading for one in chosen if not one.width]
    while (over := sum(sizes[one.heading] for one in chosen) + len(_GAP) * (len(chosen) - 1) - width) > 0:
        widest = max(elastic, key=lambda heading: sizes[heading])
        if sizes[widest] <= 1:
            break
        second = max((sizes[one] for one in elastic if one != widest), default=0)
        sizes[widest] -= max(1, min(over, sizes[widest] - max(second, 1)))
    return tuple((column, sizes[column.heading]) for column in chosen)


def _placed(column: TopColumn[Any], text: str, width: int) -> str:
    length = len(text) if text.isascii() else cell_len(text)
    if length > width:
        return set_cell_size(text, width - 1) + "…" if width > 1 else text[:width]
    blanks = " " * (width - length)
    # Numbers, but not the bar, end at the same place.
    return blanks + text if column.width and column.heading != "USE" else text + blanks


def _joined(cells: Any) -> str:
    return _GAP.join(cells)
