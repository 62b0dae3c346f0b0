# SPDX-License-Identifier: Apache-2.0
"""Outcomes as tables: medians over the rounds, and speed as a multiple of the stock scheduler's.

Rules: the ratio is taken within a round, where both ran one after the other, and then its median. A run with a problem
is never part of a median; the problem is written under the table.
"""

import os
import platform
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

from benchmarks.live.measure import Outcome
from tools.controlplane.binaries import KUBERNETES_VERSION

BASELINE = "stock"

# heading, value, digits after the point
COLUMNS: tuple[tuple[str, Callable[[Outcome], float], int], ...] = (
    ("first bind s", lambda run: run.first_bind_s, 2),
    ("last bind s", lambda run: run.last_bind_s, 2),
    ("pods/s", lambda run: run.pods / run.last_bind_s, 0),
    ("first to last s", lambda run: run.last_bind_s - run.first_bind_s, 2),
    ("last event s", lambda run: run.last_event_s, 2),
    ("events", lambda run: run.events, 0),
    ("own CPU s", lambda run: run.cpu_s, 2),
    ("API server CPU s", lambda run: run.apiserver_cpu_s, 2),
    ("etcd CPU s", lambda run: run.etcd_cpu_s, 2),
    ("max RSS MiB", lambda run: run.max_rss_mib, 0),
    ("others' CPU s", lambda run: run.others_cpu_s, 2),
)

LEGEND = """\
The backlog is complete before the scheduler starts, as after a restart: with the gangs of c that costs kube-scheduler
most of its time, see *first bind*. Times are from the start of the scheduler's process. *x stock* is how many times
faster the last bind came than kube-scheduler's in the same round. *own CPU* is the scheduler's until its last event is
written, *events* the pods that got their Scheduled event, *others' CPU* what the rest of the machine used meanwhile
without the measuring process: the smaller the better the measurement. *null* binds in turn without thinking, so it is
what this machine's API server and one Python process can do; *null-events* also writes the events."""


def machine() -> str:
    """The machine in one line."""
    models = re.findall(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    model = models[0] if models else platform.machine()
    return f"{os.cpu_count()} x {model}, Python {platform.python_version()}, Kubernetes {KUBERNETES_VERSION}"


def table(outcomes: Sequence[Outcome]) -> str:
    """The runs of one scenario as a Markdown table that also reads well as it is, and their problems."""
    good = [run for run in outcomes if not run.problems]
    rows = [["scheduler", "runs", *(heading for heading, _, _ in COLUMNS), "x stock"]]
    for scheduler in dict.fromkeys(run.scheduler for run in outcomes):
        runs = [run for run in good if run.scheduler == scheduler]
        cells = [f"{median(map(value, runs)):,.{digits}f}" if runs else "-" for _, value, digits in COLUMNS]
        rows.append([scheduler, str(len(runs)), *cells, _ratio(scheduler, good)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    aligned = [f"| {' | '.join(map(str.rjust, row, widths))} |" for row in rows]
    aligned.insert(1, f"|{'|'.join('-' * (width + 1) + ':' for width in widths)}|")
    problems = [f"- round {run.round}, {run.scheduler}: {text}" for run in outcomes for text in run.problems]
    return "\n".join([*aligned, *([""] if problems else []), *problems])


def _ratio(scheduler: str, good: Sequence[Outcome]) -> str:
    last_bind_s = {(run.round, run.scheduler): run.last_bind_s for run in good}
    ratios = [
        last_bind_s[number, BASELINE] / bound_s
        for (number, name), bound_s in last_bind_s.items()
        if name == scheduler and (number, BASELINE) in last_bind_s
    ]
    return f"{median(ratios):.2f}" if ratios else "-"


def tables(outcomes: Sequence[Outcome], titles: dict[str, str]) -> str:
    """One table for each scenario in `outcomes`."""
    return "\n\n".join(
        f"### {name}: {title}\n\n{table([run for run in outcomes if run.scenario == name])}"
        for name, title in titles.items()
        if any(run.scenario == name for run in outcomes)
    )


def document(body: str, command: str) -> str:
    """A Markdown file around the tables."""
    return f"# Live benchmark\n\n{machine()}\n\n    {command}\n\n{body}\n\n{LEGEND}\n"
