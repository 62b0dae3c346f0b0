# SPDX-License-Identifier: Apache-2.0
"""Dovetail beside NVIDIA's stack: what of it runs where, and how Dovetail takes over its parts, node by node, and back.

Rules
- Of objects that others made only node labels are written: the GPU Operator's switches (nvidia.com/gpu.deploy.*) and
  labels of our own. Where no node label keeps a DaemonSet away, its owner has to change it once, and is asked to.
- Never two that offer the GPUs of a node: an agent offers them only after every pod of the other side is gone, and the
  other side may return only after the agent's pod is gone.
- Every decision is made from labels and pods as they are (`takeover.py`, pure); nothing else is remembered, so that a
  restart goes on where it was.
"""
