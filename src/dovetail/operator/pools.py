# SPDX-License-Identifier: Apache-2.0
"""Which GPU nodes a pool has: the same answer for the affinity of its DaemonSets, for the walk and for rollouts.

A node has GPUs by the label of whatever found them, or by hand; dovetail.dev/agent=false takes it out. It is in the
first pool of the list whose selector matches its labels, else in the pool without a selector, if there is one. So no
node is in two pools, and no two agents run on one node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dovetail.core.labels import matches
from dovetail.core.model import LabelSelector, Problem, Requirement
from dovetail.kube.objects.stack import AgentSpec, NodePool
from dovetail.kube.translate.selectors import label_selector

AGENT_LABEL = "dovetail.dev/agent"
"""`true` makes a node a GPU node, `false` keeps the agent away."""
POOL_LABEL = "dovetail.dev/pool"
"""On the DaemonSets of a pool and on their pods."""
DEFAULT_POOL = NodePool()
GPU_NODES = (
    LabelSelector(
        (Requirement("nvidia.com/gpu.present", "In", ("true",)), Requirement(AGENT_LABEL, "NotIn", ("false",)))
    ),
    LabelSelector(
        (
            Requirement("feature.node.kubernetes.io/pci-10de.present", "In", ("true",)),
            Requirement(AGENT_LABEL, "NotIn", ("false",)),
        )
    ),
    LabelSelector((Requirement(AGENT_LABEL, "In", ("true",)),)),
)
"""A node that one of these matches has GPUs: the terms of the affinity in deploy/agent/daemonset.yaml."""


def pools_of(agent: AgentSpec) -> tuple[NodePool, ...]:
    """The pools in force: without any, one for all GPU nodes; the one without a selector comes last."""
    if not agent.pools:
        return (DEFAULT_POOL,)
    return tuple(sorted(agent.pools, key=lambda pool: pool.node_selector is None))


def is_gpu_node(labels: Mapping[str, str]) -> bool:
    """Whether a node with these labels has GPUs that Dovetail may manage."""
    return any(matches(selector, labels) for selector in GPU_NODES)


def pool_of(pools: Sequence[NodePool], labels: Mapping[str, str]) -> NodePool | None:
    """The pool, of those in force (`pools_of`), of a node with these labels; None: no agent runs there."""
    if not is_gpu_node(labels):
        return None
    return next((pool for pool in pools if matches(selector_of(pool), labels)), None)


def selector_of(pool: NodePool) -> LabelSelector:
    """The selector of a pool alone, without the pools before it; an operator that is not known matches no node."""
    if pool.node_selector is None:
        return LabelSelector()
    problems: list[Problem] = []
    selector = label_selector(pool.node_selector, "nodeSelector", problems)
    assert selector is not None
    return selector
