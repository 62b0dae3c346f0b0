# SPDX-License-Identifier: Apache-2.0
"""What objects say of a node: its GPUs, their wiring and sharing, its kubelet's policies."""
