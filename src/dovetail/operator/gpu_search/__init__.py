# SPDX-License-Identifier: Apache-2.0
"""The search for GPUs on nodes without a label that reports them, so that an empty GPUStack finds its nodes by itself.

What a pod of the search is and what its end means is pure (`search_pod`); `gpu_searches.GpuSearches` makes the pods and
labels the nodes.
"""

from dovetail.operator.gpu_search.gpu_searches import GpuSearches

__all__ = ["GpuSearches"]
