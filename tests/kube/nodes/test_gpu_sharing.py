# SPDX-License-Identifier: Apache-2.0
"""How the GPUs of a node are divided: what labels and GPUNode report, and what is made of what cannot be."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import msgspec
import pytest

from dovetail.core import events as ev
from dovetail.core.devices.gpu_sharing import Sharing
from dovetail.core.model import GPU, SHARED_GPU
from dovetail.kube.nodes.gpu_sharing import SharedParts
from dovetail.kube.nodes.wiring import Wiring
from dovetail.kube.objects.base import Node
from dovetail.kube.translate.translator import Translator
from tests.kube.nodes.inside import GPU_NODE, feed_of, gpu_node, zones
from tests.kube.yaml_objects import added

A100 = "NVIDIA-A100-80GB-PCIe"
ALLOCATABLE = f"status.allocatable[{GPU}]"


def node(gpus: int = 0, shared: int = 0, mig: str = "", **labels: str) -> Node:
    """A node with these labels of GPU feature discovery (`_` for `-`); those not named are as on a node of 4 A100."""
    named = {"product": A100, "count": "4", "memory": "81920"} | labels
    keys = {f"nvidia.com/gpu.{key.replace('_', '-')}": value for key, value in named.items() if value}
    keys |= {"nvidia.com/mig.strategy": mig} if mig else {}
    amounts = {"cpu": "8", "pods": "110", GPU: str(gpus), SHARED_GPU: str(shared)}
    return msgspec.convert({"metadata": {"name": "n1", "labels": keys}, "status": {"allocatable": amounts}}, Node)


def reported(*objects: Any) -> Wiring:
    return feed_of(*objects).node_records.wiring("n1")


def shares(*objects: Any) -> SharedParts:
    """How its GPUs are shared; how they could be divided is tested with MIG."""
    return reported(*objects).parts._replace(geometry=None)


def parts(*objects: Any) -> SharedParts:
    """Of a node about which nothing is contradictory."""
    assert reported(*objects).findings == ()
    return shares(*objects)


def findings(*objects: Any) -> list[tuple[str, str, str, str]]:
    return [(f.kind, f.problem.field, f.problem.value, f.problem.rule) for f in reported(*objects).findings]


def with_sharing(**sharing: Any) -> dict[str, Any]:
    return deepcopy(GPU_NODE) | {"sharing": sharing}


RENAMED = {"shared": 16, "replicas": "4", "sharing_strategy": "time-slicing"}
PLAIN = {"gpus": 16, "replicas": "4", "sharing_strategy": "time-slicing", "product": f"{A100}-SHARED"}


@pytest.mark.parametrize("unshared", [{}, {"replicas": "1", "sharing_strategy": "none"}, {"replicas": "0"}])
def test_a_node_that_does_not_share(unshared: dict[str, str]) -> None:
    assert parts(node(gpus=4, **unshared)) == SharedParts(81920, None, False)


def test_time_slicing_under_a_name_of_its_own_and_under_that_of_whole_gpus() -> None:
    assert parts(node(**RENAMED)) == SharedParts(81920, Sharing(SHARED_GPU, 4, 4), False)
    assert parts(node(**PLAIN)) == SharedParts(81920, Sharing(GPU, 4, 4), False)


def test_mps_limits_memory_and_allows_one_replica_per_pod() -> None:
    assert parts(node(**RENAMED | {"sharing_strategy": "mps"})).sharing == Sharing(SHARED_GPU, 4, 4, "memory", True)


def test_older_labels_without_a_strategy_are_of_time_slicing() -> None:
    assert parts(node(**RENAMED | {"sharing_strategy": ""})).sharing == Sharing(SHARED_GPU, 4, 4)


def test_slices_of_strategy_single_have_their_own_memory_and_number() -> None:
    sliced = {"product": f"{A100}-MIG-1g.10gb", "count": "28", "memory": "9856"}
    assert parts(node(gpus=28, mig="single", **sliced)) == SharedParts(9856, None, True)
    assert parts(node(gpus=28, mig="single", **sliced), gpu_node(GPU_NODE)) == SharedParts(9856, None, True)


def test_shared_slices_are_shared_and_sliced() -> None:
    sliced = {"product": f"{A100}-MIG-1g.10gb.me-SHARED", "count": "4", "memory": "9856"}
    found = parts(node(gpus=8, mig="single", replicas="2", sharing_strategy="time-slicing", **sliced))
    assert found == SharedParts(9856, Sharing(GPU, 4, 2), True)


def test_without_a_count_the_cards_follow_from_what_is_offered() -> None:
    assert parts(node(**RENAMED | {"count": "", "product": ""})).sharing == Sharing(SHARED_GPU, 4, 4)


def test_a_card_that_is_broken_is_not_shared() -> None:
    broken = node(**RENAMED | {"shared": 12})
    assert reported(broken).parts.sharing == Sharing(SHARED_GPU, 3, 4)
    assert findings(broken) == [
        ("Node", f"status.allocatable[{SHARED_GPU}]", "12",
         "are 4 replicas of each of 3 GPUs of 4: the others are taken for broken")
    ]  # fmt: skip
    status = deepcopy(GPU_NODE)
    status["gpus"][3]["healthy"] = False
    assert parts(broken, gpu_node(status)).sharing == Sharing(SHARED_GPU, 3, 4)


def test_a_plugin_that_is_not_there_yet_is_not_complained_about() -> None:
    assert parts(node(**PLAIN | {"gpus": 0})).sharing == Sharing(GPU, 4, 4)


def test_gpu_node_reports_more_than_labels() -> None:
    strict = with_sharing(strategy="time-slicing", replicas=4, failRequestsGreaterThanOne=True, resource=SHARED_GPU)
    assert parts(node(**RENAMED), gpu_node(strict)).sharing == Sharing(SHARED_GPU, 4, 4, "none", True)
    assert parts(node(shared=16), gpu_node(with_sharing(strategy="mps", replicas=4))).sharing == Sharing(
        SHARED_GPU, 4, 4, "memory", True
    )


def test_labels_that_differ_from_the_gpu_node_are_findings() -> None:
    shown = node(**RENAMED | {"shared": 8, "memory": "81251"})
    assert findings(shown, gpu_node(with_sharing(strategy="mps", replicas=2))) == [
        ("Node", "metadata.labels[nvidia.com/gpu.memory]", "81251", "GPUNode has 81920: GPUNode counts"),
        ("Node", "metadata.labels[nvidia.com/gpu.sharing-strategy]", "time-slicing",
         "GPUNode has mps: GPUNode counts"),
        ("Node", "metadata.labels[nvidia.com/gpu.replicas]", "4", "GPUNode has 2: GPUNode counts"),
    ]  # fmt: skip
    unshared = node(gpus=4, replicas="4", sharing_strategy="time-slicing")
    assert reported(unshared, gpu_node(with_sharing(strategy="none"))).parts.sharing is None
    assert [(field, value) for _, field, value, _ in findings(unshared, gpu_node(with_sharing(strategy="none")))] == [
        ("metadata.labels[nvidia.com/gpu.sharing-strategy]", "time-slicing"),
        ("metadata.labels[nvidia.com/gpu.replicas]", "4"),
    ]
    agreed = node(gpus=4, replicas="1", sharing_strategy="none")
    assert findings(agreed, gpu_node(with_sharing(strategy="none"))) == []


def test_of_gpus_of_different_memory_the_least_counts() -> None:
    status = deepcopy(GPU_NODE)
    status["gpus"][2]["memoryMiB"] = 40960
    assert reported(node(gpus=4, memory=""), gpu_node(status)).parts.gpu_memory_mib == 40960
    del status["gpus"][1]["memoryMiB"]
    assert reported(node(gpus=4, memory=""), gpu_node(status)).parts.gpu_memory_mib == 0


@pytest.mark.parametrize("memory", ["lots", "0", "-1", "80Gi", "9" * 10])
def test_a_memory_that_is_none_is_not_known(memory: str) -> None:
    assert shares(node(gpus=4, memory=memory)) == SharedParts()
    assert findings(node(gpus=4, memory=memory)) == [
        ("Node", "metadata.labels[nvidia.com/gpu.memory]", memory,
         "must be a whole number of MiB from 1 to 2097152: taken as not known")
    ]  # fmt: skip


REPLICAS, STRATEGY = "metadata.labels[nvidia.com/gpu.replicas]", "metadata.labels[nvidia.com/gpu.sharing-strategy]"


@pytest.mark.parametrize(
    ("labels", "field", "value", "rule"),
    [
        ({"replicas": "0"}, REPLICAS, "0", "must be a whole number from 2 to 1000"),
        ({"replicas": ""}, REPLICAS, "", "must be a whole number from 2 to 1000"),
        ({"replicas": "1001", "shared": 4004}, REPLICAS, "1001", "must be a whole number from 2 to 1000"),
        ({"replicas": "four"}, REPLICAS, "four", "must be a whole number"),
        ({"replicas": "-4"}, REPLICAS, "-4", "must be a whole number"),
        ({"sharing_strategy": "mpss"}, STRATEGY, "mpss",
         "must be one of none, time-slicing, mps; nearest valid value: mps"),
        ({"sharing_strategy": "none"}, STRATEGY, "none", f"status.allocatable[{SHARED_GPU}] is 16"),
        ({"sharing_strategy": "none", "shared": 0, "gpus": 16}, STRATEGY, "none", "nvidia.com/gpu.replicas is 4"),
        ({"sharing_strategy": "none", "shared": 0, "gpus": 4, "replicas": "1", "product": f"{A100}-SHARED"},
         STRATEGY, "none", "nvidia.com/gpu.product ends with -SHARED"),
        ({"shared": 15}, f"status.allocatable[{SHARED_GPU}]", "15", "must be 4 replicas of each of 4 GPUs"),
        ({"shared": 20}, f"status.allocatable[{SHARED_GPU}]", "20", "must be 4 replicas of each of 4 GPUs"),
        ({"shared": 4 * 63, "count": ""}, f"status.allocatable[{SHARED_GPU}]", "252",
         "must be 4 replicas of each of its GPUs"),
        ({"sharing_strategy": "mps", "product": f"{A100}-MIG-1g.10gb"}, STRATEGY, "mps",
         "nvidia.com/gpu.product is of MIG slices, which MPS does not share"),
    ],
)  # fmt: skip
def test_a_contradiction_is_a_finding_and_the_replicas_are_only_counted(
    labels: dict[str, Any], field: str, value: str, rule: str
) -> None:
    shown = node(**RENAMED | labels)
    assert findings(shown) == [("Node", field, value, f"{rule}: only counted")]
    assert reported(shown).parts.sharing == Sharing(GPU if labels.get("gpus") else SHARED_GPU, cards=0, replicas=1)


@pytest.mark.parametrize(
    ("sharing", "field", "value", "rule"),
    [
        ({"strategy": "mps"}, "replicas", "0", "must be a whole number from 2 to 1000"),
        ({"strategy": "mps", "replicas": 1}, "replicas", "1", "must be a whole number from 2 to 1000"),
        ({"strategy": "MPS", "replicas": 4}, "strategy", "MPS", "must be one of none, time-slicing, mps; nearest"),
        ({"strategy": "mps", "replicas": 4, "resource": "nvidia.com/gpu.split"}, "resource", "nvidia.com/gpu.split",
         "must be nvidia.com/gpu or nvidia.com/gpu.shared"),
    ],
)  # fmt: skip
def test_the_same_of_gpu_node(sharing: dict[str, Any], field: str, value: str, rule: str) -> None:
    found = reported(node(shared=16), gpu_node(with_sharing(**sharing)))
    assert found.parts.sharing == Sharing(SHARED_GPU, cards=0, replicas=1)
    (finding,) = found.findings
    assert (finding.kind, finding.problem.field) == ("GPUNode", f"status.sharing.{field}")
    assert finding.problem.value == value
    assert finding.problem.rule.startswith(rule)


def test_gpu_node_that_denies_replicas_which_are_offered() -> None:
    found = reported(node(shared=16), gpu_node(with_sharing(strategy="none")))
    assert found.parts.sharing == Sharing(SHARED_GPU, cards=0, replicas=1)
    assert [(f.problem.field, f.problem.value) for f in found.findings] == [(f"status.allocatable[{SHARED_GPU}]", "16")]


def test_an_invalid_single_strategy_offers_slices_of_no_known_memory() -> None:
    invalid = node(
        gpus=3, mig="single", product=f"{A100}-MIG-INVALID", count="0", memory="0", replicas="0", sharing_strategy=""
    )
    assert shares(invalid) == SharedParts(0, None, True)
    assert [(field, value) for _, field, value, _ in findings(invalid)] == [
        ("metadata.labels[nvidia.com/gpu.product]", f"{A100}-MIG-INVALID")
    ]


def test_a_product_of_slices_counts_before_another_strategy() -> None:
    odd = node(gpus=28, mig="mixed", product=f"{A100}-MIG-1g.10gb", count="28", memory="9856")
    assert reported(odd).parts.sliced
    assert findings(odd) == [
        ("Node", "metadata.labels[nvidia.com/mig.strategy]", "mixed",
         "nvidia.com/gpu.product is of slices: taken for single")
    ]  # fmt: skip


def test_an_invalid_amount_is_a_finding_of_the_node() -> None:
    odd = node(**RENAMED)
    odd.status.allocatable[SHARED_GPU] = "many"
    feed = feed_of(odd)
    assert feed.node_records._nodes["n1"][1].problem is not None


def test_the_record_of_a_node_has_its_parts_and_changes_with_them() -> None:
    feed = Translator()
    (event,) = feed.node_records.nodes(added(node(**RENAMED)))
    assert isinstance(event, ev.NodeChanged)
    assert (event.node.gpu_memory_mib, event.node.sharing, event.node.sliced) == (
        81920,
        Sharing(SHARED_GPU, 4, 4),
        False,
    )
    (event,) = feed.gpu_nodes(added(gpu_node(with_sharing(strategy="mps", replicas=4))))
    assert isinstance(event, ev.NodeChanged)
    assert event.node.sharing == Sharing(SHARED_GPU, 4, 4, "memory", True)


def test_zones_count_devices_that_are_no_gpus_where_these_are_divided() -> None:
    text = """
- {name: node-0, type: Node, resources: [{name: nvidia.com/gpu, capacity: "8"}]}
- {name: node-1, type: Node, resources: [{name: nvidia.com/gpu, capacity: "8"}]}
"""
    status = deepcopy(GPU_NODE)
    del status["kubelet"]
    found = reported(node(**PLAIN), gpu_node(status), zones(text, topologyManagerPolicy="restricted"))
    assert found.inventory is None
    whole = reported(node(gpus=4), gpu_node(status), zones(text.replace("8", "2"), topologyManagerPolicy="restricted"))
    assert whole.inventory is not None
