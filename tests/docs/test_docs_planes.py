# SPDX-License-Identifier: Apache-2.0
"""The reference has every limit of a plane, and every kind that it serves."""

from __future__ import annotations

import re

from dovetail.apiserver.planes.host import HostOptions
from dovetail.apiserver.planes.limits import PlaneLimits
from dovetail.apiserver.planes.plane import CATALOGUE
from tests.docs.pages import page

REFERENCE = page("docs/reference/agent-plane-api.md")


def test_limits() -> None:
    limits = PlaneLimits()
    written = {row.code[0][0]: float(row.cells[1]) for row in REFERENCE.section("Limits").rows("limit")}
    assert written == {name: float(getattr(limits, name)) for name in limits.__struct_fields__}


def test_limits_of_the_process() -> None:
    text = REFERENCE.section("Limits").text
    assert f"{HostOptions().connections} connections" in text
    assert f"for {HostOptions().idle_s:g} seconds is closed" in text


def test_kinds() -> None:
    written = set()
    for row in REFERENCE.section("What is served").rows("kind"):
        versions = re.findall(r"[\w./]+", row.cells[1])
        written |= {(version, kind) for kind in re.findall(r"\w+", row.cells[0]) for version in versions}
    assert written == {(resource.api_version, resource.kind) for resource in CATALOGUE.resources}
