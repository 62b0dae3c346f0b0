# SPDX-License-Identifier: Apache-2.0
"""What `dovetail events` prints."""

from __future__ import annotations

from datetime import UTC, datetime

from dovetail.cli.console import Console, Table, prose, right
from dovetail.cli.output import ago, foreign, span
from dovetail.cli.wait_report import short
from dovetail.jobs.life import REFUSED, JobLife, LifeStep

_STATES = {
    "waits": "waits", "starts": "is bound and starts", "runs": "runs", "ends": "is being deleted", "held": "is held",
    "suspended": "is suspended", "succeeded": "has succeeded", "failed": "has failed",
    "has no pods": "has no pods",
}  # fmt: skip


def show(answer: JobLife, now_ms: int, console: Console) -> None:
    """Print the steps as a table."""
    if answer.steps:
        table = Table("time (UTC)", right("after"), "step", right("pods"), prose("what"))
        for number, step in enumerate(answer.steps):
            table.add_row(_time(step.at_ms), span(step.after_ms) if number else "-", *_row(step, answer.pods))
        console.print(table)
        last_ms = answer.steps[-1].last_ms
        console.print(f"{answer.job} {_STATES[answer.state]}; the last step was {ago(last_ms, now_ms)} ago.")
    else:
        console.print(f"{answer.job} {_STATES[answer.state]}: nothing has happened to it yet.")
    for one in answer.unknown:
        console.print(f"Not known: {one}.")


def _row(step: LifeStep, pods: int) -> tuple[str, ...]:
    lasted = step.last_ms - step.at_ms
    detail = foreign(short(step.detail) if step.step == REFUSED else step.detail)
    if lasted >= 1000 and step.pods > 1 and step.step != REFUSED:
        detail = f"{detail}; the last one {span(lasted)} later" if detail else f"the last one {span(lasted)} later"
    elif lasted >= 1000:
        detail = f"{detail}; last {span(lasted)} later"
    of = f"{step.pods} of {pods}" if step.pods and pods and step.pods <= pods else str(step.pods or "-")
    return step.step, of, detail or "-"


def _time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms // 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
