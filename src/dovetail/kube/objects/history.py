# SPDX-License-Identifier: Apache-2.0
"""Answers of the collector on the wire: history.dovetail.dev. They are ViewDocuments (`objects.views`)."""

from __future__ import annotations

from dovetail.kube.api.resources import Resource

HISTORY_GROUP, HISTORY_VERSION = "history.dovetail.dev", "v1alpha1"
PAST_JOBS = Resource(HISTORY_GROUP, HISTORY_VERSION, "pastjobs", True, "PastJobs")
USE_REPORTS = Resource(HISTORY_GROUP, HISTORY_VERSION, "usereports", True, "UseReport")
COSTS = Resource(HISTORY_GROUP, HISTORY_VERSION, "costs", True, "Cost")
FOCUS_COSTS = Resource(HISTORY_GROUP, HISTORY_VERSION, "focuscosts", True, "FocusCost")
IDLE_LISTS = Resource(HISTORY_GROUP, HISTORY_VERSION, "idlelists", True, "IdleList")
SIZE_ADVICE = Resource(HISTORY_GROUP, HISTORY_VERSION, "sizeadvice", True, "SizeAdvice")
CAPACITY_ADVICE = Resource(HISTORY_GROUP, HISTORY_VERSION, "capacityadvice", True, "CapacityAdvice")
HISTORY_COMMANDS = {
    PAST_JOBS.plural: "history",
    USE_REPORTS.plural: "report",
    COSTS.plural: "cost",
    FOCUS_COSTS.plural: "cost -o focus",
    IDLE_LISTS.plural: "idle",
    SIZE_ADVICE.plural: "advise",
    CAPACITY_ADVICE.plural: "capacity",
}
"""What shows each answer, as users call it."""
HISTORIES = (PAST_JOBS, USE_REPORTS, COSTS, FOCUS_COSTS, IDLE_LISTS, SIZE_ADVICE, CAPACITY_ADVICE)
QUESTION = "question"
"""The parameter with the question, as JSON."""
LONGEST_QUESTION = 4096
