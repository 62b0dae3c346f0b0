# SPDX-License-Identifier: Apache-2.0
"""Each object of an installation has a place in the API."""

from __future__ import annotations

import pytest

from dovetail.operator import manifest_objects
from dovetail.operator.kinds import OWNED, installed_resource_of, resource_of


def test_each_object_that_is_installed_has_a_place_in_the_api() -> None:
    *objects, stack = manifest_objects.operator_objects()
    placed = {(one["apiVersion"], one["kind"]): installed_resource_of(one) for one in objects}
    assert {(one.api_version, one.kind) for one in placed.values()} == placed.keys()
    assert placed["v1", "Namespace"].plural == "namespaces"
    # The operator makes neither namespaces nor GPUStacks.
    assert placed["v1", "Namespace"] not in OWNED
    for unknown in (objects[0] | {"kind": "Namespace", "apiVersion": "v1"}, stack):
        with pytest.raises(KeyError):
            resource_of(unknown)
