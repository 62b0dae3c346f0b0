# SPDX-License-Identifier: Apache-2.0
"""How the GPUs of a node are offered to several pods at once.

Rules: a device plugin that shares offers each GPU as several replicas. Replicas of one GPU are one GPU: two of them
give a pod no more than one does. What keeps pods of one GPU apart is its isolation: MIG slices and whole GPUs have
memory and processors of their own (strong), MPS limits each client's memory but a fault of one ends all (memory), and
time-slicing shares all there is (none).
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
    """`cards` GPUs of `replicas` replicas each, which pods ask for as `resource`. `one_only`: the plugin rejects pods
    that ask for more than one replica. With isolation `memory` each replica may use its equal part of the memory and no
    more. `cards` 0: it is not known how the GPUs are shared, and replicas are only counted."""

    resource: str
    cards: int
    replicas: int
    isolation: Isolation = "none"
    one_only: bool = False
