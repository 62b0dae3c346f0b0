# SPDX-License-Identifier: Apache-2.0
"""Rollouts: changes of agents, drivers and MIG layouts are brought to the nodes one by one, within budgets.

`rollout.advance` is one pass and is pure; `states` has the states of a node, `budgets` which nodes come next, `record`
what is written down between passes, and `facts` how objects become the input. `part.Rollouts` is the part of the
operator that reads and acts. It is used by the engine as every `StackPart`:

- `effective(stack)` is the stack to render: with the last good spec once a rollout has failed and is rolled back;
- `adjusted(documents)` marks the templates of the DaemonSets, so that it is known which pods are of an older one;
- `report(status)` writes `status.rollout`, and the metrics of nodes, GPUs and the rollout. It comes after the walk of
  the nodes, which writes `status.nodes`;
- `release(stack)` ends all maintenances of rollouts, and deletes the ControllerRevisions.
"""

from dovetail.operator.rollout.part import Rollouts

__all__ = ["Rollouts"]
