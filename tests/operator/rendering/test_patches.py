# SPDX-License-Identifier: Apache-2.0
"""JSON patches and strategic merge patches."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from dovetail.operator.rendering.patches import PatchError, json_patched, merged

Document = dict[str, Any]
BASE: Document = {"a": {"b": 1, "x/y": 2, "m~n": 3}, "list": ["p", "q"]}


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        ({"op": "add", "path": "/a/c", "value": [1]}, {"a": BASE["a"] | {"c": [1]}, "list": ["p", "q"]}),
        ({"op": "add", "path": "/list/-", "value": "r"}, BASE | {"list": ["p", "q", "r"]}),
        ({"op": "add", "path": "/list/2", "value": "r"}, BASE | {"list": ["p", "q", "r"]}),
        ({"op": "add", "path": "/list/0", "value": "r"}, BASE | {"list": ["r", "p", "q"]}),
        ({"op": "replace", "path": "/list/1", "value": "r"}, BASE | {"list": ["p", "r"]}),
        ({"op": "replace", "path": "/a/x~1y", "value": 0}, BASE | {"a": {"b": 1, "x/y": 0, "m~n": 3}}),
        ({"op": "remove", "path": "/a/m~0n"}, BASE | {"a": {"b": 1, "x/y": 2}}),
        ({"op": "remove", "path": "/list/0"}, BASE | {"list": ["q"]}),
        ({"op": "move", "from": "/list/0", "path": "/list/-"}, BASE | {"list": ["q", "p"]}),
        ({"op": "copy", "from": "/a/b", "path": "/b"}, BASE | {"b": 1}),
        ({"op": "test", "path": "/a/b", "value": 1}, BASE),
    ],
)
def test_operations_of_a_json_patch(operation: Document, expected: Document) -> None:
    before = deepcopy(BASE)
    assert json_patched(BASE, [operation]) == expected
    assert before == BASE


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "remove", "path": "/a/none"},
        {"op": "remove", "path": "/list/2"},
        {"op": "remove", "path": "/list/-"},
        {"op": "replace", "path": "/a/none", "value": 1},
        {"op": "add", "path": "/none/b", "value": 1},
        {"op": "add", "path": "/list/3", "value": 1},
        {"op": "add", "path": "/list/01", "value": 1},
        {"op": "add", "path": "/a/b/c", "value": 1},
        {"op": "test", "path": "/a/b", "value": 2},
        {"op": "add", "path": "a", "value": 1},
        {"op": "add", "path": "/a"},
        {"op": "append", "path": "/list", "value": 1},
    ],
)
def test_an_operation_that_cannot_be_applied_is_an_error(operation: Document) -> None:
    with pytest.raises(PatchError):
        json_patched(BASE, [operation])


def daemon_set(**spec: Any) -> Document:
    return {"kind": "DaemonSet", "metadata": {"name": "d"}, "spec": spec}


def test_lists_with_a_merge_key_are_merged_and_the_patch_comes_first() -> None:
    before = daemon_set(containers=[{"name": "a", "args": ["x"], "env": [{"name": "E", "value": "1"}]}, {"name": "b"}])
    patch = {
        "spec": {"containers": [{"name": "c"}, {"name": "a", "args": ["y"], "env": [{"name": "F", "value": "2"}]}]}
    }
    (c, a, b) = merged(before, patch)["spec"]["containers"]
    assert (c, b) == ({"name": "c"}, {"name": "b"})
    assert a == {"name": "a", "args": ["y"], "env": [{"name": "F", "value": "2"}, {"name": "E", "value": "1"}]}


def test_other_lists_are_replaced() -> None:
    before = daemon_set(tolerations=[{"operator": "Exists"}])
    assert merged(before, {"spec": {"tolerations": []}})["spec"]["tolerations"] == []
    role = {"kind": "ClusterRole", "rules": [{"verbs": ["get"]}]}
    assert merged(role, {"rules": [{"verbs": ["list"]}]})["rules"] == [{"verbs": ["list"]}]


def test_null_and_directives_remove_and_replace() -> None:
    before = daemon_set(hostPID=True, affinity={"a": 1}, volumes=[{"name": "v"}, {"name": "w"}], selector={"b": 2})
    patch = {
        "hostPID": None,
        "affinity": {"$patch": "delete"},
        "volumes": [{"name": "v", "$patch": "delete"}],
        "selector": {"$patch": "replace", "c": 3},
    }
    assert merged(before, {"spec": patch})["spec"] == {"volumes": [{"name": "w"}], "selector": {"c": 3}}
    replaced = merged(before, {"spec": {"volumes": [{"$patch": "replace"}, {"name": "x"}]}})
    assert replaced["spec"]["volumes"] == [{"name": "x"}]
