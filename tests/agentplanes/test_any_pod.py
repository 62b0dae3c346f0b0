# SPDX-License-Identifier: Apache-2.0
"""Whatever an agent stores on its endpoint, a decision is made: one odd pod keeps no other from being carried."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.agentplanes.carry_actions import (
    CreateOnHost,
    Negotiate,
)
from dovetail.agentplanes.decisions import decide
from dovetail.agentplanes.facts import HostPod
from dovetail.agentplanes.fields import CONTAINER_FIELDS, POD_FIELDS
from dovetail.apiserver.failures import Failure
from dovetail.apiserver.objects import Object
from dovetail.apiserver.pods import born, defaulted, problems
from tests.agentplanes.builders import NOW_MS, facts, pod

LEAVES = st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.floats(allow_nan=False) | st.text(max_size=8)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip
PARTS = st.sampled_from(["requiredDuringSchedulingIgnoredDuringExecution", "nodeAffinity", "podGroupName", "emptyDir"])
NESTED = st.dictionaries(PARTS, VALUES, max_size=2) | VALUES
KEYS = ["dovetail.dev/gang", "dovetail.dev/gang-min", "dovetail.dev/lease-class", "dovetail.dev/lease-duration"]
METADATA = st.fixed_dictionaries({}, optional={
    "annotations": st.dictionaries(st.sampled_from(KEYS), VALUES) | VALUES, "labels": VALUES,
    "ownerReferences": st.lists(st.dictionaries(st.sampled_from(["controller", "uid"]), VALUES)) | VALUES,
    "creationTimestamp": LEAVES, "deletionTimestamp": LEAVES, "deletionGracePeriodSeconds": LEAVES,
})  # fmt: skip
STATUS = st.fixed_dictionaries({}, optional={
    "phase": st.sampled_from(["Pending", "Running", "Succeeded", "Failed"]) | LEAVES, "reason": LEAVES,
    "conditions": st.lists(st.dictionaries(st.sampled_from(["type", "status", "reason", "message"]), VALUES)) | VALUES,
    "containerStatuses": VALUES,
})  # fmt: skip


@pytest.mark.slow
@given(
    st.dictionaries(st.sampled_from([*POD_FIELDS]), NESTED, max_size=4),
    st.dictionaries(st.sampled_from([*CONTAINER_FIELDS]), VALUES, max_size=4),
    METADATA, STATUS, STATUS, st.booleans(),
)  # fmt: skip
def test_every_stored_pod_has_a_decision(
    spec: Object, container: Object, metadata: Object, status: Object, on_host: Object, there: bool
) -> None:
    odd: dict[str, Any] = pod("odd", 1)
    odd["spec"] |= spec | {"containers": [{"name": "m", "image": "i"} | container]}
    try:
        odd = born(defaulted(odd), NOW_MS / 1000)
        if problems(odd):
            return
    except (Failure, AttributeError, TypeError):
        return  # the endpoint does not store it
    odd["metadata"] |= metadata
    odd["status"] |= status
    hosts = (
        {"uid-odd": HostPod("h", "u", "uid-odd", "Running", "n", lease="l", fence=1, status=on_host)} if there else {}
    )
    plan = decide(facts(odd, pod("plain"), pod("gpu", 1), hosts=hosts))
    assert any(isinstance(one, CreateOnHost) and one.pod_uid == "uid-plain" for one in plan.actions)
    assert any(isinstance(one, Negotiate) for one in plan.actions)
