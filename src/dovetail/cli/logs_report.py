# SPDX-License-Identifier: Apache-2.0
"""How the logs of a job are printed."""

from __future__ import annotations

import sys
from collections.abc import Callable

from dovetail.cli.console import Console
from dovetail.cli.output import count, foreign
from dovetail.jobs.finding import NamedJob
from dovetail.jobs.logs import LogRequest
from dovetail.jobs.pods import JobPod
from dovetail.jobs.waiting import why_waiting


def not_started(job: NamedJob, late: list[JobPod]) -> None:
    """Print on standard error which pods have no log yet, and why."""
    if not late and job.pods:
        return
    console, why = Console(stderr=True), why_waiting(job)
    what = f"{count(len(late), 'pod')} of {job.title} {'has' if len(late) == 1 else 'have'} not started"
    if not job.pods:
        what = f"{job.title} has no pods"
    console.print(foreign(f"{what}: {why}" if why else f"{what}."))


def writer(job: NamedJob, request: LogRequest) -> Callable[[JobPod, bytes], None]:
    """Writes lines to standard output, as they are; those of several pods with the rank, or the name, of the pod."""
    single = request.pod is not None or request.rank is not None
    several = len(job.pods) > 1 or (job.kind is not None and not job.pods)
    out = sys.stdout.buffer

    def write(pod: JobPod, line: bytes) -> None:
        label = pod.name if pod.rank is None else str(pod.rank)
        out.write(line + b"\n" if single or not several else f"[{label}] ".encode() + line + b"\n")
        out.flush()

    return write
