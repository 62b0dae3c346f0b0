# SPDX-License-Identifier: Apache-2.0
"""Texts that describe a node's wiring: what `nvidia-smi topo -m` prints, and NCCL's topology XML, read and written."""
