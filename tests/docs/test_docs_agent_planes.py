# SPDX-License-Identifier: Apache-2.0
"""The reference has what is carried of a pod, field by field, the limits, the reasons and the annotations."""

from __future__ import annotations

import ast
from collections.abc import Mapping

import pytest

from dovetail.agentplanes import fields, names
from dovetail.agentplanes.facts import CarryLimits
from dovetail.agentplanes.fields import Treatment
from dovetail.agentplanes.host_pod import MOST_BYTES
from tests.docs.pages import page
from tests.paths import ROOT

REFERENCE = page("docs/reference/agent-plane-api.md")


@pytest.mark.parametrize(
    ("head", "table"),
    [
        ("field of the spec", fields.POD_FIELDS),
        ("field of a container", fields.CONTAINER_FIELDS),
        ("field of a pod's security context", fields.POD_SECURITY_FIELDS),
        ("field of a container's security context", fields.CONTAINER_SECURITY_FIELDS),
    ],
)
def test_treatments(head: str, table: Mapping[str, Treatment]) -> None:
    rows = REFERENCE.section("What is carried").rows(head)
    written = {field: row.cells[1] for row in rows for field in row.code[0]}
    assert written == {field: treatment.value for field, treatment in table.items()}


def test_annotations_and_volumes() -> None:
    text = REFERENCE.section("What is carried").text
    carried = [key for key in fields.PASSED_ANNOTATIONS if not key.startswith("playground.")]
    for name in (*carried, *fields.REFUSED_ANNOTATIONS, *fields.VOLUME_SOURCES):
        assert f"`{name}`" in text
    for name in (names.LEASE_DURATION, names.LEASE_CLASS):
        assert f"`{name}`" in REFERENCE.section("Pods on the host").text


def test_limits() -> None:
    limits = CarryLimits()
    rows = REFERENCE.section("What a plane can cost the host").rows("limit of what is carried")
    assert {row.code[0][0]: float(row.cells[1]) for row in rows} == {
        name: float(getattr(limits, name)) for name in limits.__struct_fields__
    }
    assert f"{MOST_BYTES} bytes" in REFERENCE.section("What a plane can cost the host").text


def test_reasons() -> None:
    """Reasons are the CamelCase texts that the modules with decisions about waiting pods have."""
    written = {row.code[0][0] for row in REFERENCE.section("Reasons").rows("reason")}
    known = set()
    for name in ("decisions", "endpoint_pod", "host_pod", "wants"):
        for node in ast.walk(ast.parse((ROOT / f"src/dovetail/agentplanes/{name}.py").read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in written:
                known.add(node.value)
    assert known == written
