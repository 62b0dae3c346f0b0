# SPDX-License-Identifier: Apache-2.0
"""What several parts of the operator follow: one list and one watch of each kind, reduced to what any of them reads.

`watches.SharedWatches` has them; the modules beside it have the objects. Rules of the structs: see `kube/objects/base`.
A cluster has many pods and large GPUNodes: what is kept of each is small, so that 1,000 nodes fit into little memory.
"""
