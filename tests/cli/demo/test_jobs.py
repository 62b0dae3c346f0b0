# SPDX-License-Identifier: Apache-2.0
"""`dovetail demo`: the slices, shares and devices of its pods, and the reasons of those that wait."""

from __future__ import annotations

from typing import Any

import pytest
from click.testing import CliRunner

from dovetail.cli import cli
from tests.cli.answers import answer as checked

Answers = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def settled() -> Answers:
    """The reasons while train runs, by pod."""
    result = CliRunner().invoke(cli, ["demo", "-o", "json"])
    assert result.exit_code == 0, result.output
    return {answer["pod"].partition("/")[2]: answer for answer in checked(result.stdout, "Demo")["settled"]}


@pytest.mark.slow
def test_parts_of_gpus_and_claimed_devices_are_placed(settled: Answers) -> None:
    placed = {name: (answer["node"], answer["parts"]) for name, answer in settled.items() if answer["parts"]}
    assert placed == {
        "infer": ("mig-node", [{"kind": "instance", "device": "0/3g.20gb@0", "milli": 0}]),
        "chat-0": ("shared-node", [{"kind": "share", "device": "0", "milli": 500}]),
        "chat-1": ("shared-node", [{"kind": "share", "device": "0", "milli": 250}]),
        "claim": ("dra-node", [{"kind": "claimed", "device": "gpu.nvidia.com/dra-node/gpu-1", "milli": 0}]),
    }


@pytest.mark.slow
def test_a_pod_that_waits_for_a_slice_sees_its_holders_and_a_possible_layout(settled: Answers) -> None:
    tune = settled["tune"]
    assert (tune["state"], tune["code"]) == ("NotYet", "NoNodeFits")
    assert [(one["pod"], one["devices"]) for one in tune["holders"]] == [("default/infer", ["0/3g.20gb@0"])]
    (change,) = tune["repartition"]["changes"]
    assert (change["destroy"], change["create"]) == ([["2g.10gb", 4], ["1g.5gb", 6]], [["3g.20gb", 4]])
