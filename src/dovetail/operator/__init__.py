# SPDX-License-Identifier: Apache-2.0
"""`dovetail operator`: installs the node stack and the scheduler from one GPUStack, keeps them so, and walks each GPU
node to validated. It writes only what it owns, and deletes nothing else.

A GPUStack (`kube/objects/stack.py`) and what is found in the cluster become the objects that ought to exist
(`rendering/`, pure), which are applied (`apply.py`) and pruned (`inventory.py`). Each GPU node has one next step
(`nodes/`, pure, from the node's objects). Changes that disturb nodes go through a rollout (`rollout/`, pure, within
budgets).
"""
