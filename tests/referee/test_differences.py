# SPDX-License-Identifier: Apache-2.0
"""The differences that are known are real and written down, and any other one would be noticed."""

import re
from collections.abc import Callable, Iterable
from copy import deepcopy
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


SHOWN_BY = {
    "spread": 2, "taints": 1, "init containers": 1, "node labels": 5, "pod affinity": 5, "node affinity": 6,
    "ports": 6, "cordon": 10, "anti-affinity": 10, "anti-affinity of others": 13, "volume labels": 13,
    "annotations of a claim": 13, "claim selector": 13, "allowed topologies": 13, "volume node affinity": 16,
    "resources in force": 19, "attach limits": 26, "tolerations": 30, "namespace labels": 35,
    "scheduling gates": 49, "resources in force of the whole pod": 53, "access modes": 65, "binding mode": 87,
    "nominated pods": 104, "priority of nominated pods": 104, "volume phase": 147, "pod-level resources": 204,
    "volume size": 202, "infeasible resize": 254, "leaving pods": 384, "overhead": 417,
    "class of a volume as an annotation": 728, "leaving volumes": 1458, "volume mode": 2048,
}  # fmt: skip
"""The first of the random cases that depends on each. CLUSTERS are sought for another where it does not any more."""
CLUSTERS = 2500


def answered(program: Path, seeds: Iterable[int]) -> dict[int, tuple[Case, referee.Answer]]:
    found = {str(seed): Dice(seed).case(str(seed)) for seed in seeds}
    return {int(answer["id"]): (found[answer["id"]], answer) for answer in referee.answers(program, found.values())}


def depends(what: str, case: Case, answer: referee.Answer) -> bool:
    """Whether it is noticed in this case if Dovetail does not see that."""
    seen = deepcopy(case)
    BROKEN[what](seen)
    return seen != case and any(disagreements(seen, answer))


@pytest.fixture(scope="module")
def cases(program: Path) -> dict[int, tuple[Case, referee.Answer]]:
    return answered(program, {*SHOWN_BY.values()})


@pytest.mark.plane
@pytest.mark.parametrize("what", BROKEN)
def test_it_is_noticed_if_dovetail_does_not_see(
    what: str, program: Path, cases: dict[int, tuple[Case, referee.Answer]]
) -> None:
    shown = cases[SHOWN_BY.get(what, 1)]
    assert not any(disagreements(*shown))
    if not depends(what, *shown):
        others = [seed for seed, known in answered(program, range(CLUSTERS)).items() if depends(what, *known)]
        pytest.fail(f"{what}: SHOWN_BY names no case that depends on it; those that do: {sorted(others)[:9]}")


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
