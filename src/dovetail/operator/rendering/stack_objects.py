# SPDX-License-Identifier: Apache-2.0
"""The objects that ought to exist for a GPUStack in a cluster, in the order in which they are applied."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from dovetail.core.model import Problem
from dovetail.kube.objects.stack import GPUStack
from dovetail.operator.found import Found

Document = dict[str, Any]

SYSTEM_NAMESPACE, AGENT_NAMESPACE = "dovetail-system", "dovetail-agent"
MANAGED_BY = ("app.kubernetes.io/managed-by", "dovetail-operator")
PART_OF = ("app.kubernetes.io/part-of", "dovetail")
STACK_LABEL = "dovetail.dev/stack"


class Desired(Struct, frozen=True):
    """`objects` as documents, each with the labels and the owner reference of the operator's own, in the order in which
    they are applied; the reverse is the order in which they are removed. With `problems`, contradictions in the spec,
    there are no objects, and nothing is to be applied or pruned."""

    objects: tuple[Document, ...] = ()
    problems: tuple[Problem, ...] = ()


def desired(stack: GPUStack, found: Found, operator_image: str) -> Desired:
    """The objects for this stack. `operator_image`: the image that the operator runs, `repository:tag` or
    `repository@sha256:...`; scheduler and agents run it unless the spec names another one.

    The namespace of the operator itself (dovetail-system) and definitions of kinds are not among them: what is deleted
    with the stack must take along neither the operator nor any Queue.
    """
    return Desired()
