# SPDX-License-Identifier: Apache-2.0
"""The CPUs that the kubelet's static CPU Manager takes out of a set, exact to the CPU id.

Follows pkg/kubelet/cm/cpumanager/cpu_assignment.go of Kubernetes v1.37.1. The choice depends on nothing but the
arguments.
"""

from __future__ import annotations

from dovetail.core.devices.kubelet.cpu_distributed import take_distributed
from dovetail.core.devices.kubelet.cpu_packed import take_packed
from dovetail.core.devices.kubelet.cpu_topology import CpuTopology
from dovetail.core.devices.kubelet.inventory import NEWEST_MINOR


def take(
    topology: CpuTopology, available: int, count: int, options: frozenset[str] = frozenset(), minor: int = NEWEST_MINOR
) -> int:
    """`count` CPUs out of `available`, as a kubelet v1.`minor` takes them under its options (takeByTopology).

    The options are those of `inventory.CPU_OPTIONS`. Raises CpuAssignmentError."""
    across_cores = "distribute-cpus-across-cores" in options
    if "distribute-cpus-across-numa" in options:
        group = topology.cpus_per_core if "full-pcpus-only" in options else 1
        return take_distributed(topology, available, count, group, across_cores, "align-by-socket" in options, minor)
    return take_packed(topology, available, count, across_cores, "prefer-align-cpus-by-uncorecache" in options, minor)
