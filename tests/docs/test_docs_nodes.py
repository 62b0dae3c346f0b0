# SPDX-License-Identifier: Apache-2.0
"""The reference has every reason for which a node is not ready, and every step."""

from __future__ import annotations

from msgspec.structs import fields

from dovetail.operator.nodes.blockers import BLOCKERS, READY, STEPS
from dovetail.views.node_types import ReadinessView
from tests.docs.pages import page

STACK = page("docs/reference/gpustack.md")


def test_reasons_of_nodes() -> None:
    rows = STACK.section("Reasons of nodes").rows("reason")
    written = {row.code[0][0]: (tuple(row.code[1]), row.cells[2], row.cells[3]) for row in rows}
    assert written == {one.reason: (one.steps, one.meaning, one.action) for one in BLOCKERS.values()}
    assert len(rows) == len(BLOCKERS)


def test_steps() -> None:
    rows = STACK.section("Steps of a node").rows("step")
    assert [row.code[0][0] for row in rows] == [*STEPS, READY]


def test_the_fields_of_readiness_in_json() -> None:
    rows = page("docs/reference/cli.md").section("dovetail nodes").rows("field")
    (row,) = [row for row in rows if row.code[0] == ["readiness"]]
    assert row.code[1] == [field.name for field in fields(ReadinessView)]


def test_the_how_to_names_reasons_that_exist() -> None:
    rows = page("docs/how-to/why-is-my-node-not-ready.md").section("What to do").rows("you see")
    for row in rows:
        step, reason = row.code[0]
        assert step in BLOCKERS[reason].steps
