# SPDX-License-Identifier: Apache-2.0
"""The states of one node in a rollout, and the events that lead from one to another.

Rules: `TRANSITIONS` is all that can happen. The state of each node that is worked on is written down before anything
is done to the node, so that the next process goes on from there.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class NodeState(StrEnum):
    PENDING = "pending"
    """It is of an older revision, and not worked on."""
    DRAINING = "draining"
    """It is in maintenance, and pods still hold its GPUs."""
    REPLACING = "replacing"
    """Its pods of older templates are deleted, and its layout is set."""
    VERIFYING = "verifying"
    """The new pods are there, and have to get ready."""
    VALIDATING = "validating"
    """They are ready, and its maintenance has ended: the node has to get ready."""
    DONE = "done"
    FAILED = "failed"


class NodeEvent(StrEnum):
    CHOSEN = "chosen"
    """The budgets admit it, and the change needs an empty node."""
    CHOSEN_IN_USE = "chosen-in-use"
    """The budgets admit it, and pods that run may stay."""
    EMPTY = "empty"
    IN_USE = "in-use"
    """A pod has come that holds GPUs, before anything was changed."""
    OVERDUE = "overdue"
    """It did not get empty in time."""
    REPLACED = "replaced"
    """No pod of an older template is left, and each has a successor."""
    OUTDATED = "outdated"
    """The templates have changed meanwhile."""
    READY = "ready"
    """All that is verified here is as it should be."""
    LATE = "late"
    """It is not, and its time is over."""


TRANSITIONS: Mapping[NodeState, Mapping[NodeEvent, NodeState]] = {
    NodeState.PENDING: {
        NodeEvent.CHOSEN: NodeState.DRAINING,
        NodeEvent.CHOSEN_IN_USE: NodeState.REPLACING,
    },
    NodeState.DRAINING: {
        NodeEvent.EMPTY: NodeState.REPLACING,
        NodeEvent.OVERDUE: NodeState.PENDING,
        NodeEvent.READY: NodeState.DONE,
    },
    NodeState.REPLACING: {
        NodeEvent.IN_USE: NodeState.DRAINING,
        NodeEvent.REPLACED: NodeState.VERIFYING,
        NodeEvent.LATE: NodeState.FAILED,
    },
    NodeState.VERIFYING: {
        NodeEvent.OUTDATED: NodeState.REPLACING,
        NodeEvent.READY: NodeState.VALIDATING,
        NodeEvent.LATE: NodeState.FAILED,
    },
    NodeState.VALIDATING: {
        NodeEvent.OUTDATED: NodeState.PENDING,
        NodeEvent.READY: NodeState.DONE,
        NodeEvent.LATE: NodeState.FAILED,
    },
    # Not before there is another revision, or the one before comes back.
    NodeState.FAILED: {
        NodeEvent.CHOSEN: NodeState.DRAINING,
        NodeEvent.CHOSEN_IN_USE: NodeState.REPLACING,
    },
    NodeState.DONE: {},
}
