# SPDX-License-Identifier: Apache-2.0
"""What a cluster has that the operator did not make, as far as it decides what is installed."""

from __future__ import annotations

from msgspec import Struct

from dovetail.kube.api.discovery import Served


class Found(Struct, frozen=True):
    """Facts of one cluster.

    `served`: the kinds that its API server has. `runtime_classes`: names of RuntimeClasses that are not the operator's
    own. `foreign_allocation`: pools with nodes on which NVIDIA's device plugin or DRA driver stays; those nodes have
    the label dovetail.dev/allocation=foreign, and their agents offer no GPUs.
    """

    served: Served = Served(frozenset())
    runtime_classes: frozenset[str] = frozenset()
    foreign_allocation: frozenset[str] = frozenset()
