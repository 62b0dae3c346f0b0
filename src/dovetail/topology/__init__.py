# SPDX-License-Identifier: Apache-2.0
"""Topology of a node from text: parses the output of `nvidia-smi topo -m`, parses and writes NCCL's topology XML."""
