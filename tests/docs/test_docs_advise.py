# SPDX-License-Identifier: Apache-2.0
"""The reference has each rule for sizes as the table has it, and the fields of the answer."""

from __future__ import annotations

import re
from typing import get_args

import pytest
from msgspec.structs import fields

from dovetail.advice.sizing import workload
from dovetail.advice.sizing.rule import (
    ChangeKind,
    EarlierAdvice,
    Followed,
    JobAdvice,
    JobAdviceList,
    Saving,
    SizeChange,
    SizingAdvice,
    SizingRule,
)
from dovetail.advice.sizing.rules import RULES
from dovetail.advice.sizing.workload import Workload
from tests.docs.pages import page

ADVISE = "docs/reference/advise.md"


def test_the_rules_are_those_of_the_table_in_its_order() -> None:
    assert re.findall(r"^### (\S+)$", page(ADVISE).text, re.MULTILINE) == [rule.name for rule in RULES]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_each_rule_has_its_condition_risk_falsifier_and_source(rule: SizingRule) -> None:
    section = page(ADVISE).section(rule.name).text
    for text in (f"Advised: {rule.title}.", f"- When: {rule.when}.", f"- Risk: {rule.risk}.",
                 f"- Wrong if: {rule.falsifier}.", f"- Source: {rule.source}."):  # fmt: skip
        assert text in section
    assert ("Does not need a week of data." in section) == rule.early


@pytest.mark.parametrize(
    ("head", "kind"), [("field", JobAdviceList), ("field of `jobs`", JobAdvice), ("field of `earlier`", EarlierAdvice)]
)
def test_fields(head: str, kind: type) -> None:
    rows = page("docs/reference/cli.md").section("dovetail advise").rows(head)
    assert [name for row in rows for name in row.code[0]] == [one.encode_name for one in fields(kind)]


def test_fields_of_what_is_inside() -> None:
    rows = page("docs/reference/cli.md").section("dovetail advise").rows("field of `jobs`")
    inside = {span for row in rows if row.code[0] == ["advice"] for span in row.code[1]}
    kinds = (SizingAdvice, Saving, SizeChange)
    assert {one.name for kind in kinds for one in fields(kind)} | set(get_args(ChangeKind)) == inside
    earlier = page("docs/reference/cli.md").section("dovetail advise").rows("field of `earlier`")
    (followed,) = [row.code[1] for row in earlier if row.code[0] == ["followed"]]
    assert set(followed) == set(get_args(Followed))


def test_workloads() -> None:
    rows = {row.code[0][0]: row.cells[1] for row in page(ADVISE).section("Workloads").rows("workload")}
    assert set(rows) == set(get_args(Workload))
    kinds = {"training": workload.TRAINING, "serving": workload.SERVING}
    for name, known in kinds.items():
        assert set(re.findall(r"[A-Z]\w+", rows[name])) == known
