# SPDX-License-Identifier: Apache-2.0
"""What the agent writes into the cluster: GPUNode, labels, NodeResourceTopology."""
