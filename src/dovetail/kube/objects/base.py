# SPDX-License-Identifier: Apache-2.0
"""The wire structs that all objects share, and the small ones: Node, Namespace, PodDisruptionBudget.

Rules
- A struct names only the fields that are read; others are skipped while decoding. Every field has a default, so that a
  bookmark, or an object of an older or newer API version, decodes.
- Structs are frozen and sequences are tuples: a part without maps is hashable and can be the key of a cache.
- Values of closed sets (operators, effects, phases) stay plain strings here. A value that this release does not know
  must not lose the object: a running pod that is not decoded would have its GPUs allocated twice.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from msgspec import Struct, field

# A quantity, as written: "500m", 2, 1.5. It is checked in the translation.
Quantity = str | int | float
Quantities = dict[str, Quantity]
_EPOCH = datetime(1970, 1, 1)


class Wire(Struct, rename="camel", frozen=True, gc=False):
    """What wire structs have in common: camelCase on the wire, immutable, no cycles."""


class OwnerReference(Wire, frozen=True):
    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None


class ObjectMeta(Wire, frozen=True):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    owner_references: tuple[OwnerReference, ...] = ()


class SelectorRequirement(Wire, frozen=True):
    """A requirement over labels or node fields."""

    key: str = ""
    operator: str = ""
    values: tuple[str, ...] = ()


class LabelSelector(Wire, frozen=True):
    match_labels: dict[str, str] = field(default_factory=dict)
    match_expressions: tuple[SelectorRequirement, ...] = ()


class NodeSelectorTerm(Wire, frozen=True):
    match_expressions: tuple[SelectorRequirement, ...] = ()
    match_fields: tuple[SelectorRequirement, ...] = ()


class NodeSelector(Wire, frozen=True):
    node_selector_terms: tuple[NodeSelectorTerm, ...] = ()


class Taint(Wire, frozen=True):
    key: str = ""
    value: str = ""
    effect: str = ""


class NodeSpec(Wire, frozen=True):
    unschedulable: bool = False
    taints: tuple[Taint, ...] = ()


class NodeStatus(Wire, frozen=True):
    allocatable: Quantities = field(default_factory=dict)


class Node(Wire, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class Namespace(Wire, frozen=True):
    metadata: ObjectMeta = ObjectMeta()


class BudgetMeta(ObjectMeta, frozen=True):
    generation: int = 0


class BudgetSpec(Wire, frozen=True):
    selector: LabelSelector | None = None


class BudgetStatus(Wire, frozen=True):
    disruptions_allowed: int = 0
    observed_generation: int = 0


class PodDisruptionBudget(Wire, frozen=True):
    """policy/v1: without a selector it is about no pod, with an empty one about all."""

    metadata: BudgetMeta = BudgetMeta()
    spec: BudgetSpec = BudgetSpec()
    status: BudgetStatus = BudgetStatus()


def time_text(at_ms: int) -> str:
    """The second of a time in epoch milliseconds, as RFC 3339 in UTC."""
    return (_EPOCH + timedelta(milliseconds=at_ms)).isoformat(timespec="seconds") + "Z"


def milli_time_text(at_ms: int) -> str:
    """A time in epoch milliseconds, as RFC 3339 in UTC with three decimals."""
    return (_EPOCH + timedelta(milliseconds=at_ms)).isoformat(timespec="milliseconds") + "Z"


def micro_time_text(at_ms: int) -> str:
    """A time in epoch milliseconds as a MicroTime: RFC 3339 in UTC with six decimals."""
    return (_EPOCH + timedelta(milliseconds=at_ms)).isoformat(timespec="microseconds") + "Z"


def epoch_ms(moment: datetime | None) -> int:
    """Epoch milliseconds as the core wants them: 0 where the time is unknown (Go writes year 1, or null)."""
    return 0 if moment is None else max(0, round(moment.timestamp() * 1000))
