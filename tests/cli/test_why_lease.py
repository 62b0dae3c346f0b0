# SPDX-License-Identifier: Apache-2.0
"""`dovetail why` of requests, leases and pods that name one, as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from dovetail.cli import cli
from tests.views.agents import AT, CLUSTER, lease, pod, request


@pytest.fixture
def cluster(tmp_path: Path) -> str:
    file = tmp_path / "cluster.yaml"
    file.write_text(yaml.safe_dump_all(CLUSTER))
    return str(file)


@pytest.fixture
def same(tmp_path: Path) -> str:
    """With a pod, a request and a lease that have one name."""
    file = tmp_path / "same.yaml"
    same = (pod("ada", "same", 1), request("ada", "same"), lease("ada", "same", "n2", (7,)))
    file.write_text(yaml.safe_dump_all((*CLUSTER, *same)))
    return str(file)


def run(cluster: str, *arguments: str) -> Result:
    arguments = ("why", *arguments, "-f", cluster, "--at", AT)
    return CliRunner().invoke(cli, arguments, env={"COLUMNS": "200"})


def shown(cluster: str, *arguments: str) -> str:
    result = run(cluster, *arguments)
    assert result.exit_code == 0, result.output
    return "\n".join(" ".join(line.split()) for line in result.stdout.splitlines())


def test_a_request(cluster: str) -> None:
    text = shown(cluster, "bob/many")
    assert text.startswith("Request bob/many of bob/bob: Offered.\nIt has 1 offer, which stands for 10 s more.")
    assert "0 8 GPUs, on one node, for 1h, Burst NotYet NoNodeFits: 0/2 nodes" in text
    assert "bob/many waits: it can start when other pods end" in text
    assert "Starts in 20 min with 8 GPUs, on one node, for 1h, Burst: when gpulease/ada/train ends" in text
    assert "It requests 8 gpu from queue planes/bob/bob." in text
    text = shown(cluster, "bob/train")
    assert "The scheduler wrote: GangDoesNotFit: it waits" in text and "QueueLimit" in text


def test_a_request_that_the_next_step_offers_something(same: str) -> None:
    text = shown(same, "bob/many")
    assert "The next step of the scheduler offers it devices on n2." in text
    assert "1 1 GPU, for 1h, Burst yes 1 GPU on n2 2, for 1h" in text
    assert "bob/many fits" not in text and "bob/many waits" not in text


def test_a_lease(cluster: str) -> None:
    text = shown(cluster, "ada/train")
    assert "Lease ada/train of ada/ada: 8 GPUs on n1 0,1,2,3,4,5,6,7, Burst; Active, ends in 20 min." in text
    assert "It can be renewed in 10 min" in text and "Inside runs ada/worker." in text
    text = shown(cluster, "gl/small", "-n", "bob")
    assert "It is taken back (NodeMaintenance), 40 s are left: its node has to get empty." in text


def test_a_pod_that_names_a_lease(cluster: str) -> None:
    lease = "The lease ada/train of ada/ada is Active, and ends in 20 min; "
    assert lease + "the pod shows the fence 1769860200000, which is its fence." in shown(cluster, "ada/worker")
    assert lease + "the pod shows the fence 5, not its fence 1769860200000." in shown(cluster, "ada/stale")


def test_all_that_have_one_name_are_explained_and_the_kind_chooses(same: str) -> None:
    text = shown(same, "ada/same")
    assert text.index("ada/same cannot start") < text.index("Request ada/same") < text.index("Lease ada/same")
    assert len(json.loads(run(same, "ada/same", "-o", "json").stdout)) == 3
    for kind, field in (("pod", "pod"), ("leaserequest", "written"), ("lreq", "written"), ("gpulease", "lease")):
        found = json.loads(run(same, f"{kind}/ada/same", "-o", "json").stdout)
        assert field in found
    assert json.loads(run(same, "gl/same", "-n", "ada", "-o", "json").stdout)["lease"]["lease"] == "ada/same"


@pytest.mark.parametrize("name", ["ada/nothing", "pod/ada/train", "lreq/ada/train", "gpulease/bob/many"])
def test_a_name_that_nothing_of_that_kind_has(cluster: str, name: str) -> None:
    result = run(cluster, name)
    assert result.exit_code == 1 and "there is no" in result.output
