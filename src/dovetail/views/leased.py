# SPDX-License-Identifier: Apache-2.0
"""Placeholders among the pods of a state: what is shown of them.

Rules: the placeholders of a lease are shown as "gpulease/NAMESPACE/NAME", those of a request under the name of the
request. Their ids are never shown.
"""

from __future__ import annotations

from dovetail.core.bargaining.types import PREFIX
from dovetail.core.model import Pod
from dovetail.views.lease_types import LEASE


def lease_key(lease_id: str) -> str:
    """How a lease is shown among pods."""
    return f"{LEASE}{lease_id}"


def is_placeholder(pod: Pod) -> bool:
    """Whether the pod stands for a request or a lease, and no object exists for it."""
    return pod.uid.startswith(PREFIX)


def key_of(pod: Pod) -> str:
    """How a pod is shown: NAMESPACE/NAME, and the placeholders of a lease as the lease."""
    return lease_key(pod.lease) if is_placeholder(pod) and pod.node else pod.key
