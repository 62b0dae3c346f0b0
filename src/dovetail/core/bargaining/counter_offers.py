# SPDX-License-Identifier: Apache-2.0
"""What a counter-offer may ask for.

Rule: it stays within what the request named at first: no more devices on a node or in all, no longer term, no other
model, no better class.
"""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.core.bargaining.types import LeaseAlternative, ServiceClass


def beyond(asked: Sequence[LeaseAlternative], counter: LeaseAlternative) -> str:
    """In what the counter-offer goes beyond each of the alternatives; "" where it stays within one of them."""
    reasons = [_beyond_one(alternative, counter) for alternative in asked]
    return "" if "" in reasons else reasons[0]


def _beyond_one(asked: LeaseAlternative, counter: LeaseAlternative) -> str:
    ranks = list(ServiceClass)
    if counter.resource != asked.resource or (counter.gpu_milli or 1000) > (asked.gpu_milli or 1000):
        return "another or a greater device"
    if counter.gpu_memory_mib > asked.gpu_memory_mib:
        return "more memory of a GPU"
    if counter.count > asked.count or counter.per_node > max(asked.per_node, asked.count):
        return "more devices"
    if counter.duration_ms > asked.duration_ms:
        return "a longer term"
    if asked.models and not set(counter.models) <= set(asked.models):
        return "another model"
    if counter.cpu_milli > asked.cpu_milli or counter.memory_bytes > asked.memory_bytes:
        return "more CPU or memory"
    if ranks.index(counter.service) < ranks.index(asked.service):
        return "a better class"
    return ""
