# SPDX-License-Identifier: Apache-2.0
"""What a cluster has that the operator did not make, as far as it decides what is installed."""

from __future__ import annotations

from msgspec import Struct

from dovetail.kube.api.discovery import Served

ALLOCATION_LABEL, EXPORTER_LABEL = "dovetail.dev/allocation", "dovetail.dev/exporter"
"""Of a GPU node in a pool with foreign components: which side offers its GPUs, and which side exports their metrics."""
OURS, FOREIGN = "dovetail", "foreign"
"""The values of these labels."""


class Rival(Struct, frozen=True):
    """The pods (`namespace`, and all of `labels`) of a foreign component that offers GPUs to kubelets: none of them may
    run beside an agent that does, which its pods' required anti-affinity (topology kubernetes.io/hostname) ensures."""

    namespace: str
    labels: tuple[tuple[str, str], ...]


class Found(Struct, frozen=True):
    """Facts of one cluster.

    `served`: the kinds that its API server has. `runtime_classes`: names of RuntimeClasses that are not the operator's
    own, `device_classes` those of DeviceClasses. `foreign_allocation`: pools with nodes on which NVIDIA's device plugin
    or DRA driver stays, or has not gone yet: in such a pool an agent offers GPUs only on nodes with
    dovetail.dev/allocation=dovetail, and runs on all others without offering any; elsewhere the label means nothing.
    `foreign_exporters`: the same for dcgm-exporter, dovetail.dev/exporter and the metrics of GPUs. `rivals`: see there;
    of agents that offer GPUs, in all pools.
    """

    served: Served = Served(frozenset())
    runtime_classes: frozenset[str] = frozenset()
    device_classes: frozenset[str] = frozenset()
    foreign_allocation: frozenset[str] = frozenset()
    foreign_exporters: frozenset[str] = frozenset()
    rivals: tuple[Rival, ...] = ()
    driver_containers: frozenset[str] = frozenset()
