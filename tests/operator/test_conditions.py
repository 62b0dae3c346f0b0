# SPDX-License-Identifier: Apache-2.0
"""Conditions keep their times, are bounded, and each reason is in the reference."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from dovetail.kube.objects.stack import StackCondition
from dovetail.operator.conditions import (
    ACCEPTED,
    APPLIED,
    CONDITIONS,
    HISTORY_AVAILABLE,
    READY,
    VIEWS_AVAILABLE,
    StackReason,
    condition,
    settled,
)
from tests.docs.pages import page

NOW = datetime(2027, 1, 1, tzinfo=UTC)
LATER = NOW + timedelta(hours=1)


def test_a_condition_is_true_for_its_best_reason_alone() -> None:
    best = {
        ACCEPTED: StackReason.VALID,
        APPLIED: StackReason.APPLIED,
        READY: StackReason.READY,
        VIEWS_AVAILABLE: StackReason.ANSWERED,
        HISTORY_AVAILABLE: StackReason.ANSWERED,
    }
    for kind in CONDITIONS:
        for reason in StackReason:
            assert condition(kind, reason).status == str(best[kind] is reason)


def test_the_time_is_that_of_the_last_change_of_status() -> None:
    first = settled((), [condition(READY, StackReason.NOT_APPLIED, "a")], 1, NOW)
    second = settled(first, [condition(READY, StackReason.COMPONENTS_NOT_READY, "b")], 2, LATER)
    third = settled(second, [condition(READY, StackReason.READY)], 2, LATER)
    assert [one.last_transition_time for (one,) in (first, second, third)] == [NOW, NOW, LATER]
    assert [one.observed_generation for (one,) in (first, second, third)] == [1, 2, 2]
    assert second[0].message == "b"


def test_a_condition_that_is_not_reported_any_more_goes() -> None:
    old = (StackCondition(APPLIED, "True", "Applied", last_transition_time=NOW),)
    assert [one.type for one in settled(old, [condition(READY, StackReason.ANOTHER_STACK)], 1, LATER)] == [READY]


def test_a_message_is_one_line_and_bounded() -> None:
    message = condition(APPLIED, StackReason.INVALID, "a\nb  c " + "x" * 5000).message
    assert message.startswith("a b c x") and len(message.encode()) <= 1024


def test_every_reason_is_in_the_reference() -> None:
    rows = page("docs/reference/gpustack.md").section("Conditions").rows("reason")
    assert {row.code[0][0] for row in rows} == set(StackReason)
