# SPDX-License-Identifier: Apache-2.0
"""Thresholds and how a user replaces them."""

from __future__ import annotations

import pytest

from dovetail.monitoring.thresholds import DURATION, THRESHOLDS, BadThreshold, filled, resolved, seconds


def test_defaults_are_valid_and_named_once() -> None:
    assert len({one.name for one in THRESHOLDS}) == len(THRESHOLDS)
    assert resolved({one.name: one.default for one in THRESHOLDS}) == resolved()
    assert all(one.meaning and one.source for one in THRESHOLDS)
    assert all(seconds(str(one.default)) > 0 for one in THRESHOLDS if one.unit == DURATION)


@pytest.mark.parametrize(
    ("text", "expected"), [("90s", 90), ("1h30m", 5400), ("1d", 86_400), ("500ms", 0.5), ("2w", 1_209_600)]
)
def test_durations_are_those_of_prometheus(text: str, expected: float) -> None:
    assert seconds(text) == expected


def test_references_become_values_durations_also_seconds() -> None:
    values = resolved({"idle_util": 0.1, "settle": "1h30m", "orphan_bytes": 1e6, "interval": "500ms"})
    assert filled("x < @idle_util and y > @settle.seconds for @settle", values) == "x < 0.1 and y > 5400 for 1h30m"
    assert filled("@orphan_bytes * @interval.seconds", values) == "1000000 * 0.5"
    with pytest.raises(KeyError):
        filled("@no_such_one", values)


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("idle_utill", 1, "did you mean 'idle_util'?"),
        ("zzz", 1, "there is no threshold 'zzz'$"),
        ("idle_util", "5%", "is no value in ratio"),
        ("idle_util", True, "is no value in ratio"),
        ("idle_util", -0.1, "not a number from 0 on"),
        ("idle_util", float("nan"), "not a number from 0 on"),
        ("settle", 600, "is no duration"),
        ("settle", "10 minutes", "write it as 90s"),
        ("settle", "0s", "longer than 0"),
        ("notebook_pods", "(", "no regular expression"),
        ("notebook_pods", 'a"} or up{b="', "may be in it"),
        ("notebook_pods", None, "is no value in pattern"),
    ],
)
def test_a_wrong_override_names_the_threshold_and_the_reason(name: str, value: object, reason: str) -> None:
    with pytest.raises(BadThreshold, match=reason) as raised:
        resolved({name: value})
    assert name in str(raised.value) or name == "settle"
