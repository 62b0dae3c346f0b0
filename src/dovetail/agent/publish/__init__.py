# SPDX-License-Identifier: Apache-2.0
"""The objects that the agent writes to the API server: GPUNode, node labels, NodeResourceTopology."""
