# SPDX-License-Identifier: Apache-2.0
"""The sharing of a node's GPUs by several pods.

Rules: a device plugin that shares GPUs offers each GPU as several replicas. Replicas of one GPU are the same GPU: two
of them give a pod no more than one does. Isolation is what separates the pods of one GPU: MIG instances and whole GPUs
have memory and processors of their own (strong), MPS limits the memory of each client, but a fault of one ends all
(memory), and time-slicing shares everything (none).
Source: NVIDIA k8s-device-plugin (sharing.timeSlicing, sharing.mps, failRequestsGreaterThanOne), CUDA MPS documentation.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Isolation = Literal["none", "memory", "strong"]
ISOLATIONS: tuple[Isolation, ...] = ("none", "memory", "strong")
"""The weakest first."""
STRONG = ISOLATIONS[-1]


class Sharing(Struct, frozen=True):
    """`cards` GPUs with `replicas` replicas each, which pods request as `resource`. `one_only`: the plugin rejects pods
    that request more than one replica. With isolation `memory` each replica may use its equal part of the memory.
    `cards` 0: how the GPUs are shared is not known, and replicas are only counted."""

    resource: str
    cards: int
    replicas: int
    isolation: Isolation = "none"
    one_only: bool = False
