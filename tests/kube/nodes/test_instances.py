# SPDX-License-Identifier: Apache-2.0
"""MIG instances: what is known of those of a node, and how they are written down for a pod."""

import pytest

from dovetail.core.devices.mig.products import of_product
from dovetail.core.model import Instance
from dovetail.kube.nodes.instances import NodeInstances, divided, shown, written
from dovetail.kube.objects.base import ObjectMeta
from dovetail.kube.objects.topology import GPUNode, GPUNodeStatus, GpuStatus, MigInstance

A100 = "NVIDIA-A100-SXM4-40GB"
SMALL, BIG = "nvidia.com/mig-1g.5gb", "nvidia.com/mig-3g.20gb"


def names(found: NodeInstances) -> list[list[tuple[int, str, int]]]:
    return [
        [(card.gpu, card.geometry.profiles[p].name, start) for p, start in card.geometry.members(card.instances)]
        for card in found.cards
    ]


def gpu_node(*gpus: GpuStatus) -> GPUNode:
    return GPUNode(metadata=ObjectMeta(name="a"), status=GPUNodeStatus(gpus=gpus))


def test_a_gpu_node_reports_the_instances_of_its_cards() -> None:
    reported = gpu_node(
        GpuStatus(index=0, uuid="GPU-0"),
        GpuStatus(index=1, uuid="GPU-1", mig=(MigInstance("3g.20gb", 4), MigInstance("1g.5gb", 0))),
    )
    found = divided("a", A100, {SMALL: 1, BIG: 1}, 1, reported)
    assert names(found) == [[(1, "1g.5gb", 0), (1, "3g.20gb", 4)]]
    assert not found.cards[0].assumed and found.findings == ()


def test_a_card_that_does_not_work_and_has_none_is_not_one_to_be_divided() -> None:
    reported = gpu_node(
        GpuStatus(index=0, uuid="GPU-0", mig=()),
        GpuStatus(index=1, uuid="GPU-1", healthy=False, mig=()),
        GpuStatus(index=2, uuid="GPU-2", healthy=False, mig=(MigInstance("1g.5gb", 0),)),
    )
    found = divided("a", A100, {}, 0, reported)
    assert [card.gpu for card in found.cards] == [0, 2], "pods may hold what is on the last one"


def test_without_one_instances_are_assumed_on_as_few_cards_as_can_have_them() -> None:
    found = divided("a", A100, {SMALL: 8}, 2, None)
    assert [len(card) for card in names(found)] == [4, 4]
    assert [card.gpu for card in found.cards] == [2, 3] and all(card.assumed for card in found.cards)
    assert found.geometry is of_product(A100)


def test_a_node_without_instances_states_how_its_gpus_could_be_divided() -> None:
    assert divided("a", A100, {}, 8, None) == NodeInstances((), of_product(A100))
    assert divided("a", "Tesla-T4", {}, 8, None) == NodeInstances()


@pytest.mark.parametrize(
    ("product", "slices", "stated"),
    [
        ("Tesla-T4", {SMALL: 7}, "no MIG profiles are known for 'Tesla-T4': only counted"),
        ("", {SMALL: 7}, "nvidia.com/gpu.product is missing: only counted"),
        (A100, {"nvidia.com/mig-1g.10gb.me": 1}, "has no"),
        (A100, {BIG: 100}, "no 16 cards of A100-40GB can have these instances: only counted"),
    ],
)
def test_an_impossible_set_is_a_finding_and_only_counted(product: str, slices: dict[str, int], stated: str) -> None:
    found = divided("a", product, slices, 0, None)
    assert found.cards == ()
    [finding] = found.findings
    assert stated in finding.problem.rule and finding.problem.field.startswith("status.allocatable[")


@pytest.mark.parametrize(
    ("gpu", "field", "stated"),
    [
        (
            GpuStatus(index=0, uuid="G", mig=(MigInstance("3g.20gb", 2),)),
            "status.gpus[0].mig",
            "starts at one of (0, 4)",
        ),
        (GpuStatus(index=0, uuid="G", mig=(MigInstance("9g.99gb", 0),)), "status.gpus[0].mig", "has no 9g.99gb"),
        (
            GpuStatus(index=0, uuid="G", mig=(MigInstance("3g.20gb", 0), MigInstance("1g.5gb", 1))),
            "status.gpus[0].mig",
            "only counted",
        ),
        (
            GpuStatus(index=0, uuid="G", product="Tesla T4", mig=()),
            "status.gpus[0].product",
            "no MIG profiles are known",
        ),
    ],
)
def test_a_gpu_node_that_contradicts_itself_is_a_finding_by_field(gpu: GpuStatus, field: str, stated: str) -> None:
    found = divided("a", A100, {}, 0, gpu_node(gpu))
    assert found.cards == ()
    [finding] = found.findings
    assert finding.problem.field == field and stated in finding.problem.rule


def test_instances_are_written_down_and_read_again() -> None:
    some = (Instance(0, "1g.5gb", 6), Instance(11, "1g.10gb+me", 2), Instance(1, "1g.24gb-me", 0))
    assert written(",".join(map(shown, some))) == some


@pytest.mark.parametrize("text", ["", "0", "0/1g.5gb", "0/1g.5gb@6,0/1g.5gb@6", "x/1g.5gb@0", "0/1g.5gb@-1", "0/5gb@0"])
def test_what_is_no_list_of_instances_is_none(text: str) -> None:
    assert written(text) is None
