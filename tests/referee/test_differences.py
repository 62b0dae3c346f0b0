# SPDX-License-Identifier: Apache-2.0
"""The differences that are known are real and written down, and any other one would be noticed."""

import pickle
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.paths import ROOT
from tests.referee import ours
from tests.referee.comparison import disagreements
from tests.referee.differences import DELIBERATE
from tests.referee.handmade import Case, case, claim, pod, scratch, volume
from tests.referee.manifests import Dice, Manifest
from tools.controlplane import referee

REFERENCE = ROOT / "docs" / "reference" / "placing.md"


@pytest.mark.plane
@pytest.mark.parametrize("name", DELIBERATE)
def test_a_known_difference_is_one(program: Path, name: str) -> None:
    known = DELIBERATE[name]
    [answer] = referee.answers(program, [known.case])
    assert {node for node, found in answer["nodes"].items() if found["accepted"]} == known.upstream
    assert ours.ask(known.case).accepted == known.ours
    assert known.upstream != known.ours


@pytest.mark.plane
@pytest.mark.parametrize("owner", ["", "u-old", "u-new"])
def test_only_its_own_claim_serves_an_ephemeral_volume(program: Path, owner: str) -> None:
    made = claim("new-scratch", "v0")
    if owner:
        reference = {"apiVersion": "v1", "kind": "Pod", "name": "new", "uid": owner, "controller": True}
        made["metadata"]["ownerReferences"] = [reference]
    asked = case(
        pod=pod("new", **scratch()), persistentVolumeClaims=[made], persistentVolumes=[volume("v0", "new-scratch")]
    )
    [answer] = referee.answers(program, [asked])
    assert list(disagreements(asked, answer)) == []
    assert ours.ask(asked).accepted == ({"n0"} if owner == "u-new" else set())


def test_the_reference_has_the_table_of_deliberate_differences() -> None:
    section = REFERENCE.read_text().partition("### In which nodes suit\n")[2].partition("\n#")[0]
    assert re.findall(r"^\| ([^|]+) \|", section, re.MULTILINE)[1:] == list(DELIBERATE)


def each(field: str, change: Callable[[Manifest], object]) -> Callable[[Case], None]:
    def broken(case: Case) -> None:
        for found in case[field]:
            change(found)

    return broken


def no_init_containers(case: Case) -> None:
    for each_pod in (*case["pods"], case["pod"]):
        each_pod["spec"]["initContainers"] = []


BROKEN: dict[str, Callable[[Case], object]] = {
    "taints": each("nodes", lambda node: node["spec"].pop("taints")),
    "cordon": each("nodes", lambda node: node["spec"].pop("unschedulable", None)),
    "tolerations": lambda case: case["pod"]["spec"].pop("tolerations"),
    "node labels": each("nodes", lambda node: node["metadata"].pop("labels")),
    "node affinity": lambda case: case["pod"]["spec"].get("affinity", {}).pop("nodeAffinity", None),
    "init containers": no_init_containers,
    "overhead": each("pods", lambda pod: pod["spec"].pop("overhead", None)),
    "pod-level resources": each("pods", lambda pod: pod["spec"].pop("resources", None)),
    "resources in force": each("pods", lambda pod: pod["status"].pop("containerStatuses", None)),
    "resources in force of the whole pod": each("pods", lambda pod: pod["status"].pop("resources", None)),
    "infeasible resize": each("pods", lambda pod: pod["status"].pop("conditions", None)),
    "ports": each("pods", lambda pod: [c.pop("ports", None) for c in pod["spec"]["containers"]]),
    "spread": lambda case: case["pod"]["spec"].pop("topologySpreadConstraints", None),
    "pod affinity": lambda case: case["pod"]["spec"].get("affinity", {}).pop("podAffinity", None),
    "anti-affinity": lambda case: case["pod"]["spec"].get("affinity", {}).pop("podAntiAffinity", None),
    "anti-affinity of others": each("pods", lambda pod: pod["spec"].pop("affinity", None)),
    "namespace labels": each("namespaces", lambda namespace: namespace["metadata"].pop("labels")),
    "leaving pods": each("pods", lambda pod: pod["metadata"].pop("deletionTimestamp", None)),
    "nominated pods": each("pods", lambda pod: pod["status"].pop("nominatedNodeName", None)),
    "priority of nominated pods": lambda case: case["pod"]["spec"].update(priority=9),
    "volume node affinity": each("persistentVolumes", lambda volume: volume["spec"].pop("nodeAffinity", None)),
    "volume labels": each("persistentVolumes", lambda volume: volume["metadata"].pop("labels")),
    "volume size": each("persistentVolumes", lambda volume: volume["spec"]["capacity"].update(storage="1Ti")),
    "volume phase": each("persistentVolumes", lambda volume: volume["status"].update(phase="Available")),
    "volume mode": each("persistentVolumes", lambda volume: volume["spec"].update(volumeMode="Filesystem")),
    "leaving volumes": each("persistentVolumes", lambda volume: volume["metadata"].pop("deletionTimestamp", None)),
    "class of a volume as an annotation": each(
        "persistentVolumes", lambda volume: volume["metadata"].pop("annotations")
    ),
    "annotations of a claim": each("persistentVolumeClaims", lambda claim: claim["metadata"].pop("annotations")),
    "claim selector": each("persistentVolumeClaims", lambda claim: claim["spec"].pop("selector", None)),
    "access modes": each("persistentVolumeClaims", lambda claim: claim["spec"].update(accessModes=["ReadWriteOnce"])),
    "allowed topologies": each("storageClasses", lambda found: found.pop("allowedTopologies", None)),
    "binding mode": each("storageClasses", lambda found: found.update(volumeBindingMode="WaitForFirstConsumer")),
    "attach limits": lambda case: case.update(csiNodes=[]),
    "scheduling gates": lambda case: case["pod"]["spec"].pop("schedulingGates", None),
}


@pytest.fixture(scope="module")
def answered(program: Path) -> list[tuple[Case, bytes, referee.Answer]]:
    """Cases, also packed: to unpack one is several times as fast as to copy it."""
    found = {str(seed): Dice(seed).case(str(seed)) for seed in range(2500)}
    answers = [(found[answer["id"]], answer) for answer in referee.answers(program, found.values())]
    return [(case, pickle.dumps(case), answer) for case, answer in answers]


@pytest.mark.plane
@pytest.mark.parametrize("what", BROKEN)
def test_it_is_noticed_if_dovetail_does_not_see(what: str, answered: list[tuple[Case, bytes, referee.Answer]]) -> None:
    for known, packed, answer in answered:
        seen = pickle.loads(packed)
        BROKEN[what](seen)
        if seen != known and list(disagreements(seen, answer)):
            return
    pytest.fail(f"no case depends on {what}")


@pytest.mark.plane
@pytest.mark.parametrize(
    ("wrong", "stated"),
    [
        ({"accepted": False}, "accepted"),
        ({"refusals": [{"plugin": "NodePorts", "code": "Unschedulable", "reasons": ["x"]}]}, "refused by NodePorts"),
        ({"nominated": {"plugin": "NodePorts", "code": "Unschedulable", "reasons": ["x"]}}, "held for nominated pods"),
    ],
)
def test_a_wrong_answer_about_one_node_is_reported(program: Path, wrong: Manifest, stated: str) -> None:
    plain = case()
    [answer] = referee.answers(program, [plain])
    assert list(disagreements(plain, answer)) == []
    answer["nodes"]["n0"] |= wrong
    [reported] = disagreements(plain, answer)
    assert reported.startswith(f"case example: {stated}: kube-scheduler ")
