# SPDX-License-Identifier: Apache-2.0
"""The library for agents: what the pages show runs, and the reference names what there is."""

from __future__ import annotations

import inspect
import subprocess
import sys
from typing import Any

import pytest

from dovetail.plane import AgentRequest, FakeBroker, FaultKind, KubernetesBroker, Option, Plane, PlaneLease
from tests.docs.pages import page

REFERENCE = page("docs/reference/plane-sdk.md")


def test_the_agent_of_the_guide_runs() -> None:
    blocks = [block for block in page("docs/how-to/build-an-agent.md").blocks if block.language == "python"]
    assert len(blocks) > 2
    program = "\n".join(block.text for block in blocks)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("kind", "section", "aside"),
    [
        (Plane, "Plane", {"act", "answer_to", "clock", "heard_ms", "lease_of", "until", "wake"}),
        (PlaneLease, "Lease", {"close", "see", "notice", "record", "id", "name", "granted", "end_ms", "sure_until_ms"}),
        (KubernetesBroker, "On a cluster", {"act", "heartbeat", "put", "withdraw", "follow"}),
        (FakeBroker, "FakeBroker", {"act", "heartbeat", "put", "withdraw", "follow", "end_ms"}),
    ],
)
def test_the_members_are_named(kind: type[Any], section: str, aside: set[str]) -> None:
    text = REFERENCE.section(section).text
    members = {name for name, _ in inspect.getmembers(kind) if not name.startswith("_")} - aside
    assert [name for name in sorted(members) if f"`{name}" not in text] == []


def test_the_fields_of_options_are_named() -> None:
    text = REFERENCE.section("Option, AgentRequest").text
    fields = [*Option.__struct_fields__, *AgentRequest.__struct_fields__]
    assert [name for name in fields if f"`{name}`" not in text] == []


def test_the_faults_are_named() -> None:
    text = REFERENCE.section("FakeBroker").text
    assert [kind.name for kind in FaultKind if f"`{kind.name}`" not in text] == []


def test_the_library_is_loaded_without_numpy_and_the_sdk_of_models() -> None:
    heavy = "{'numpy', 'aiohttp', 'mcp', 'pydantic'}"
    program = f"import sys, dovetail.plane.kubernetes; assert not {heavy} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
