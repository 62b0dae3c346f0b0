# SPDX-License-Identifier: Apache-2.0
"""What `dovetail why` reports of the network of containers, from the Events of agents."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dovetail.cli import cli
from tests.cli.answers import answer
from tests.cli.clusters import Document, command_cluster, node
from tests.cli.test_one_name import pod

SET, LACKS = "set NCCL_SOCKET_IFNAME==eth0 (the pod network)", "no variables were set: [red]not known[/red]"


def event(
    of: str, note: str, reason: str = "NetworkEnvironmentSet", by: str = "dovetail.dev/agent", uid: str = ""
) -> Document:
    kind = "Normal" if reason.endswith("Set") else "Warning"
    return {
        "apiVersion": "events.k8s.io/v1", "kind": "Event",
        "metadata": {"name": f"{of}.{reason.lower()}{uid}", "namespace": "team-a"},
        "eventTime": "2026-11-21T22:00:00.000000Z", "reportingController": by, "reportingInstance": "gpu-1",
        "regarding": {"apiVersion": "v1", "kind": "Pod", "namespace": "team-a", "name": of, "uid": uid or f"uid-{of}"},
        "reason": reason, "action": "Allocating", "type": kind, "note": note,
    }  # fmt: skip


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with command_cluster(tmp_path_factory.mktemp("cluster"), still=True) as found:
        found.put_raw(
            node("gpu-1"), pod("train-a", 1, "train", "gpu-1"), pod("train-b", 1, "train", "gpu-1"),
            pod("other", 1, on="gpu-1"), pod("waits", 16),
        )  # fmt: skip
        for one in (
            event("train-a", SET), event("train-b", SET), event("train-b", LACKS, "NetworkEnvironmentLacking"),
            event("train-a", "XID 79", "GPUError"), event("other", "forged", "NetworkEnvironmentWrong", by="another"),
            event("train-a", "of an earlier pod", "NetworkEnvironmentWrong", uid="uid-earlier"),
        ):  # fmt: skip
            found.put(one)
        yield found.config


def why(config: Path, *words: str) -> str:
    found = CliRunner().invoke(cli, ["why", *words, "-n", "team-a", "--kubeconfig", str(config)])
    assert found.exit_code == 0, found.output
    return " ".join(found.stdout.split())


def network(config: Path, name: str) -> Any:
    return answer(json.dumps(json.loads(why(config, name, "-o", "json"))), "JobExplanation")["network"]


def test_a_pod_has_what_the_agent_reported_of_its_own_network_alone(config: Path) -> None:
    assert network(config, "train-a") == [{"pod": "team-a/train-a", "warns": False, "note": SET}]
    assert network(config, "other") == []
    assert network(config, "waits") is None


def test_pods_of_a_job_with_the_same_are_one_sentence_and_text_is_no_markup(config: Path) -> None:
    text = why(config, "job/train")
    assert f"Network (2 pods): {SET}." in text and f"attention: network: {LACKS}." in text
    assert "XID" not in text


def test_events_beyond_the_first_page_are_read(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dovetail.kube.reading import network_events

    monkeypatch.setattr(network_events, "_PAGE", 2)
    assert len(network(config, "job/train")) == 3
    monkeypatch.setattr(network_events, "_PAGES", 1)
    assert len(network(config, "job/train")) < 3


def test_without_the_events_the_rest_is_shown(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dovetail.kube.reading import network_events

    monkeypatch.setattr(network_events, "_MOST_BYTES", 1)
    assert network(config, "train-a") is None and "is on node gpu-1" in why(config, "train-a")
