# SPDX-License-Identifier: Apache-2.0
"""Mutable arrays behind `Cluster`: nodes, labels, devices, shapes, fabric tree, peers, volumes, journals."""

from dovetail.core.cluster.cluster import Cluster, GpuChoice
from dovetail.core.cluster.placement import Placement

__all__ = ["Cluster", "GpuChoice", "Placement"]
