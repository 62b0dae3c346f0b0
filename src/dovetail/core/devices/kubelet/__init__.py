# SPDX-License-Identifier: Apache-2.0
"""What a node's kubelet will answer to a pod: its Topology Manager and the managers that give it hints."""
