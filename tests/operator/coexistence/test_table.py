# SPDX-License-Identifier: Apache-2.0
"""The table of components is that of the reference, and consistent in itself."""

from __future__ import annotations

import re

from dovetail.operator.coexistence.states import FAILED, SINCE, TakeoverReason, TakeoverState
from dovetail.operator.coexistence.table import (
    BY_NAME,
    COMPONENTS,
    FOLLOWS,
    ORDER,
    SIDE_LABELS,
    TAKEN_OVER,
    AgentFunction,
)
from tests.docs.pages import page
from tests.paths import ROOT

REFERENCE = page("docs/reference/gpustack.md").section("Beside NVIDIA's stack")


def test_the_reference_has_every_component() -> None:
    listed = []
    for row in REFERENCE.rows("component"):
        (name,), function, switch = row.code[0], "".join(row.code[2]), "".join(row.code[3])
        listed.append((name, row.cells[1].strip(), function, switch, row.cells[4].strip() == "no"))
    assert listed == [(one.name, one.title, one.function.value, one.switch, bool(one.kept)) for one in COMPONENTS]


def test_the_reference_has_every_state_and_reason() -> None:
    assert [row.code[0][0] for row in REFERENCE.rows("state")] == [one.value for one in TakeoverState]
    assert [row.code[0][0] for row in REFERENCE.rows("reason")] == [one.value for one in TakeoverReason]


def test_every_function_has_its_turn() -> None:
    assert {one.function for one in COMPONENTS if not one.kept} == set(ORDER) == {*AgentFunction} - {AgentFunction.NONE}
    assert set(SIDE_LABELS) == {AgentFunction.ALLOCATION, AgentFunction.EXPORTER}
    assert all(BY_NAME[name].function is BY_NAME[leader].function for name, leader in FOLLOWS.items())


def test_the_operator_may_write_every_label_that_a_takeover_needs() -> None:
    text = (ROOT / "deploy/operator/limits.yaml").read_text()
    (expression,) = re.findall(r"k\.matches\((.*?)\)\)", text, re.DOTALL)
    permitted = "".join(re.findall(r"'([^']*)'", expression))
    keys = {one.switch for one in COMPONENTS if one.switch} | {key for one in COMPONENTS for key in one.off}
    keys |= {f"{TAKEN_OVER}{name}" for name in BY_NAME} | {*SIDE_LABELS.values(), SINCE, FAILED}
    assert [key for key in sorted(keys) if not re.fullmatch(permitted, key)] == []


def test_no_container_is_of_two_components() -> None:
    for kind in ("containers", "programs", "images"):
        named = [name for one in COMPONENTS for name in getattr(one, kind)]
        assert len(named) == len(set(named)), kind
