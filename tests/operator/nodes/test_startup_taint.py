# SPDX-License-Identifier: Apache-2.0
"""When a node has the start-up taint."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from dovetail.kube.objects.topology import NodeReadiness
from dovetail.operator.nodes.facts import ValidationProgress, WalkFacts
from dovetail.operator.nodes.startup_taint import KEEP, PUT, REMOVE, startup_taint, taints_patch
from dovetail.operator.nodes.walk import walk
from dovetail.operator.watched.nodes import WatchedNode
from tests.operator.nodes.facts_made import DONE, PASSED, spec

NEW = replace(DONE, validation=ValidationProgress())
KNOWN = NodeReadiness(step="agent", reason="PodMissing", validation=PASSED)
OURS = {"key": "dovetail.dev/not-ready", "effect": "NoSchedule"}
OTHER = {"key": "example.com/dedicated", "value": "gpus", "effect": "NoSchedule", "timeAdded": "2026-11-26T12:00:00Z"}


@pytest.mark.parametrize("tainted", [False, True])
@pytest.mark.parametrize(
    ("facts", "wanted"),
    [
        (NEW, True),
        (replace(NEW, labelled=False, before=NodeReadiness(step="labels")), True),
        # Validated now, or once: an agent that is being replaced is no new node.
        (DONE, False),
        (replace(NEW, labelled=False, before=KNOWN), False),
        (replace(NEW, spec=spec(startupTaint=False)), False),
        # NVIDIA's driver, for example, would never come to the node.
        (replace(NEW, kept_off=True), False),
        # Without validation, being ready is enough.
        (replace(NEW, spec=spec(validation={"enabled": False})), False),
        (replace(NEW, labelled=False, spec=spec(validation={"enabled": False})), True),
    ],
)
def test_the_taint(facts: WalkFacts, wanted: bool, tainted: bool) -> None:
    act = startup_taint(replace(facts, tainted=tainted), walk(facts))
    assert act == {(True, True): KEEP, (True, False): PUT, (False, True): REMOVE, (False, False): KEEP}[wanted, tainted]


def test_a_node_that_brings_the_taint_and_shows_no_gpu_keeps_it_and_gets_none() -> None:
    nothing = replace(NEW, gpu_signs=())
    assert startup_taint(replace(nothing, tainted=True), walk(nothing)) == KEEP
    assert startup_taint(nothing, walk(nothing)) == KEEP


def test_before_it_is_known_what_the_taint_keeps_off_none_is_put_and_none_is_removed() -> None:
    facts = replace(NEW, kept_off=None)
    assert startup_taint(facts, walk(facts)) == startup_taint(replace(facts, tainted=True), walk(facts)) == KEEP


def node(*taints: dict[str, Any]) -> WatchedNode:
    document = {"metadata": {"name": "gpu-1", "resourceVersion": "7"}, "spec": {"taints": list(taints)}}
    return msgspec.convert(document, WatchedNode)


def test_the_patch_keeps_the_taints_of_others_as_they_are_and_is_conditional() -> None:
    assert taints_patch(node(OTHER), put=True) == {
        "metadata": {"resourceVersion": "7"},
        "spec": {"taints": [OTHER, OURS]},
    }
    removed = taints_patch(node(OURS | {"value": "x"}, OTHER), put=False)
    assert removed is not None and removed["spec"]["taints"] == [OTHER]
    last = taints_patch(node(OURS), put=False)
    assert last is not None and last["spec"]["taints"] is None
    assert taints_patch(node(OURS), put=True) is None and taints_patch(node(OTHER), put=False) is None
    # The same key with another effect is a taint of somebody else.
    assert taints_patch(node(OURS | {"effect": "NoExecute"}), put=False) is None
