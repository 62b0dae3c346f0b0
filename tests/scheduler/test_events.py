# SPDX-License-Identifier: Apache-2.0
"""The reference lists every event that can be written."""

from __future__ import annotations

from dovetail.agent.plugin.job_network import LACKING_REASON, REASON, WRONG_REASON
from dovetail.agent.publish.pod_events import GPU_ERROR, UNREQUESTED
from dovetail.jobs import notices
from dovetail.scheduler.events import EventKind
from tests.docs.pages import page


def test_every_kind_of_event_is_in_the_reference() -> None:
    rows = page("docs/reference/events.md").section("Events").rows("reason")
    of_others = {(reason, "Checking", "Warning") for reason in (GPU_ERROR, UNREQUESTED, notices.REASON)}
    stopped = (notices.STOPPED_REASON, "Stopping", "Warning")
    network = {(REASON, "Allocating", "Normal")}
    network |= {(reason, "Allocating", "Warning") for reason in (WRONG_REASON, LACKING_REASON)}
    of_viewers = {(f"Maintenance{what}", "Draining", "Normal") for what in ("Begun", "Ended")}
    of_viewers |= {("JobSuspended", "Suspending", "Normal")}
    written = {tuple(kind.value) for kind in EventKind} | of_others | {stopped} | network | of_viewers
    assert {(row.code[0][0], row.code[1][0], row.cells[2]) for row in rows} == written
    assert len(rows) == len(written)
