# SPDX-License-Identifier: Apache-2.0
"""The text of a simulation of `dovetail serve plan --trace`."""

from __future__ import annotations

from dovetail.advice.serve.types import SimulatedRun, TimePercentiles, TraceSimulation
from dovetail.cli.console import Console, Table, prose, right
from dovetail.cli.output import count

_MICRO = 10**6
_HOUR_S = 3600
_MOST_GAPS = 3
_STEPS = 12


def show_simulation(answer: TraceSimulation, console: Console) -> None:
    """Print the times, the replicas over time and the cost."""
    console.print("")
    console.print(
        f"Plan 1 with {count(answer.requests, 'request')} of {answer.seconds / 60:.0f} min, {answer.mean_rate:g}/s, "
        f"{answer.peak_rate:g}/s in the busiest 5 min (times p50 / p95 / p99):"
    )
    numbers = ("TTFT ms", "TPOT ms", "within both %", "queued at most", "GPU h", "$")
    table = Table("replicas", *map(right, numbers))
    for run in answer.runs:
        table.add_row(
            run.scaling, _times(run.ttft_ms, 1), _times(run.tpot_us, 1000), f"{run.met_milli / 10:.1f}",
            str(run.queued), f"{run.gpu_s / _HOUR_S:.1f}",
            "?" if run.micro_usd is None else f"{run.micro_usd / _MICRO:.2f}",
        )  # fmt: skip
    console.print(table)
    over_time = Table("replicas", prose("over time: minute=replicas"))
    for run in answer.runs:
        over_time.add_row(run.scaling, _over_time(run))
    console.print(over_time)
    targets = " and ".join(map(str, answer.runs[-1].targets))
    console.print(
        f"By need: as many replicas as dovetail serve replicas --requests {targets} desires, if there is room."
    )
    if any(run.unfinished for run in answer.runs):
        unfinished = ", ".join(f"{run.unfinished} ({run.scaling})" for run in answer.runs)
        console.print(f"[yellow]attention:[/yellow] requests that did not end: {unfinished}.")
    if answer.later:
        minutes = f"{answer.seconds / 60:.0f} min"
        console.print(f"note: the first {minutes} are simulated; {count(answer.later, 'request')} came later.")
    for begin, end in answer.gaps[:_MOST_GAPS]:
        console.print(f"note: no request from {begin} s to {end} s: is the trace whole?")
    if len(answer.gaps) > _MOST_GAPS:
        console.print(f"note: and {count(len(answer.gaps) - _MOST_GAPS, 'more gap')} without requests")


def _times(found: TimePercentiles | None, unit: int) -> str:
    if found is None:
        return "-"
    digits = 0 if unit == 1 else 1
    return " / ".join(f"{value / unit:.{digits}f}" for value in (found.p50, found.p95, found.p99))


def _over_time(run: SimulatedRun) -> str:
    """Where the number changes, the first changes only; all are in JSON."""
    shown: list[str] = []
    before: tuple[int, ...] = ()
    for at_s, numbers in run.replicas:
        if numbers != before:
            shown.append(f"{at_s // 60}={'+'.join(map(str, numbers))}")
            before = numbers
    return " ".join(shown[:_STEPS]) + (" ..." if len(shown) > _STEPS else "")
