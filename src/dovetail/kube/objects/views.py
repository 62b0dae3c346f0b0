# SPDX-License-Identifier: Apache-2.0
"""Answers of the running scheduler on the wire: views.dovetail.dev."""

from __future__ import annotations

import msgspec
from msgspec import field

from dovetail.kube.api.resources import Resource
from dovetail.kube.objects.base import Wire

VIEWS_GROUP, VIEWS_VERSION = "views.dovetail.dev", "v1alpha1"
EXPLANATIONS = Resource(VIEWS_GROUP, VIEWS_VERSION, "explanations", True, "Explanation")
JOB_RANKS = Resource(VIEWS_GROUP, VIEWS_VERSION, "jobranks", True, "JobRank")
WAITING_JOBS = Resource(VIEWS_GROUP, VIEWS_VERSION, "waitingjobs", True, "WaitingJobs")
QUEUE_SHARES = Resource(VIEWS_GROUP, VIEWS_VERSION, "queueshares", True, "QueueShares")
CAPACITIES = Resource(VIEWS_GROUP, VIEWS_VERSION, "capacities", True, "Capacities")
JOB_LISTS = Resource(VIEWS_GROUP, VIEWS_VERSION, "joblists", True, "JobLists")
NODE_LISTS = Resource(VIEWS_GROUP, VIEWS_VERSION, "nodelists", True, "NodeLists")
NODE_HOLDERS = Resource(VIEWS_GROUP, VIEWS_VERSION, "nodeholders", True, "NodeHolders")
GPU_HOLDERS = Resource(VIEWS_GROUP, VIEWS_VERSION, "gpuholders", True, "GpuHolders")
NODE_TOPOLOGIES = Resource(VIEWS_GROUP, VIEWS_VERSION, "nodetopologies", True, "NodeTopologies")
LEASE_LISTS = Resource(VIEWS_GROUP, VIEWS_VERSION, "leaselists", True, "LeaseLists")
WHAT_IFS = Resource(VIEWS_GROUP, VIEWS_VERSION, "whatifs", True, "WhatIf")
DRAIN_PLANS = Resource(VIEWS_GROUP, VIEWS_VERSION, "drainplans", True, "DrainPlan")
DEFRAG_PLANS = Resource(VIEWS_GROUP, VIEWS_VERSION, "defragplans", True, "DefragPlan")
QUEUE_DRAIN_PLANS = Resource(VIEWS_GROUP, VIEWS_VERSION, "queuedrainplans", True, "QueueDrainPlan")
LEASE_EXPLANATIONS = Resource(VIEWS_GROUP, VIEWS_VERSION, "leaseexplanations", True, "LeaseExplanation")
RECORDED_DECISIONS = Resource(VIEWS_GROUP, VIEWS_VERSION, "recordeddecisions", True, "RecordedDecision")
PREDICTIONS = (WHAT_IFS, DRAIN_PLANS, QUEUE_DRAIN_PLANS, DEFRAG_PLANS, LEASE_EXPLANATIONS, RECORDED_DECISIONS)
"""What takes long. Their question is the body of a POST, of MOST_BODY_BYTES. Nothing is created."""
LONGEST_VALUE = 1024
"""Of a parameter."""
MOST_BODY_BYTES = 2 << 20
NO_PARAMETER = "is no parameter"
"""In the answer of a scheduler that does not know a parameter, as it is older than the command."""
VIEWS = (
    EXPLANATIONS, JOB_RANKS, WAITING_JOBS, QUEUE_SHARES, CAPACITIES, JOB_LISTS, NODE_LISTS, NODE_HOLDERS,
    GPU_HOLDERS, NODE_TOPOLOGIES, LEASE_LISTS, *PREDICTIONS,
)  # fmt: skip
"""What the running scheduler answers. Without a namespace: with all names, and objects are named NAMESPACE:NAME."""
COMMANDS = {
    EXPLANATIONS.plural: "why",
    JOB_LISTS.plural: "jobs",
    WAITING_JOBS.plural: "queue",
    JOB_RANKS.plural: "priority",
    QUEUE_SHARES.plural: "share",
    CAPACITIES.plural: "free",
    NODE_LISTS.plural: "nodes",
    NODE_TOPOLOGIES.plural: "topology",
    LEASE_LISTS.plural: "leases",
    WHAT_IFS.plural: "whatif",
    DRAIN_PLANS.plural: "drain --dry-run",
    QUEUE_DRAIN_PLANS.plural: "queue drain",
    DEFRAG_PLANS.plural: "defrag",
    LEASE_EXPLANATIONS.plural: "why of requests and leases",
    NODE_HOLDERS.plural: "the nodes of watch",
    GPU_HOLDERS.plural: "top",
    RECORDED_DECISIONS.plural: "decisions of the web pages",
}
"""What shows each view, as users call it."""


class ViewMeta(Wire, frozen=True):
    """What was asked for. Without a namespace the names of all namespaces are shown."""

    name: str = ""
    namespace: str = ""


class ViewDocument(Wire, frozen=True):
    """An answer. It is about the state after `step` of the scheduler, at `as_of_ms`. `dovetail` is its version."""

    api_version: str = ""
    kind: str = ""
    metadata: ViewMeta = ViewMeta()
    as_of_ms: int = 0
    step: int = 0
    dovetail: str = ""
    answer: msgspec.Raw = field(default_factory=lambda: msgspec.Raw(b"null"))
