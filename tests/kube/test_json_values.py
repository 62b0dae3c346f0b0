# SPDX-License-Identifier: Apache-2.0
"""Copies of values as JSON has them: equal, and nothing in them is shared."""

from __future__ import annotations

import json
from datetime import date

from dovetail.kube.json_values import copied_json


def test_a_copy_is_equal_in_text_and_shares_nothing_that_can_be_changed() -> None:
    value = {"b": [1, {"c": None, "a": [True, 1.5, ""]}, []], "a": {}}
    copy = copied_json(value)
    assert json.dumps(copy) == json.dumps(value)
    copy["b"][1]["a"].append("more")  # type: ignore[index]
    copy["b"][2].append(0)  # type: ignore[index]
    copy["a"]["new"] = 1  # type: ignore[call-overload, index]
    assert value == {"b": [1, {"c": None, "a": [True, 1.5, ""]}, []], "a": {}}


def test_what_is_there_twice_is_copied_twice() -> None:
    part: list[int] = []
    copy = copied_json({"a": part, "b": part})
    copy["a"].append(1)
    assert (copy["b"], part) == ([], [])


def test_what_yaml_has_beyond_json_is_kept() -> None:
    value = {"day": date(2026, 1, 1), 2: b"bytes", None: float("inf"), True: 1 << 70}
    copy = copied_json(value)
    assert (copy, list(map(type, copy.values()))) == (value, [date, bytes, float, int])
