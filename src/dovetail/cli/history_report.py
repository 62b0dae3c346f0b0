# SPDX-License-Identifier: Apache-2.0
"""What `dovetail history` prints below the list."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from dovetail.cli.console import Console, Table, prose, right
from dovetail.cli.history_columns import HistoryJob, HistoryPod, lasted
from dovetail.cli.output import count, foreign, span
from dovetail.historyserver.past_jobs import PastJobs


def show_more(found: Sequence[HistoryJob], answer: PastJobs, console: Console, *, steps: bool) -> None:
    """Print the pods of one job (`steps`), then what is known, and what is not."""
    if not found:
        console.print("No job is listed.")
    for job in found if steps else ():
        table = Table(
            "pod", "outcome", "GPUs", "node", right("waited"), right("start-up"), right("ran"), right("restarts"),
            prose("why"),
        )  # fmt: skip
        for pod in job.steps:
            table.add_row(*_row(pod))
        console.print(table)
    if answer.elsewhere:
        console.print(f"Other namespaces had {count(answer.elsewhere, 'job')} in this time.")
    known, period, gaps = answer.known, answer.period, answer.gaps
    if known.ms:
        console.print(f"The history goes from {_time(known.start_ms)} to {_time(known.end_ms)} UTC.")
    else:
        console.print("The history is empty.")
    if gaps:
        lost_ms = sum(period.clipped(gap.start_ms, gap.end_ms).ms for gap in gaps)
        console.print(f"It has {count(len(gaps), 'gap')} in this time, of {span(lost_ms)} together.")


def _row(pod: HistoryPod) -> tuple[str, ...]:
    texts = (
        pod.pod, pod.outcome, pod.gpus, pod.node, lasted(pod.waited_ms), lasted(pod.startup_ms), lasted(pod.ran_ms),
        str(pod.restarts), ": ".join(filter(None, (pod.code, pod.message))),
    )  # fmt: skip
    return tuple(foreign(text) or "-" for text in texts)


def _time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms // 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
