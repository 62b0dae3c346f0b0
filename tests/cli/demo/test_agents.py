# SPDX-License-Identifier: Apache-2.0
"""`dovetail demo agents`: what its lines report is so."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner

from dovetail.cli import cli
from dovetail.cli.demo import agents_story as agents
from tests.cli.answers import answer as checked

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def found() -> Iterator[dict[str, Any]]:
    """The first half of the demo."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(agents, "_SECONDS", 9.0)
        result = CliRunner().invoke(cli, ["demo", "agents", "-o", "json"])
    assert result.exit_code == 0, result.output
    yield checked(result.stdout, "AgentsDemo")


def test_no_gpu_is_in_two_leases_and_each_line_is_a_sentence_of_an_agent(found: dict[str, Any]) -> None:
    held: dict[str, set[tuple[str, int]]] = {}
    for line in found["lines"]:
        agent, text = line["agent"], line["text"]
        assert "lease/" not in text
        if text.startswith("has GPUs"):
            devices = set()
            for numbers, node in re.findall(r"GPUs ([\d,-]+) of (node-\d)", text):
                for part in numbers.split(","):
                    first, _, last = part.partition("-")
                    devices |= {(node, gpu) for gpu in range(int(first), int(last or first) + 1)}
            assert not any(devices & others for name, others in held.items() if name != agent), line
            held[agent] = devices
        elif text.startswith("gives them back"):
            held.pop(agent, None)
        else:
            assert re.match(r"asks for|is offered|has to leave by|It waits: ", text), line


def test_each_agent_had_its_turn_and_the_guarantee_did_not_wait(found: dict[str, Any]) -> None:
    totals = {one["agent"]: one for one in found["totals"]}
    assert set(totals) == {agent.name for agent in agents.AGENTS}
    assert all(one["leases"] for one in totals.values())
    assert totals["release"]["done"] == 1
    assert 0.2 < found["used"] <= 1
    steps = [(line["at_s"], line["text"]) for line in found["lines"] if line["agent"] == "release"]
    asked_s = next(at_s for at_s, text in steps if text.startswith("asks for 4 GPUs of its guarantee"))
    had_s = next(at_s for at_s, text in steps if text.startswith("has GPUs"))
    assert 0 <= had_s - asked_s < 7, "the grace of the leases that are in the way is 5 s"
