# SPDX-License-Identifier: Apache-2.0
"""What `whatif` is asked, and its answers. Objects are manifests, with the pods of workloads made already."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from dovetail.core.devices.collectives import AllReduce
from dovetail.core.reasons import Expected
from dovetail.views.forecast_types import ForecastPlace, ForecastVictim
from dovetail.views.lease_types import OfferRow
from dovetail.views.priced_types import ChangedNodes, SubmittedGpus

Effect = Literal[
    "starts now", "no longer starts now", "sooner", "later", "waits", "can start", "never starts", "gone", "as before"
]  # fmt: skip


class WhatifOutcome(Struct, frozen=True):
    """A job with the change and without it. `before` is None for a job that the change adds, or that runs without it;
    `after` is None for a job that the change removes, or that runs with it. `left` are the nodes that its pods leave,
    `places` those to which they go, `code` and `message` why it waits then. `gpus_milli` are its requested GPUs.
    `before_state` and `state` are Placed, NotYet or Never, "" without a start. Of a request for a lease `offers` are
    what its agent is offered when it starts, and `granted` is what it then has, in words. `all_reduce` is what the pods
    can expect in `places`, None where that is not known."""

    job: str
    queue: str
    pods: int
    gpus_milli: int
    effect: Effect
    before: Expected | None
    after: Expected | None
    before_state: str = ""
    state: str = ""
    left: tuple[str, ...] = ()
    places: tuple[ForecastPlace, ...] = ()
    code: str = ""
    message: str = ""
    offers: tuple[OfferRow, ...] = ()
    granted: str = ""
    all_reduce: AllReduce | None = None


class QueueGain(Struct, frozen=True):
    """The GPUs that the jobs of a queue have after the next step, without the change and with it."""

    queue: str
    before_milli: int
    after_milli: int


class WhatIf(Struct, frozen=True):
    """The answer. `jobs` has the jobs that the change is about, then the others with a difference, in the order of
    their starts. `spared` are the pods that would be evicted only without the change. `unchanged` is the number of
    waiting jobs without a difference. `whole` is false if a look-ahead ended at its bound. `elsewhere` is the number of
    jobs with a difference that are left out, as they are in namespaces that the asker may not see. `nodes` are those
    that the change adds or takes away, `submitted` what its jobs hold; None where an older scheduler answers."""

    now_ms: int
    jobs: tuple[WhatifOutcome, ...]
    evicted: tuple[ForecastVictim, ...]
    spared: tuple[ForecastVictim, ...]
    queues: tuple[QueueGain, ...]
    unchanged: int
    notes: tuple[str, ...]
    whole: bool
    elsewhere: int = 0
    nodes: tuple[ChangedNodes, ...] | None = None
    submitted: tuple[SubmittedGpus, ...] | None = None


class Submit(Struct, frozen=True, tag="submit", rename="camel"):
    """Create these objects."""

    objects: tuple[dict[str, Any], ...]


class DrainNodes(Struct, frozen=True, tag="drain", rename="camel"):
    """Drain these nodes."""

    nodes: tuple[str, ...]


class AddNodes(Struct, frozen=True, tag="addNodes", rename="camel"):
    """Add the nodes among these objects."""

    objects: tuple[dict[str, Any], ...]


class AddNodesLike(Struct, frozen=True, tag="addNodesLike", rename="camel"):
    """Add so many nodes like one, or like one with so many `gpus` of a `model`."""

    node: str = ""
    gpus: int = 0
    model: str = ""
    count: int = 1
    labels: tuple[tuple[str, str], ...] = ()


class ChangeQuota(Struct, frozen=True, tag="quota", rename="camel"):
    """Change the quota of a queue; amounts are CLASS=AMOUNT. What is None stays."""

    queue: str
    guarantee: tuple[str, ...] = ()
    limit: tuple[str, ...] = ()
    weight: int | None = None
    priority: int | None = None


class StopQueue(Struct, frozen=True, tag="stop", rename="camel"):
    """Stop a queue, and evict its jobs."""

    queue: str
    evict: bool = False


class ResumeQueue(Struct, frozen=True, tag="resume", rename="camel"):
    """Let the jobs of a queue start again."""

    queue: str


Change = Submit | DrainNodes | AddNodes | AddNodesLike | ChangeQuota | StopQueue | ResumeQueue


class WhatIfQuestion(Struct, frozen=True, rename="camel"):
    """The body of a question."""

    change: Change
