# SPDX-License-Identifier: Apache-2.0
"""Which versions work together: the table, its page, and releases that are in order."""

from __future__ import annotations

import itertools

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from dovetail import __version__
from dovetail.operator.skew import (
    API_VERSION,
    ENDLESS,
    RELEASE_ANNOTATION,
    SKEW,
    Part,
    distance,
    fits,
    newer,
    release,
    skew,
)
from tests.docs.pages import page
from tests.paths import ROOT

RELEASES = st.tuples(*[st.integers(0, 3)] * 3)


def text(numbers: tuple[int, int, int]) -> str:
    return ".".join(map(str, numbers))


@pytest.mark.parametrize(
    ("version", "numbers"),
    [
        ("0.1.0", (0, 1, 0)),
        ("v1.2.3", (1, 2, 3)),
        ("1.2", (1, 2, 0)),
        ("0.2.0rc1", (0, 2, 0)),
        ("0.2.0-beta.1+abc", (0, 2, 0)),
        ("latest", None),
        ("", None),
        ("1", None),
        ("sha256:0123", None),
    ],
)
def test_a_release_is_read_from_a_tag(version: str, numbers: tuple[int, int, int] | None) -> None:
    assert release(version) == numbers


@given(RELEASES, RELEASES)
def test_newer_is_the_order_of_the_numbers(one: tuple[int, int, int], other: tuple[int, int, int]) -> None:
    assert newer(text(one), text(other)) == (one > other)
    found = distance(text(one), text(other))
    assert found == (one[1] - other[1] if one[0] == other[0] else ENDLESS * (1 if one > other else -1))


def test_one_release_works_with_itself_and_an_upgrade_step_by_step_breaks_nothing() -> None:
    """Definitions first, then operator, scheduler and agents: from one minor release to the next."""
    old, new = "0.1.3", "0.2.0"
    order = (Part.DEFINITIONS, Part.OPERATOR, Part.SCHEDULER, Part.AGENT)
    for done in range(len(order) + 1):
        versions = {part: [new if place < done else old] for place, part in enumerate(order)}
        assert list(skew(versions)) == []
    # While a part is replaced pod by pod it runs in both versions.
    assert list(skew({**{part: [new] for part in order}, Part.AGENT: [old, new], Part.SCHEDULER: [old, new]})) == []


def test_another_order_is_reported_with_what_to_do() -> None:
    (found,) = skew({Part.DEFINITIONS: ["0.1.0"], Part.OPERATOR: ["0.2.0"]})
    assert (found.part, found.version, found.other, found.other_version) == (
        "definitions",
        "0.1.0",
        "operator",
        "0.2.0",
    )
    assert "dropped" in str(found) and "dovetail install" in found.remedy
    (found,) = skew({Part.SCHEDULER: ["0.3.0"], Part.OPERATOR: ["0.2.0"]})
    assert found.part is Part.SCHEDULER
    assert [one.part for one in skew({Part.AGENT: ["0.1.0"], Part.OPERATOR: ["0.4.0"]})] == ["agent"]
    assert list(skew({Part.DEFINITIONS: ["1.0.0"], Part.OPERATOR: ["0.9.0"]})) != []


def test_unknown_versions_break_nothing() -> None:
    assert list(skew({Part.SCHEDULER: ["latest"], Part.OPERATOR: ["0.2.0", ""], Part.AGENT: []})) == []


def test_each_pair_of_the_table_is_one_row_of_the_page() -> None:
    rows = page("docs/how-to/upgrade.md").section("Which versions work together").rows("part")
    documented = {(row.cells[0], row.cells[1], int(row.cells[2]), int(row.cells[3])) for row in rows}
    assert documented == {(str(one.part), str(one.than), one.older, one.newer) for one in SKEW}
    pairs = [(one.part, one.than) for one in SKEW]
    assert len(pairs) == len(set(pairs))
    assert {frozenset(pair) for pair in pairs} == {frozenset(pair) for pair in itertools.combinations(Part, 2)}


@pytest.mark.parametrize("rule", SKEW, ids=lambda rule: f"{rule.part}-{rule.than}")
def test_the_bounds_of_a_rule_are_inside_it(rule: object) -> None:
    found = next(one for one in SKEW if one is rule)
    inside = [minor for minor in range(20) if fits(found, f"0.{minor}.0", "0.10.5")]
    assert inside == list(range(10 - found.older, 10 + found.newer + 1))


def test_definitions_name_this_release_and_serve_the_version_that_it_needs() -> None:
    files = [path for path in (ROOT / "deploy/crds").glob("*.yaml") if path.name != "kustomization.yaml"]
    assert len(files) == 7
    for path in files:
        document = yaml.safe_load(path.read_text())
        assert document["metadata"]["annotations"] == {RELEASE_ANNOTATION: __version__}
        assert [one["name"] for one in document["spec"]["versions"] if one["served"]] == [API_VERSION]
