# SPDX-License-Identifier: Apache-2.0
"""One GPU or MIG instance in full: its values, what bounds it, and the containers and processes on it."""

from __future__ import annotations

from collections.abc import Iterator

from dovetail.cli.top.lines import Line, bar, memory, percent, printable, style_of
from dovetail.views.top_rows import GpuHolder, GpuRow

_STEPS = "▁▂▃▄▅▆▇█"
_GIB = 1 << 10
_LABEL = 14


def detail(row: GpuRow, width: int) -> list[Line]:
    """The lines of its page."""
    instance = f" instance {row.instance} ({row.profile})" if row.instance else ""
    title = f"{printable(row.node)} GPU {row.gpu}{printable(instance)}  {printable(row.product)}"
    return [
        [(title, "bold"), (f"  {printable(row.uuid)}", "dim")],
        [],
        _field("class", f"{row.bottleneck}: {row.meaning}", style_of(row)),
        *([_field("try", row.advice)] if row.advice and row.allocated else []),
        _field("real use", bar(row.used)),
        _field("SM", f"{bar(row.sm)}  {spark(row.sm_samples, width - _LABEL - 20)}"),
        _field("tensor", bar(row.tensor)),
        _field("memory bus", bar(row.dram)),
        _field("engine", bar(row.engine)),
        _field("FP64", bar(row.fp64)),
        _field("utilization", f"{percent(row.utilization)} % (a kernel runs)"),
        _field("PCIe, NVLink", f"{_rate(row.pcie_bytes_s)}, {_rate(row.nvlink_bytes_s)}"),
        _field("memory", memory(row.memory_used_mib, row.memory_total_mib)),
        _field("power", f"{percent(row.power_w)} of {percent(row.power_limit_w)} W"),
        _field("temperature", f"{percent(row.temperature_c)} C"),
        _field("health", printable(row.health) or "not known", "" if row.healthy else "red"),
        _field("age", f"{row.age_s:g} s"),
        *([_field("processes", ", ".join(_processes(row)))] if row.processes else []),
        [],
        *_holders(row),
    ]


def spark(samples: tuple[float, ...], most: int) -> str:
    """The last samples (percent) as a line of bars."""
    last = samples[-max(0, most) :] if most > 0 else ()
    return "".join(_STEPS[min(7, max(0, int(value / 100 * 8)))] for value in last)


def _field(name: str, value: str, style: str = "") -> Line:
    return [(f"{name:<{_LABEL}}", "dim"), (value, style)]


def _rate(bytes_s: float | None) -> str:
    return "-" if bytes_s is None else f"{bytes_s / 1e9:.1f} GB/s"


def _processes(row: GpuRow) -> Iterator[str]:
    for holder, number in row.processes.items():
        if number:
            yield f"{number} of {printable(holder).replace('_', ' ')}"


def _holders(row: GpuRow) -> Iterator[Line]:
    if not row.holders:
        yield [("no pod holds it", "dim")]
        return
    yield [("SHARE   USE  MEMORY  CONTAINER", "bold")]
    for holder in row.holders:
        yield [(_holder(holder), "")]


def _holder(holder: GpuHolder) -> str:
    names = [f"{holder.pod} {holder.container}".rstrip(), f"job {holder.job}" if holder.job != holder.pod else ""]
    names += [f"queue {holder.queue}" if holder.queue else "", f"user {holder.user}" if holder.user else ""]
    used = "-" if holder.memory_mib is None else f"{holder.memory_mib / _GIB:.1f}G"
    shown = ", ".join(printable(name) for name in names if name)
    return f"{holder.share:5.2f}  {percent(holder.used_percent):>3}%  {used:>6}  {shown}"
