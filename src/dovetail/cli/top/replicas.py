# SPDX-License-Identifier: Apache-2.0
"""The lines of `dovetail top` for the replicas and pools of inference engines."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct

from dovetail.cli.output import gpus
from dovetail.cli.top.lines import Lines, TopColumn, bar, fitted, percent, printable
from dovetail.monitoring.engine_load import EngineLoad
from dovetail.views.top import Top

NO_ENGINES = (
    "No metrics of inference engines: vLLM, SGLang, TensorRT-LLM, Triton and llm-d have them where a Prometheus "
    "scrapes them, which --prometheus names"
)


class ReplicaRow(Struct, frozen=True):
    """A replica with the GPUs of its pod, None where no exporter reports them, and their mean real use."""

    load: EngineLoad
    gpus: float | None
    used: float | None


def replicas_of(answer: Top) -> tuple[ReplicaRow, ...]:
    """The replicas and pools of an answer by replica."""
    groups = {group.name: group for group in answer.groups}
    rows = []
    for load in answer.engines or ():
        group = groups.get(load.name) if load.kind == "replica" else None
        rows.append(ReplicaRow(load, group.gpus if group else None, group.used if group else None))
    return tuple(rows)


def replica_lines(rows: Sequence[ReplicaRow], width: int | None) -> Lines[ReplicaRow]:
    """Their lines, for a terminal of so many columns or, with None, as wide as they are."""
    return Lines(fitted(_COLUMNS, rows, width), _style)


def _style(row: ReplicaRow) -> str:
    if not row.load.findings:
        return "green" if row.load.running else ""
    return "dim" if row.load.awake is False else "red" if not row.load.engine else "yellow"


def _number(value: Callable[[EngineLoad], float | None]) -> Callable[[ReplicaRow], str]:
    return lambda row: percent(value(row.load))


def _growth(row: ReplicaRow) -> str:
    growth = row.load.growth_per_min
    return "-" if growth is None else f"{growth:+.1f}"


def _state(row: ReplicaRow) -> str:
    if row.load.findings:
        return ", ".join(one.name for one in row.load.findings)
    return f"{row.load.ready:.0f} ready" if row.load.ready is not None else ""


_COLUMNS: tuple[TopColumn[ReplicaRow], ...] = (
    TopColumn("REPLICA", lambda row: printable(row.load.name) + (" (pool)" if row.load.kind == "pool" else "")),
    TopColumn("ENGINE", lambda row: printable(row.load.engine), drop=4),
    TopColumn("MODEL", lambda row: printable(row.load.model), drop=5),
    TopColumn("GPUS", lambda row: "-" if row.gpus is None else gpus(round(row.gpus * 1000)), 5, 6),
    TopColumn("USE", lambda row: bar(row.used), 11, 3),
    TopColumn("RUNNING", _number(lambda load: load.running), 7),
    TopColumn("WAITING", _number(lambda load: load.waiting), 7),
    TopColumn("PER MIN", _growth, 7, 2),
    TopColumn("KV%", _number(lambda load: load.cache_percent), 4),
    TopColumn("STATE", _state, drop=1),
)
