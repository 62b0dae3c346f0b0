# SPDX-License-Identifier: Apache-2.0
"""`dovetail operator`: installs the node stack and the scheduler from one GPUStack, keeps them so, and walks each GPU
node to validated. It writes only what it owns, and deletes nothing else.

A GPUStack (`kube/objects/stack.py`) and what is found in the cluster become the objects that ought to exist
(`rendering/`, pure), which are applied (`apply.py`) and pruned (`inventory.py`) by the loop of the stack
(`reconciler.py`). Each GPU node has one next step (`nodes/`, pure, from the node's objects). Changes that disturb nodes
go through a rollout (`rollout/`, pure, within budgets).

What is beside the engine is a `parts.StackPart`: it is made in `run.parts` from what all parts share, runs while this
process leads, wakes the engine by `changed()`, and has a word in the facts (`found`), in the spec that is applied
(`effective`), in the objects (`adjusted`), in the status (`report`, `waits`) and in the uninstallation (`release`).

Parts that need the same kind of object share one watch of it (`watched/`). Everything is written through one client,
which asks the lease before each write (`leader_client.py`).
"""
