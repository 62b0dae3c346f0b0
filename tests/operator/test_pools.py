# SPDX-License-Identifier: Apache-2.0
"""Which pool a node is in."""

from __future__ import annotations

import msgspec
import pytest
import yaml

from dovetail.core.model import LabelSelector
from dovetail.kube.objects import base
from dovetail.kube.objects.stack import AgentSpec, NodePool
from dovetail.kube.translate.selectors import node_terms
from dovetail.operator.pools import GPU_NODES, is_gpu_node, pool_of, pools_of
from tests.paths import ROOT

PRESENT = {"nvidia.com/gpu.present": "true"}


def selector(**labels: str) -> base.LabelSelector:
    return base.LabelSelector(match_labels=labels)


def test_a_gpu_node_is_what_the_daemon_set_selects() -> None:
    spec = yaml.safe_load((ROOT / "deploy/agent/daemonset.yaml").read_text())["spec"]["template"]["spec"]
    affinity = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    terms = node_terms(msgspec.convert(affinity, base.NodeSelector), "", [])
    assert tuple(LabelSelector(term.expressions) for term in terms or ()) == GPU_NODES


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ({}, False),
        (PRESENT, True),
        ({"feature.node.kubernetes.io/pci-10de.present": "true"}, True),
        ({"dovetail.dev/agent": "true"}, True),
        (PRESENT | {"dovetail.dev/agent": "false"}, False),
        ({"nvidia.com/gpu.present": "false"}, False),
    ],
)
def test_nodes_with_gpus(labels: dict[str, str], expected: bool) -> None:
    assert is_gpu_node(labels) is expected
    assert (pool_of(pools_of(AgentSpec()), labels) is not None) is expected


def test_the_first_pool_that_selects_a_node_has_it_and_the_one_without_a_selector_the_rest() -> None:
    rest, a100, big = NodePool("rest"), NodePool("a100", selector(model="a100")), NodePool("big", selector(size="big"))
    pools = pools_of(AgentSpec(pools=(rest, a100, big)))
    names = [pool_of(pools, PRESENT | more) for more in ({}, {"model": "a100"}, {"size": "big"},
                                                        {"model": "a100", "size": "big"})]  # fmt: skip
    assert names == [rest, a100, big, a100]
    assert pool_of(pools_of(AgentSpec(pools=(a100, big))), PRESENT) is None


def test_an_operator_that_is_not_known_matches_no_node() -> None:
    wrong = base.LabelSelector(match_expressions=(base.SelectorRequirement("model", "Like", ("a*",)),))
    assert pool_of((NodePool("p", wrong),), PRESENT | {"model": "a100"}) is None
