# SPDX-License-Identifier: Apache-2.0
"""Requirements, selectors, tolerations: tables of what k8s.io/apimachinery and k8s.io/api v0.37.1 answer."""

import pytest

from dovetail.core.labels import as_int64, holds, matches, tolerates, untolerated
from dovetail.core.model import LabelSelector, Operator, Requirement, Taint, Toleration

ABSENT = None
REQUIREMENTS = [
    # operator, values, label value, holds
    ("In", ("a", "b"), "a", True),
    ("In", ("a", "b"), "c", False),
    ("In", ("a",), ABSENT, False),
    ("In", ("",), "", True),
    ("In", ("",), ABSENT, False),
    ("In", ("a",), "A", False),
    ("NotIn", ("a", "b"), "c", True),
    ("NotIn", ("a", "b"), "b", False),
    ("NotIn", ("a",), ABSENT, True),
    ("Exists", (), "", True),
    ("Exists", (), ABSENT, False),
    ("DoesNotExist", (), ABSENT, True),
    ("DoesNotExist", (), "", False),
    ("Gt", ("5",), "6", True),
    ("Gt", ("5",), "5", False),
    ("Gt", ("5",), "10", True),
    ("Gt", ("-2",), "-1", True),
    ("Gt", ("5",), "+6", True),
    ("Gt", ("5",), "006", True),
    ("Gt", ("5",), "six", False),
    ("Gt", ("5",), "6.5", False),
    ("Gt", ("5",), "1_0", False),
    ("Gt", ("5",), " 6", False),
    ("Gt", ("5",), "", False),
    ("Gt", ("5",), ABSENT, False),
    ("Gt", ("x",), "6", False),
    ("Gt", ("5", "6"), "7", False),
    ("Gt", (), "7", False),
    ("Gt", ("5",), "9223372036854775807", True),
    ("Gt", ("5",), "9223372036854775808", False),
    ("Lt", ("5",), "-9223372036854775808", True),
    ("Lt", ("5",), "-9223372036854775809", False),
    ("Lt", ("5",), "4", True),
    ("Lt", ("5",), "5", False),
    ("Lt", ("5",), ABSENT, False),
]


@pytest.mark.parametrize(("operator", "values", "value", "expected"), REQUIREMENTS)
def test_a_requirement_holds_as_upstream(
    operator: Operator, values: tuple[str, ...], value: str | None, expected: bool
) -> None:
    assert holds(Requirement("key", operator, values), value) is expected


def test_a_selector_needs_all_its_requirements() -> None:
    both = LabelSelector((Requirement("a", "In", ("1",)), Requirement("b", "DoesNotExist")))
    assert matches(both, {"a": "1"})
    assert not matches(both, {"a": "1", "b": ""})
    assert not matches(both, {})


def test_an_empty_selector_matches_everything_and_none_matches_nothing() -> None:
    assert matches(LabelSelector(), {})
    assert matches(LabelSelector(), {"a": "1"})
    assert not matches(None, {"a": "1"})


def test_an_integer_is_what_go_parses_in_base_ten() -> None:
    texts = {
        "0": 0,
        "-0": 0,
        "+7": 7,
        "007": 7,
        "": None,
        "+": None,
        "0x7": None,
        "7 ": None,
        "\N{FULLWIDTH DIGIT SEVEN}": None,
    }
    assert {text: as_int64(text) for text in texts} == texts


TAINT = Taint("gpu", "5", "NoSchedule")
TOLERATIONS = [
    (Toleration("gpu", "Equal", "5", "NoSchedule"), True),
    (Toleration("gpu", "Equal", "5"), True),
    (Toleration("gpu", "Equal", "6"), False),
    (Toleration("gpu", "Equal", "5", "NoExecute"), False),
    (Toleration("gpu", "Exists"), True),
    (Toleration("gpu", "Exists", "ignored"), True),
    (Toleration("gpu", "Exists", effect="NoExecute"), False),
    (Toleration("cpu", "Exists"), False),
    (Toleration("", "Exists"), True),
    (Toleration("", "Equal", "5"), True),
    (Toleration("", "Equal", ""), False),
    (Toleration("gpu", "Gt", "4"), True),
    (Toleration("gpu", "Gt", "5"), False),
    (Toleration("gpu", "Lt", "6"), True),
    (Toleration("gpu", "Lt", "5"), False),
    (Toleration("gpu", "Gt", "four"), False),
    (Toleration("gpu", "Gt", "+4"), False),
    (Toleration("gpu", "Gt", "04"), False),
    (Toleration("gpu", "Gt", "-9223372036854775808"), True),
    (Toleration("gpu", "Gt", "-9223372036854775809"), False),
    (Toleration("gpu", "Gt", ""), False),
]


@pytest.mark.parametrize(("toleration", "expected"), TOLERATIONS)
def test_a_toleration_covers_a_taint_as_upstream(toleration: Toleration, expected: bool) -> None:
    assert tolerates(toleration, TAINT) is expected


@pytest.mark.parametrize("value", ["", "x", "+5", "05", "-0", "9223372036854775808"])
def test_a_taint_that_is_no_decimal_is_never_compared(value: str) -> None:
    taint = Taint("gpu", value, "NoSchedule")
    assert not tolerates(Toleration("gpu", "Gt", "-9"), taint)
    assert not tolerates(Toleration("gpu", "Lt", "9"), taint)


def test_the_first_taint_that_keeps_pods_away_is_named() -> None:
    preferred, kept, other = (
        Taint("w", "", "PreferNoSchedule"),
        Taint("k", "", "NoExecute"),
        Taint("o", "", "NoSchedule"),
    )
    assert untolerated((preferred, kept, other), ()) == kept
    assert untolerated((preferred, kept, other), (Toleration("k", "Exists"),)) == other
    assert untolerated((preferred,), ()) is None
    assert untolerated((preferred, kept, other), (Toleration("", "Exists"),)) is None
