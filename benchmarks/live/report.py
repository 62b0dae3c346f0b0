# SPDX-License-Identifier: Apache-2.0
"""Outcomes as tables: medians over the rounds, and ratios of two runs.

Rules: a ratio is computed within each round; the table has the median. Medians exclude runs with a problem; the problem
is printed below the table.
"""

import os
import platform
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median

from benchmarks.live.measure import Outcome
from tools.controlplane.binaries import KUBERNETES_VERSION

Run = tuple[str, int, str]
"""Scenario, round and scheduler."""

# heading, value, digits after the point
COLUMNS: tuple[tuple[str, Callable[[Outcome], float], int], ...] = (
    ("first bind s", lambda run: run.first_bind_s, 2),
    ("last bind s", lambda run: run.last_bind_s, 2),
    ("pods/s", lambda run: run.pods / run.last_bind_s, 0),
    ("first to last s", lambda run: run.last_bind_s - run.first_bind_s, 2),
    ("p50 ms", lambda run: run.p50_ms, 0),
    ("p99 ms", lambda run: run.p99_ms, 0),
    ("last event s", lambda run: run.last_event_s, 2),
    ("events", lambda run: run.events, 0),
    ("own CPU s", lambda run: run.cpu_s, 2),
    ("own CPU s/1,000", lambda run: 1000 * run.cpu_s / run.pods, 2),
    ("API server CPU s/1,000", lambda run: 1000 * run.apiserver_cpu_s / run.pods, 2),
    ("etcd CPU s/1,000", lambda run: 1000 * run.etcd_cpu_s / run.pods, 2),
    ("max RSS MiB", lambda run: run.max_rss_mib, 0),
    ("others' CPU s", lambda run: run.others_cpu_s, 2),
)


def _beside(scheduler: str) -> Callable[[Outcome], Run]:
    return lambda run: (run.scenario, run.round, scheduler)


def _alone(run: Outcome) -> Run:
    return run.alone, run.round, run.scheduler


# heading, the run to compare with, ratio of the two
RATIOS: tuple[tuple[str, Callable[[Outcome], Run], Callable[[Outcome, Outcome], float]], ...] = (
    ("x stock", _beside("stock"), lambda run, stock: stock.last_bind_s / run.last_bind_s),
    ("x stock CPU", _beside("stock"), lambda run, stock: run.cpu_s / stock.cpu_s),
    ("x null s", _beside("null"), lambda run, null: run.last_bind_s / null.last_bind_s),
    ("x alone s", _alone, lambda run, alone: run.last_bind_s / alone.last_bind_s),
)

LEGEND = """\
The backlog is complete before the scheduler starts, as after a restart: with gangs that costs kube-scheduler most of
its time, see *first bind*. Times are from the start of the scheduler's process, *p50* and *p99* of what each pod waited
for its bind, from that start or from when the pod was created. *x stock* is how many times faster the last bind came
than kube-scheduler's in the same round, *x stock CPU* the CPU time as a multiple of its, *x null s* and *x alone s* the
time to the last bind as a multiple of what the binder that does not think needed, and of what the same scheduler needed
without the pods that fit nowhere. *own CPU* is the scheduler's until its last event is written, *1,000* are pods bound,
*events* the pods that got their Scheduled event, *others' CPU* what the rest of the machine used meanwhile without the
measuring process, which also makes the stream: the smaller the better the measurement. *null* binds in turn without
thinking, so it is what this machine's API server and one Python process can do; *null-events* also writes the
events."""


def machine() -> str:
    """A description of the machine in one line."""
    models = re.findall(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    model = models[0] if models else platform.machine()
    return f"{os.cpu_count()} x {model}, Python {platform.python_version()}, Kubernetes {KUBERNETES_VERSION}"


def table(outcomes: Sequence[Outcome], good: Mapping[Run, Outcome]) -> str:
    """The runs of one scenario as an aligned Markdown table, followed by their problems. `good` are the runs of all
    scenarios without a problem."""
    rows = [["scheduler", "runs", *(heading for heading, _, _ in COLUMNS), *(heading for heading, _, _ in RATIOS)]]
    for scheduler in dict.fromkeys(run.scheduler for run in outcomes):
        runs = [run for run in outcomes if run.scheduler == scheduler and not run.problems]
        cells = [_median(map(value, runs), digits) for _, value, digits in COLUMNS]
        for _, other, ratio in RATIOS:
            cells.append(_median((ratio(run, good[other(run)]) for run in runs if other(run) in good), 2))
        rows.append([scheduler, str(len(runs)), *cells])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    aligned = [f"| {' | '.join(map(str.rjust, row, widths))} |" for row in rows]
    aligned.insert(1, f"|{'|'.join('-' * (width + 1) + ':' for width in widths)}|")
    problems = [f"- round {run.round}, {run.scheduler}: {text}" for run in outcomes for text in run.problems]
    return "\n".join([*aligned, *([""] if problems else []), *problems])


def _median(values: Iterable[float], digits: int) -> str:
    known = list(values)
    return f"{median(known):,.{digits}f}" if known else "-"


def tables(outcomes: Sequence[Outcome], titles: dict[str, str]) -> str:
    """One table for each scenario in `outcomes`."""
    good = {(run.scenario, run.round, run.scheduler): run for run in outcomes if not run.problems}
    return "\n\n".join(
        f"### {name}: {title}\n\n{table([run for run in outcomes if run.scenario == name], good)}"
        for name, title in titles.items()
        if any(run.scenario == name for run in outcomes)
    )


def document(body: str, command: str) -> str:
    """A Markdown file around the tables."""
    return f"# Live benchmark\n\n{machine()}\n\n    {command}\n\n{body}\n\n{LEGEND}\n"
