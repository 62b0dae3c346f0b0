# SPDX-License-Identifier: Apache-2.0
"""Random clusters: which nodes suit a pod, asked of kube-scheduler's own plugins and of Dovetail.

All that `test_differences.py` breaks is found in these or in the further ones that it names, where Dovetail agrees,
too. DOVETAIL_REFEREE_CLUSTERS sets another number."""

import os
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.referee.comparison import disagreements
from tests.referee.handmade import Case
from tests.referee.manifests import Dice
from tools.controlplane import referee

pytestmark = pytest.mark.plane

PER_CHUNK = 500
CHUNKS = int(os.environ.get("DOVETAIL_REFEREE_CLUSTERS", "1000")) // PER_CHUNK
FILTERS = {
    "NodeUnschedulable", "TaintToleration", "NodeAffinity", "NodePorts", "NodeResourcesFit", "VolumeRestrictions",
    "NodeVolumeLimits", "VolumeBinding", "VolumeZone", "PodTopologySpread", "InterPodAffinity",
}  # fmt: skip


def cases(first: int, last: int, question: str = "filter") -> dict[str, Case]:
    return {str(seed): Dice(seed).case(str(seed)) | {"question": question} for seed in range(first, last)}


def asked(program: Path, found: dict[str, Case]) -> Iterator[tuple[Case, referee.Answer]]:
    for answer in referee.answers(program, found.values()):
        assert "error" not in answer, answer
        yield found[answer["id"]], answer


@cache
def answered(program: Path, chunk: int) -> list[tuple[Case, referee.Answer]]:
    return list(asked(program, cases(PER_CHUNK * chunk, PER_CHUNK * (chunk + 1))))


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_dovetail_accepts_and_refuses_as_kube_scheduler_does(program: Path, chunk: int) -> None:
    found = answered(program, chunk)
    for case, answer in found:
        assert list(disagreements(case, answer)) == []
    assert len(found) == PER_CHUNK


def test_every_plugin_refuses_often_and_never_everything(program: Path) -> None:
    refused: Counter[str] = Counter()
    nodes = accepted = held = 0
    for _, answer in answered(program, 0):
        everywhere = {verdict["plugin"] for verdict in answer["preFilter"]}
        for node in answer["nodes"].values():
            refused.update(everywhere | {verdict["plugin"] for verdict in node["refusals"]})
            nodes += 1
            accepted += node["accepted"]
            held += "nominated" in node
    assert {plugin for plugin in FILTERS if not 5 < refused[plugin] < nodes / 2} == set(), refused
    assert nodes / 5 < accepted < nodes * 4 / 5
    assert held > 1


def test_the_clusters_are_such_as_an_api_server_would_hand_out(program: Path) -> None:
    for _, answer in asked(program, cases(0, 250, "admit")):
        assert answer["problems"] == [], answer["id"]
