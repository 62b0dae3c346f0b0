# SPDX-License-Identifier: Apache-2.0
"""GPU nodes as answers have them: their health, and how far each is on its way to validated."""

from __future__ import annotations

from msgspec import Struct

UNKNOWN = "unknown"
STATES = ("healthy", "degraded", "draining", "quarantined")
"""Mildest first."""
READY = "ready"
"""The step of a node that has taken all."""
IN_FORCE, BEYOND_BUDGET = "in force", "beyond the budget"


class GpuHealthView(Struct, frozen=True):
    """`code`, `reason` and `next` are "" while it is healthy. `since_ms` is epoch time, 0 where it is not known."""

    index: int
    uuid: str
    product: str
    state: str
    code: str
    reason: str
    since_ms: int
    next: str


class ReadinessView(Struct, frozen=True):
    """The first step that is not done (`ready` if all are), why, since when (epoch time, 0 where it is not known), and
    what to do. `evidence` is the object that shows it, `line` a line of its log or an event. `validated_ms` is the time
    of the last validation, 0 without one; `chosen` and `allocated` are its devices."""

    pool: str
    step: str
    reason: str
    message: str
    action: str
    since_ms: int
    evidence: str
    line: str
    validated_ms: int
    chosen: str
    allocated: str


class NodeHealthView(Struct, frozen=True):
    """`gpus` by state, in the order of STATES. `since_ms` (epoch time, 0 where it is not known), `why` and `next` are
    those of its worst GPU, or of the node's quarantine. `quarantine` is "" if the node does not ask for quarantine,
    IN_FORCE if no pod is placed on it, BEYOND_BUDGET if it stays in use. `maintenance` is by what or by which user it
    is to get empty, and why; "" if it is in use. `model` is that of its label. Pods hold `used` of its whole GPUs;
    `jobs` are the jobs and leases on it, and the pods of other schedulers that request GPUs. `labels` are its own.
    `spare`: it is a spare of its domain, which is held for the gangs that run there."""

    node: str
    state: str
    gpus: int
    by_state: dict[str, int]
    since_ms: int
    why: str
    next: str
    quarantine: str
    devices: tuple[GpuHealthView, ...]
    readiness: ReadinessView | None = None
    maintenance: str = ""
    model: str = ""
    used: int = 0
    jobs: tuple[str, ...] = ()
    labels: dict[str, str] = {}
    spare: bool = False


class NodeList(Struct, frozen=True):
    """GPU nodes by name. At most `budget` of them may be quarantined at a time."""

    nodes: tuple[NodeHealthView, ...]
    budget: int
