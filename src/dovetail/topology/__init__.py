# SPDX-License-Identifier: Apache-2.0
"""Topology from text: of a node (`nvidia-smi topo -m`, NCCL's topology XML), and of the network above the nodes."""
