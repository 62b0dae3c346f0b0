# SPDX-License-Identifier: Apache-2.0
"""The reference lists every event that can be written."""

from __future__ import annotations

from dovetail.scheduler.events import EventKind
from tests.docs.pages import page


def test_every_kind_of_event_is_in_the_reference() -> None:
    rows = page("docs/reference/events.md").section("Events").rows("reason")
    assert {(row.code[0][0], row.code[1][0], row.cells[2]) for row in rows} == {kind.value for kind in EventKind}
    assert len(rows) == len(EventKind)
