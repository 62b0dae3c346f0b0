# SPDX-License-Identifier: Apache-2.0
"""A comment silences a rule in its field, and nowhere else; it must have a reason."""

from __future__ import annotations

import random
import time

import pytest

from dovetail.advice.lint.suppressions import Silence, suppressions
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
COMMENTED = " # dovetail: ignore G18 a reason"
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


def last_inside(lines: list[str], first: int) -> int:
    """By the rule: the last line, from 1, that is indented deeper than line `first`, or is an item of its list."""
    depths = [len(line) - len(line.lstrip(" ")) for line in lines]
    dashes = [line.lstrip().startswith("-") for line in lines]
    for at in range(first, len(lines)):
        item = depths[at] == depths[first - 1] and dashes[at] and not dashes[first - 1]
        if depths[at] <= depths[first - 1] and not item:
            return at
    return len(lines)


@pytest.mark.parametrize("seed", range(30))
def test_a_comment_ends_with_its_field(seed: int) -> None:
    draw = random.Random(seed)
    lines = ["top:"] + [
        f"{' ' * draw.choice((0, 2, 4))}{draw.choice(('a: 1', '- b: 2', 'c:'))}{draw.choice(('', COMMENTED))}"
        for _ in range(12)
    ]
    found = list(suppressions("\n".join(lines), {"G18"}))
    assert [one.first for one in found] == [at for at, line in enumerate(lines, 1) if "#" in line]
    assert [one.last for one in found] == [last_inside(lines, one.first) for one in found]
    silence = Silence(found)
    for line in range(1, len(lines) + 1):
        assert silence.covers("G18", line) == any(one.first <= line <= one.last for one in found)
        assert not silence.covers("G01", line)


def test_many_comments_cost_little() -> None:
    """With the square of their number they cost minutes."""
    text = "".join(f"{' ' * (n % 150)}k{n}: 1 # dovetail: ignore G18 a reason\n" for n in range(10_000))
    began_s = time.process_time()
    silence = Silence(suppressions(text, {"G18"}))
    assert all(silence.covers("G18", line) for line in range(1, 10_001))
    assert time.process_time() - began_s < 10
