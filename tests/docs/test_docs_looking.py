# SPDX-License-Identifier: Apache-2.0
"""The reference names the fields of what the commands answer that look at a cluster and its queues."""

from __future__ import annotations

import re

import pytest
from msgspec.structs import fields

from dovetail.cli import columns
from dovetail.cli.advise_columns import ADVICE
from dovetail.cli.change_prices import PricedWhatIf
from dovetail.cli.jobs import COLUMNS
from dovetail.cli.output import API_VERSION
from dovetail.cli.stranded_prices import PricedShape
from dovetail.core.reasons import Expected
from dovetail.jobs.life import JobLife, LifeStep
from dovetail.kube.queue_budgets import QueueBudgetUse, QueueBudgetUses
from dovetail.views.defrag_types import Defrag, MoveStepView, PodMove
from dovetail.views.drain_types import DrainedNode, DrainedPod, DrainPlan
from dovetail.views.forecast_types import ForecastPlace, ForecastVictim
from dovetail.views.job_states import STATES
from dovetail.views.job_types import JobList, JobRow, JobTime
from dovetail.views.queue_drain import QueueDrainPlan, RunningJob
from dovetail.views.queue_types import QueuePosition, QueueShare, UserShare, WaitingWorkload
from dovetail.views.rank_types import Before, Overtaking, RankLevel, RankView, Term
from dovetail.views.shape_types import Largest, ShapeView
from dovetail.views.shape_types import ShapeLevel as ShapeLevel
from dovetail.views.whatif_types import QueueGain, WhatifOutcome
from dovetail.views.why_types import QueueTerm, Reserved, WhyQueue
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
        ("events", "field", JobLife),
        ("jobs", "field", JobList),
        ("jobs", "field of `jobs`", JobRow),
        ("priority", "field", RankView),
        ("queue", "field", QueuePosition),
        ("queue", "field of `jobs`", WaitingWorkload),
        ("queue budgets", "field", QueueBudgetUses),
        ("queue budgets", "field of `budgets`", QueueBudgetUse),
        ("queue drain", "field", QueueDrainPlan),
        ("share", "field", QueueShare),
        ("whatif", "field", PricedWhatIf),
        ("whatif", "field of `jobs`", WhatifOutcome),
        ("why", "field of a queue", WhyQueue),
        ("free", "field with `--shape`", PricedShape),
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
        ("events", "field", "steps", (LifeStep,)),
        ("jobs", "field of `jobs`", "start", (JobTime,)),
        ("priority", "field", "levels", (RankLevel, Term)),
        ("priority", "field", "before", (Before,)),
        ("priority", "field", "overtaking", (Overtaking,)),
        ("queue", "field of `jobs`", "expected", (Expected,)),
        ("queue", "field of `jobs`", "places", (ForecastPlace,)),
        ("queue drain", "field", "jobs", (RunningJob,)),
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


def test_columns_of_lists() -> None:
    lists = {
        "jobs": COLUMNS, "queue": columns.QUEUE, "nodes": columns.NODES, "leases": columns.LEASES,
        "share": columns.SHARE, "free": columns.FREE, "advise": ADVICE,
    }  # fmt: skip
    section = page(CLI).section("Lists")
    written = {row.cells[0].partition("]")[0].removeprefix("["): row.code[1:] for row in section.rows("list")}
    assert written == {
        name: [
            [one.name for one in found.columns if not one.wide],
            [one.name for one in found.columns if one.wide],
            [found.named_by],
        ]
        for name, found in lists.items()
    }
    assert f"`{API_VERSION}`" in section.text


def test_states_of_jobs() -> None:
    written = {row.code[0][0]: row.code[1] for row in page(CLI).section("dovetail jobs").rows("state")}
    words = {word: states for word, states in STATES.items() if word != "all"}
    assert written == {state: [word for word, states in words.items() if state in states] for state in STATES["all"]}


def test_columns_of_jobs_that_are_explained_exist() -> None:
    explained = [name for row in page(CLI).section("dovetail jobs").rows("column") for name in row.code[0]]
    assert set(explained) <= {one.name for one in COLUMNS.columns}
