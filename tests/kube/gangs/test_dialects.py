# SPDX-License-Identifier: Apache-2.0
"""From PodGroups in their dialects, and from annotations alone, to gangs."""

from typing import Any

import pytest

from dovetail.core.model import Gang
from dovetail.kube.gangs import declared as gangs
from dovetail.kube.gangs.dialects import COMPOSITE, COSCHEDULING, DIALECTS, NATIVE, VOLCANO, Dialect, membership
from dovetail.kube.gangs.owners import owned_by
from dovetail.kube.translate.annotations import NOTHING, WorkloadOptions, options_of
from tests.kube.yaml_objects import pod, wire

META = "metadata: {name: g, namespace: ml, creationTimestamp: '2026-01-01T00:00:00Z'}"
CREATED_MS = 1767225600000


def gangs_of(dialect: Dialect[Any], spec: str, *members: WorkloadOptions, meta: str = META) -> list[Gang]:
    declared = dialect.declare(wire(dialect.kind, f"{{{meta}, spec: {{{spec}}}}}"))
    return gangs.records(declared, members)


def native(**fields: Any) -> Gang:
    return Gang("podgroup.scheduling.k8s.io/ml/g", "ml", "g", created_ms=CREATED_MS, **fields)


def volcano(suffix: str = "", **fields: Any) -> Gang:
    return Gang(f"podgroup.scheduling.volcano.sh/ml/g{suffix}", "ml", f"g{suffix}", created_ms=CREATED_MS, **fields)


@pytest.mark.parametrize(
    ("dialect", "spec", "expected"),
    [
        (NATIVE, "schedulingPolicy: {gang: {minCount: 4}}, priority: 7", [native(min_count=4, priority=7)]),
        (NATIVE, "schedulingPolicy: {basic: {}}, schedulingConstraints: null", [native(min_count=1)]),
        (NATIVE, "schedulingPolicy: {gang: {minCount: 2}}, parentCompositePodGroupName: top,"
         " schedulingConstraints: {topology: [{key: rack}]}",
         [native(min_count=2, parent="compositepodgroup.scheduling.k8s.io/ml/top", required=("rack",))]),
        (COMPOSITE, "schedulingPolicy: {gang: {minGroupCount: 2}}, parentCompositePodGroupName: top,"
         " schedulingConstraints: {topology: [{key: zone}]}",
         [Gang("compositepodgroup.scheduling.k8s.io/ml/g", "ml", "g", min_groups=2, required=("zone",),
               parent="compositepodgroup.scheduling.k8s.io/ml/top", created_ms=CREATED_MS)]),
        (COMPOSITE, "schedulingPolicy: {basic: {}}",
         [Gang("compositepodgroup.scheduling.k8s.io/ml/g", "ml", "g", min_groups=1, created_ms=CREATED_MS)]),
        (COSCHEDULING, "minMember: 3, minResources: {cpu: 1}",
         [Gang("podgroup.scheduling.x-k8s.io/ml/g", "ml", "g", min_count=3, created_ms=CREATED_MS)]),
        (VOLCANO, "minMember: 3, queue: default", [volcano(min_count=3)]),
        (VOLCANO, "minMember: 5, minTaskMember: {ps: 1, worker: 4, tensorboard: 0}",
         [volcano(min_count=0), volcano("/ps", min_count=1, parent=volcano().id),
          volcano("/worker", min_count=4, parent=volcano().id)]),
        (VOLCANO, "minMember: 3, minTaskMember: {ps: 1, worker: 4}", [volcano(min_count=3)]),
        (VOLCANO, "minMember: 3, networkTopology: {mode: hard, highestTierName: block}",
         [volcano(min_count=3, required=("network.topology.nvidia.com/block",))]),
        (VOLCANO, "minMember: 3, networkTopology: {mode: soft, highestTierName: example.com/row}",
         [volcano(min_count=3, preferred=("example.com/row",))]),
        (VOLCANO, "minMember: 3, networkTopology: {mode: soft, highestTierAllowed: 2}", [volcano(min_count=3)]),
    ],
)  # fmt: skip
def test_what_a_pod_group_declares(dialect: Dialect[Any], spec: str, expected: list[Gang]) -> None:
    assert gangs_of(dialect, spec) == expected


