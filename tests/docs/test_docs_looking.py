# SPDX-License-Identifier: Apache-2.0
"""The reference names the fields of what the commands answer that look at a cluster and its queues."""

from __future__ import annotations

import re

import pytest
from msgspec.structs import fields

from dovetail.core.reasons import Expected
from dovetail.views.defrag import Defrag, MoveStepView, PodMove
from dovetail.views.drain import DrainedNode, DrainedPod, DrainPlan
from dovetail.views.forecast_types import ForecastPlace, ForecastVictim
from dovetail.views.queue_positions import QueuePosition, WaitingWorkload
from dovetail.views.queue_shares import QueueShare, UserShare
from dovetail.views.rank import Before, Overtaking, RankLevel, RankView, Term
from dovetail.views.shape import Largest, ShapeAnswer, ShapeView
from dovetail.views.shape import ShapeLevel as ShapeLevel
from dovetail.views.whatif import QueueGain, WhatIf, WhatifOutcome
from dovetail.views.why import QueueTerm, Reserved
from dovetail.views.why_queue import WhyQueue
from tests.docs.pages import Row, page

CLI = "docs/reference/cli.md"


def names(kind: type) -> list[str]:
    return [field.encode_name for field in fields(kind)]


def rows(command: str, head: str) -> dict[str, Row]:
    return {row.code[0][0]: row for row in page(CLI).section(f"dovetail {command}").rows(head)}


@pytest.mark.parametrize(
    ("command", "head", "kind"),
    [
        ("defrag", "field", Defrag),
        ("drain", "field", DrainPlan),
        ("priority", "field", RankView),
        ("queue", "field", QueuePosition),
        ("queue", "field of `jobs`", WaitingWorkload),
        ("share", "field", QueueShare),
        ("whatif", "field", WhatIf),
        ("whatif", "field of `jobs`", WhatifOutcome),
        ("why", "field of a queue", WhyQueue),
        ("free", "field with `--shape`", ShapeAnswer),
    ],
)
def test_fields_of_the_answers(command: str, head: str, kind: type) -> None:
    assert list(rows(command, head)) == names(kind)


@pytest.mark.parametrize(
    ("command", "head", "field", "kinds"),
    [
        ("defrag", "field", "shape", (ShapeView,)),
        ("defrag", "field", "steps", (MoveStepView, PodMove)),
        ("drain", "field", "nodes", (DrainedNode, DrainedPod)),
        ("priority", "field", "levels", (RankLevel, Term)),
        ("priority", "field", "before", (Before,)),
        ("priority", "field", "overtaking", (Overtaking,)),
        ("queue", "field of `jobs`", "expected", (Expected,)),
        ("queue", "field of `jobs`", "places", (ForecastPlace,)),
        ("share", "field", "users", (UserShare,)),
        ("whatif", "field", "evicted", (ForecastVictim,)),
        ("whatif", "field", "queues", (QueueGain,)),
        ("why", "field", "terms", (QueueTerm,)),
        ("why", "field", "reserved", (Reserved,)),
        ("free", "field with `--shape`", "shape", (ShapeView,)),
        ("free", "field with `--shape`", "models", (Largest, ShapeLevel)),
    ],
)
def test_fields_of_what_is_inside(command: str, head: str, field: str, kinds: tuple[type, ...]) -> None:
    documented = set(re.findall(r"`(\w+)`", rows(command, head)[field].cells[1]))
    assert {name for kind in kinds for name in names(kind)} <= documented
