# SPDX-License-Identifier: Apache-2.0
"""The progress of a job, as the commands print it that wait for one."""

from __future__ import annotations

from collections.abc import Callable

from dovetail.cli.console import Console
from dovetail.cli.output import foreign
from dovetail.jobs.finding import NamedJob
from dovetail.jobs.waiting import progress, why_waiting

EVERY_S = 2.0
"""How often what is waited for is read."""
_REASON_SHOWN = 160


def shower() -> Callable[[NamedJob], None]:
    """Prints how far a job is on standard error, whenever that has changed."""
    console, last = Console(stderr=True), ""

    def shown(job: NamedJob) -> None:
        nonlocal last
        why = why_waiting(job)
        text = f"{job.title}: {progress(job)}" + (f": {short(why)}" if why and not job.ended else "")
        if text != last:
            console.print(foreign(text))
            last = text

    return shown


def short(why: str) -> str:
    """The code and the first sentence of a refusal."""
    code, _, text = why.partition(": ")
    first = text.partition(". ")[0].rstrip(".")
    short = f"{code.partition(' (')[0]}: {first}" if text else why
    return short if len(short) <= _REASON_SHOWN else f"{short[:_REASON_SHOWN]} ..."
