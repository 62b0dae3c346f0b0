# SPDX-License-Identifier: Apache-2.0
"""What objects describe of a node: its GPUs, their wiring and sharing, its kubelet's policies."""
