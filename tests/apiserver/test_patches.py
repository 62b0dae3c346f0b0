# SPDX-License-Identifier: Apache-2.0
"""What patches make of documents."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.apiserver.patches import json_patch, merge, strategic

DOCUMENTS = st.recursive(
    st.none() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
)


@given(DOCUMENTS, DOCUMENTS)
@pytest.mark.slow
def test_a_merge_patch_applied_twice_is_applied_once(old: object, patch: object) -> None:
    once = merge(old, patch)
    assert merge(once, patch) == once


@given(DOCUMENTS, DOCUMENTS)
@pytest.mark.slow
def test_a_json_patch_can_replace_everything(old: object, new: object) -> None:
    assert json_patch(old, [{"op": "replace", "path": "", "value": new}]) == new


def test_strategic_directives() -> None:
    old = {
        "env": [{"name": "a", "value": "1"}, {"name": "b", "value": "2"}],
        "finalizers": ["x", "y"],
        "labels": {"a": "1", "b": "2"},
        "args": ["old"],
    }
    patch = {
        "$setElementOrder/env": [{"name": "c"}, {"name": "b"}],
        "env": [{"name": "a", "$patch": "delete"}, {"name": "c", "value": "3"}, {"name": "b", "value": "4"}],
        "$deleteFromPrimitiveList/finalizers": ["x"],
        "finalizers": ["z"],
        "labels": {"$patch": "replace", "c": "3"},
        "args": ["new"],
    }
    assert strategic(old, patch) == {
        "env": [{"name": "b", "value": "4"}, {"name": "c", "value": "3"}],
        "finalizers": ["y", "z"],
        "labels": {"c": "3"},
        "args": ["new"],
    }
    assert strategic({"a": 1, "b": 2}, {"$retainKeys": ["b", "c"], "c": 3}) == {"b": 2, "c": 3}
