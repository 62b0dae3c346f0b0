# SPDX-License-Identifier: Apache-2.0
"""Whatever stands in a field, migrating ends, a second time changes nothing more, and what is made can be read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.advice.migrate.step import MigrationTarget
from tests.advice.migrate.moved import migrated, values

CASES = [
    value for file in sorted((Path(__file__).parent / "cases").glob("*.yaml")) for value in values(file.read_text())
]
ODD = st.sampled_from([None, 0, -1, 2.5, True, "", "x", "a b", [], {}, ["x"], [1], [None], {"a": 1}, [{"name": 1}]])
TARGETS = st.sets(st.sampled_from(MigrationTarget))


def paths(value: Any) -> list[tuple[str | int, ...]]:
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path for key, inner in pairs for path in ((key,), *((key, *below) for below in paths(inner)))]


def replaced(value: Any, path: tuple[str | int, ...], new: Any) -> Any:
    if not path:
        return new
    if isinstance(value, dict):
        return {key: replaced(inner, path[1:], new) if key == path[0] else inner for key, inner in value.items()}
    return [replaced(inner, path[1:], new) if at == path[0] else inner for at, inner in enumerate(value)]


@pytest.mark.slow
@given(st.data(), st.sampled_from(CASES), ODD, TARGETS)
@settings(max_examples=400, deadline=None)
def test_odd_values(data: st.DataObject, value: Any, odd: Any, targets: set[MigrationTarget]) -> None:
    path = data.draw(st.sampled_from(paths(value)))
    text = yaml.safe_dump(replaced(value, path, odd), sort_keys=False)
    once = migrated(text, *targets)
    assert values(once.text)
    assert migrated(once.text, *targets).text == once.text
