# SPDX-License-Identifier: Apache-2.0
"""The lists of a cluster that the linter needs, and the facts that it takes from them.

Rule: a list that could not be read is named, and the rules that need it guess. The nodes are required.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from dovetail.advice.lint.field import Field
from dovetail.advice.lint.inventory import DEFAULT_SCHEDULER, facts_of
from dovetail.advice.lint.rule import Facts
from dovetail.kube.api.resources import (
    GPU_NODES,
    NODE_TOPOLOGIES,
    NODES,
    PODS,
    PVCS,
    PVS,
    QUEUES,
    STORAGE_CLASSES,
    Resource,
)
from dovetail.kube.objects.base import ObjectMeta, Wire
from dovetail.kube.reading.lists import ListReply, ListRequest

_DEPLOYMENTS = Resource("apps", "v1", "deployments", True, "Deployment")
_LOOKED_UP = (NODES, _DEPLOYMENTS, PVCS, PVS, STORAGE_CLASSES, NODE_TOPOLOGIES, GPU_NODES, QUEUES)


class _PodSpec(Wire, frozen=True):
    node_name: str = ""
    scheduler_name: str = ""


class LintedPod(Wire, frozen=True):
    """A pod of the cluster: the scheduler that has bound it."""

    metadata: ObjectMeta = ObjectMeta()
    spec: _PodSpec = _PodSpec()


class NodesUnread(Exception):
    """The nodes could not be read; the text is the reason."""


FEW_REQUESTS = (ListRequest(NODES, None), ListRequest(QUEUES, None))
"""What to read of a cluster before a job is submitted: a user with rights in one namespace may read neither."""
REQUESTS = (*(ListRequest(one, None) for one in _LOOKED_UP), ListRequest(PODS, LintedPod))
"""What to read of a cluster."""


def cluster_facts(replies: Iterable[ListReply]) -> tuple[Facts, tuple[str, ...]]:
    """The facts, and for each list that could not be read the reason; the replies are in the order of REQUESTS. Raises
    NodesUnread."""
    by_resource = {one.resource: reply for one, reply in zip(REQUESTS, replies, strict=True)}
    unread = {resource: reply.unread for resource, reply in by_resource.items() if reply.objects is None}
    if NODES in unread:
        raise NodesUnread(unread[NODES])
    facts = facts_of(Field(one) for resource in _LOOKED_UP for one in by_resource[resource].objects or ())
    schedulers = None
    if not {PODS, _DEPLOYMENTS} & unread.keys():
        bound = [pod for pod in by_resource[PODS].objects or () if pod.spec.node_name]
        schedulers = (facts.schedulers or {DEFAULT_SCHEDULER}) | {pod.spec.scheduler_name for pod in bound}
    return replace(facts, schedulers=schedulers), tuple(unread.values())


def few_facts(replies: Iterable[ListReply]) -> Facts:
    """The facts of FEW_REQUESTS, as far as they could be read."""
    nodes, queues = replies
    facts = facts_of(Field(one) for reply in (nodes, queues) for one in reply.objects or ())
    return replace(facts, nodes=facts.nodes if nodes.objects is not None else None, schedulers=None)