@pytest.mark.parametrize(
    ("dialect", "spec", "field", "value"),
    [
        (NATIVE, "", "spec.schedulingPolicy", ""),
        (NATIVE, "schedulingPolicy: {gang: {}}", "spec.schedulingPolicy.gang.minCount", "0"),
        (NATIVE, "schedulingPolicy: {basic: {}}, resourceClaims: [{name: gpus}]", "spec.resourceClaims", "gpus"),
        (COMPOSITE, "", "spec.schedulingPolicy", ""),
        (COMPOSITE, "schedulingPolicy: {gang: {minGroupCount: -1}}",
         "spec.schedulingPolicy.gang.minGroupCount", "-1"),
        (COSCHEDULING, "minMember: -2", "spec.minMember", "-2"),
        (COSCHEDULING, "minMember: 0", "spec.minMember", "0"),
        (VOLCANO, "minMember: 0", "spec.minMember", "0"),
        (VOLCANO, "minMember: 3, networkTopology: {highestTierAllowed: 2}",
         "spec.networkTopology.highestTierName", ""),
    ],
)  # fmt: skip
def test_a_pod_group_that_cannot_be_honoured(dialect: Dialect[Any], spec: str, field: str, value: str) -> None:
    problem = gangs_of(dialect, spec)[0].problem
    assert problem is not None
    assert (problem.field, problem.value) == (field, value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("spec: {schedulingGroup: {podGroupName: g}}", ("podgroup.scheduling.k8s.io/ml/g", "")),
        ("metadata: {labels: {scheduling.x-k8s.io/pod-group: g}}", ("podgroup.scheduling.x-k8s.io/ml/g", "")),
        ("metadata: {labels: {pod-group.scheduling.sigs.k8s.io: g}}", ("podgroup.scheduling.x-k8s.io/ml/g", "")),
        ("metadata: {annotations: {scheduling.k8s.io/group-name: g, volcano.sh/task-spec: ps}}",
         ("podgroup.scheduling.volcano.sh/ml/g", "ps")),
        ("metadata: {annotations: {scheduling.volcano.sh/group-name: g}}",
         ("podgroup.scheduling.volcano.sh/ml/g", "")),
        ("metadata: {annotations: {dovetail.dev/gang: g}}", ("gang.dovetail.dev/ml/g", "")),
        # The first dialect of the table counts, and any of them before the owner.
        ("{metadata: {labels: {scheduling.x-k8s.io/pod-group: x}, annotations: {dovetail.dev/gang: y},"
         " ownerReferences: [{apiVersion: ray.io/v1, kind: RayCluster, name: z, controller: true}]},"
         " spec: {schedulingGroup: {podGroupName: g}}}", ("podgroup.scheduling.k8s.io/ml/g", "")),
    ],
)  # fmt: skip
def test_how_a_pod_names_its_group(text: str, expected: tuple[str, str]) -> None:
    obj = pod(text, namespace="ml")
    found = membership(obj, options_of(obj.metadata), owned_by(obj))
    assert found is not None
    assert (found.id, found.part) == expected


def test_every_dialect_that_pods_can_name_has_its_own_ids() -> None:
    assert len({dialect.id_prefix for dialect in DIALECTS}) == len(DIALECTS)
    assert all(dialect.resources for dialect in DIALECTS)


def test_levels_of_the_object_count_before_those_of_its_pods() -> None:
    meta = "metadata: {name: g, namespace: ml, annotations: {dovetail.dev/topology-preferred: rack}}"
    zone = WorkloadOptions(required=("zone",), preferred=("block",))
    (gang,) = gangs_of(COSCHEDULING, "minMember: 2", zone, meta=meta)
    assert (gang.required, gang.preferred) == (("zone",), ("dovetail.dev/rack",))


def test_a_bad_annotation_of_the_object_is_its_problem() -> None:
    meta = "metadata: {name: g, namespace: ml, annotations: {dovetail.dev/topology-required: '?'}}"
    problem = gangs_of(NATIVE, "schedulingPolicy: {basic: {}}", meta=meta)[0].problem
    assert problem is not None
    assert problem.field == "metadata.annotations[dovetail.dev/topology-required]"


def by_name(*members: WorkloadOptions) -> Gang:
    (gang,) = gangs.records(gangs.named(gangs.Membership("gang.dovetail.dev/ml/g", "ml", "g")), members)
    return gang


def test_a_gang_by_name_has_the_numbers_of_its_pods() -> None:
    gang = by_name(WorkloadOptions(gang="g", gang_min=2, gang_max=5), WorkloadOptions(gang="g", gang_min=2))
    assert (gang.min_count, gang.max_count, gang.problem) == (2, 5, None)


@pytest.mark.parametrize(
    ("members", "key", "value"),
    [
        ([WorkloadOptions(gang="g")], "gang-min", "0"),
        ([WorkloadOptions(gang_min=5, gang_max=4)], "gang-max", "4"),
        ([WorkloadOptions(gang_min=2), WorkloadOptions(gang_min=3)], "gang-min", "2 and 3"),
        ([WorkloadOptions(gang_min=2, required=("a",)), WorkloadOptions(gang_min=2, required=("b",))],
         "topology-required", "('a',) and ('b',)"),
    ],
)  # fmt: skip
def test_numbers_and_levels_that_contradict_each_other(members: list[WorkloadOptions], key: str, value: str) -> None:
    problem = by_name(*members).problem
    assert problem is not None
    assert (problem.field, problem.value) == (f"metadata.annotations[dovetail.dev/{key}]", value)


def test_a_minimum_for_the_whole_cannot_be_divided_between_sub_gangs() -> None:
    found = gangs_of(VOLCANO, "minMember: 2, minTaskMember: {ps: 1, worker: 1}", WorkloadOptions(gang_min=2))
    assert all(gang.problem is not None and "ps, worker" in gang.problem.rule for gang in found)


def test_a_pod_in_no_gang_cannot_have_a_minimum() -> None:
    assert gangs.lonely(NOTHING) is None
    problem = gangs.lonely(WorkloadOptions(gang_max=3))
    assert problem is not None
    assert problem.field == "metadata.annotations[dovetail.dev/gang-max]"
