# SPDX-License-Identifier: Apache-2.0
"""A comment silences a rule in its field, and nowhere else; it must have a reason."""

from __future__ import annotations

import pytest

from tests.advice.lint.linted import findings

POD = """\
{top}apiVersion: v1
kind: Pod
metadata: {{name: two}}
spec:
  {above}
  containers:
  {first}
  - name: a
    resources:
      requests:
        nvidia.com/gpu: 1  {line}
  - name: b
    resources: {{requests: {{nvidia.com/gpu: 2}}}}
"""
COMMENT = "# dovetail: ignore G01 an older cluster fills it in"


def lines(**comments: str) -> list[int]:
    parts = {"top": "", "above": "", "first": "", "line": ""} | comments
    return [one.line for one in findings(POD.format(**parts), "G01")]


def test_nothing_is_silenced_without_a_comment() -> None:
    assert lines() == [11, 13]


@pytest.mark.parametrize(
    ("where", "left"), [("line", [13]), ("first", [13]), ("above", [])], ids=["field", "container", "containers"]
)
def test_the_field_it_stands_at(where: str, left: list[int]) -> None:
    assert lines(**{where: COMMENT}) == left


def test_above_the_first_field_it_speaks_of_the_document() -> None:
    assert lines(top=f"# A pod.\n{COMMENT}\n") == []
    plain = {"above": "", "first": "", "line": ""}
    text = POD.format(top=f"{COMMENT}\n", **plain) + "---\n" + POD.format(top="", **plain)
    assert [one.line for one in findings(text, "G01")] == [26, 28]


def test_several_rules_and_other_rules() -> None:
    assert lines(above="# dovetail: ignore G03, G01: both are right here") == []
    assert lines(above="# dovetail: ignore G03 not the one") == [11, 13]


@pytest.mark.parametrize(
    ("comment", "expected"),
    [
        ("# dovetail: ignore G01", "write the reason"),
        ("# dovetail: ignore G99 because", "there is no rule G99"),
        ("# dovetail: ignore everything", "write `# dovetail: ignore G18 why`"),
    ],
)
def test_an_invalid_comment_silences_nothing_and_is_reported(comment: str, expected: str) -> None:
    found = findings(POD.format(top="", above=comment, first="", line=""))
    assert [one.line for one in found if one.rule == "G01"] == [11, 13]
    assert [one.line for one in found if one.rule == "G00" and expected in one.message] == [5]
