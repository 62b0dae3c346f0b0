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
LONGEST_VALUE = 1024
"""Of a parameter."""
VIEWS = (EXPLANATIONS, JOB_RANKS, WAITING_JOBS, QUEUE_SHARES, CAPACITIES, JOB_LISTS)
"""What the running scheduler answers. Without a namespace: with all names, and objects are named NAMESPACE:NAME."""


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
