# SPDX-License-Identifier: Apache-2.0
"""Every key of pods that the source has is known to the rule about misspelt names."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from dovetail.kube.translate.annotations import HEADROOM_RETURN, PREFIX, TABLE, WRITTEN_BY_US
from tests.advice.lint.linted import findings
from tests.paths import ROOT

OTHERS = {
    "agent": "Node", "allocation": "Node", "block": "Node", "dashboard": "Event", "exporter": "Node",
    "gpu-search": "Node",
    "heartbeat": "Lease", "idle": "Event", "maintenance": "toleration", "not-ready": "taint", "operator": "finalizer",
    "pool": "Node, and agents' pods", "quarantine-budget": "Lease", "rack": "Node", "release": "definition",
    "scheduler-name": "Lease", "spare": "toleration", "stack": "what the operator makes", "takeover-failed": "Node",
    "takeover-settled": "Node", "takeover-since": "Node",
}  # fmt: skip
"""The keys of other objects than users' pods."""
_KEY = re.compile(re.escape(PREFIX) + "[a-z][a-z-]*[a-z]")
_POD = """\
apiVersion: v1
kind: Pod
metadata: {{name: train, {place}: {{{key}: {value!r}{beside}}}}}
spec:
  schedulerName: dovetail
  containers:
  - name: train
    image: train:1
"""


def keys(source: str) -> Iterator[str]:
    """The keys that are constants of a module, written as a whole or with the prefix in front."""
    if "PREFIX" not in source and PREFIX not in source:
        return
    own = re.search(r'^PREFIX = "(.*)"', source, re.MULTILINE)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.BinOp) and isinstance(node.left, ast.Name) and node.left.id == "PREFIX":
            if isinstance(node.right, ast.Constant) and (own is None or own[1] == PREFIX):
                yield str(node.right.value)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and _KEY.fullmatch(node.value):
            yield node.value.removeprefix(PREFIX)


def of_source() -> set[str]:
    """Without the examples of the rules, which are misspelt."""
    files = set((ROOT / "src/dovetail").rglob("*.py")) - set((ROOT / "src/dovetail/advice/lint/rules").iterdir())
    return {key for file in sorted(files) for key in keys(file.read_text())}


@pytest.mark.slow
def test_the_keys_of_the_source_are_those_of_pods_and_of_named_other_objects() -> None:
    assert sorted(of_source() - TABLE.keys() - WRITTEN_BY_US) == sorted(OTHERS)


@pytest.mark.parametrize("key", [*TABLE, *sorted(WRITTEN_BY_US)])
def test_no_key_of_a_pod_is_a_fault(key: str) -> None:
    place, value = (TABLE[key].place, TABLE[key].examples[0]) if key in TABLE else ("annotations", "x")
    beside = f", {PREFIX}headroom: '1'" if key == HEADROOM_RETURN else ""
    assert findings(_POD.format(place=place, key=PREFIX + key, value=value, beside=beside), "G45") == []


def test_a_key_of_another_object_is_a_fault_on_a_pod() -> None:
    for key in OTHERS:
        (found,) = findings(_POD.format(place="annotations", key=PREFIX + key, value="x", beside=""), "G45")
        assert "no known key" in found.message
