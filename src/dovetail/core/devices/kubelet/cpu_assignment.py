# SPDX-License-Identifier: Apache-2.0
"""Which CPUs the kubelet's static CPU Manager takes out of a set, exact to the CPU id.

Follows pkg/kubelet/cm/cpumanager/cpu_assignment.go of Kubernetes v1.37.1. The choice depends on nothing but the
arguments.
"""

from __future__ import annotations

from dovetail.core.devices.kubelet.cpu_distributed import take_distributed
from dovetail.core.devices.kubelet.cpu_packed import take_packed
from dovetail.core.devices.kubelet.cpu_topology import CpuTopology
from dovetail.core.devices.kubelet.inventory import NEWEST_MINOR


def take(
    topology: CpuTopology,
    available: int,
    count: int,
    *,
    across_numa: bool = False,
    across_cores: bool = False,
    full_cores: bool = False,
    by_socket: bool = False,
    by_uncore: bool = False,
    minor: int = NEWEST_MINOR,
) -> int:
    """`count` CPUs out of `available`, as a kubelet v1.`minor` takes them under its options (takeByTopology).

    The options are distribute-cpus-across-numa, distribute-cpus-across-cores, full-pcpus-only, align-by-socket and
    prefer-align-cpus-by-uncorecache. Raises CpuAssignmentError."""
    if across_numa:
        group = topology.cpus_per_core if full_cores else 1
        return take_distributed(topology, available, count, group, across_cores, by_socket, minor)
    return take_packed(topology, available, count, across_cores, by_uncore, minor)
