# SPDX-License-Identifier: Apache-2.0
"""What the pages show, as values. `rows` of a page is the field whose rows its CSV file has. Times are epoch
milliseconds, 0 where they are not known."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import ClassVar, Protocol, TypeVar

from msgspec import Struct

from dovetail.core.reasons import Expected
from dovetail.dashboard.past_page_types import PastPage
from dovetail.kube.api.resources import Resource
from dovetail.recording.decided import RecordedRoom, RecordedWaiting
from dovetail.views.free_types import FreeGpus, StrandedGpus
from dovetail.views.held_types import NodeHolder
from dovetail.views.lease_types import LeasesView
from dovetail.views.node_types import NodeHealthView
from dovetail.views.queue_types import QueueShare
from dovetail.views.topology_types import NodeInside, Topology
from dovetail.views.why_types import Explanation

T = TypeVar("T")


class GridNode(Struct, frozen=True):
    """A node. `place` has its value at each of the levels of the page, "" where it has none. `cells` has a letter for
    each GPU (`gpu_cells`); `exact`: it is known which GPU each pod holds. `free` GPUs are held by no pod."""

    node: str
    place: tuple[str, ...]
    model: str
    state: str
    gpus: int
    used: int
    free: int
    cells: str
    exact: bool
    jobs: int
    why: str
    next: str
    since_ms: int
    maintenance: str
    quarantine: str


class FleetPage(Struct, frozen=True):
    """`levels` are the label keys of the fabric that some node has, the widest first. `capacity` is what still fits, by
    model; `stranded` are free GPUs that no waiting pod can use. At most `budget` nodes may be quarantined. With
    `fits_now` false the two are of an earlier moment, or not there yet: they take long, and are worked out again."""

    rows: ClassVar[str] = "nodes"
    levels: tuple[str, ...]
    nodes: tuple[GridNode, ...]
    capacity: tuple[FreeGpus, ...]
    stranded: StrandedGpus | None
    budget: int
    fits_now: bool = True


class QueuedJob(Struct, frozen=True):
    """A waiting job, as in `WaitingWorkload`. `nodes` are those where it is expected to start."""

    position: int
    job: str
    queue: str
    user: str
    pods: int
    gpus_milli: int
    priority: int
    state: str
    code: str
    message: str
    reclaim: str
    since_ms: int
    expected: Expected
    nodes: tuple[str, ...]


class QueuePage(Struct, frozen=True):
    """`elsewhere` jobs wait in namespaces that the viewer may not see. `whole` is false if the look-ahead ended at its
    bound."""

    rows: ClassVar[str] = "jobs"
    jobs: tuple[QueuedJob, ...]
    whole: bool
    elsewhere: int


class ListedJob(Struct, frozen=True):
    """A job, as in `JobRow`. `sure` is how sure its start is ("" where it is not expected). `group` is the API group of
    its object, "" without one."""

    job: str
    kind: str
    user: str
    queue: str
    state: str
    gpus: str
    gpus_milli: int
    pods: int
    placed: int
    nodes: tuple[str, ...]
    reason: str
    message: str
    when: str
    priority: int
    lease: str
    submitted_ms: int
    start_ms: int
    sure: str
    end_ms: int
    end_sure: str
    group: str


class JobsPage(Struct, frozen=True):
    """`elsewhere` unfinished jobs are in namespaces that the viewer may not see."""

    rows: ClassVar[str] = "jobs"
    jobs: tuple[ListedJob, ...]
    elsewhere: int


class JobsInWindow(JobsPage, frozen=True, kw_only=True):
    """The first of the jobs that have the words of the window; `found` of all `total` jobs have them."""

    total: int
    found: int


class JobNode(Struct, frozen=True):
    """A node on which pods of a job hold GPUs. `place` is as in GridNode."""

    node: str
    place: tuple[str, ...]
    model: str
    cells: str
    pods: tuple[NodeHolder, ...]


class JobPage(Struct, frozen=True):
    """A job. `listed` is None for one that is not in the list; `explained` is None for one that is done. `wiring` is
    that of at most `drawn` of its nodes, by name, without sets of GPUs. `others` are the kinds of other jobs that have
    its name."""

    rows: ClassVar[str] = "nodes"
    job: str
    listed: ListedJob | None
    explained: Explanation | None
    levels: tuple[str, ...]
    nodes: tuple[JobNode, ...]
    wiring: dict[str, Topology]
    drawn: int
    others: tuple[str, ...] = ()


class NodeDetailPage(Struct, frozen=True):
    """A node: its health, the pods that hold its GPUs, and its wiring, None where that is not known."""

    rows: ClassVar[str] = "holders"
    health: NodeHealthView
    cells: str
    exact: bool
    place: tuple[tuple[str, str], ...]
    holders: tuple[NodeHolder, ...]
    inside: NodeInside | None


class TeamsPage(Struct, frozen=True):
    """The queues, a parent before its children."""

    rows: ClassVar[str] = "queues"
    queues: tuple[QueueShare, ...]


class LeasesPage(Struct, frozen=True):
    """Leases, requests for them, and control planes."""

    rows: ClassVar[str] = "leases"
    view: LeasesView

    @property
    def leases(self) -> tuple[object, ...]:
        return self.view.leases


class Latency(Struct, frozen=True):
    """How long `what` takes: `count` values, the median and the 99th percentile, None without values."""

    what: str
    count: int
    median_s: float | None
    p99_s: float | None


class CacheAge(Struct, frozen=True):
    """How long ago the scheduler last heard of a resource."""

    resource: str
    age_s: float


class CountedRefusals(Struct, frozen=True):
    """Refusals with a reason that were reported. `when` is whether waiting can help."""

    reason: str
    when: str
    count: int
    a_minute: float


class CountedDecisions(Struct, frozen=True):
    """Decisions of a kind."""

    kind: str
    count: int
    a_minute: float


class SchedulerPage(Struct, frozen=True):
    """The scheduler at `now_ms`. Rates and latencies are of the last `window_s`, 0: latencies are of all since its
    start. `pending` are gangs and lone pods that wait, by state. `opens`: decisions can be opened from a recording."""

    rows: ClassVar[str] = "refusals"
    now_ms: int
    window_s: float
    steps: int
    latencies: tuple[Latency, ...]
    cache: tuple[CacheAge, ...]
    refusals: tuple[CountedRefusals, ...]
    decisions: tuple[CountedDecisions, ...]
    pending: tuple[tuple[str, int], ...]
    reports_queued: int
    recording_errors: int
    opens: bool = False


class SampledQueue(Struct, frozen=True):
    """A queue over time: GPUs that were due to it and that it had, its credit in GPU-hours; None where it was not there
    or had none."""

    queue: str
    due: tuple[float | None, ...]
    allocated: tuple[float | None, ...]
    credit: tuple[float | None, ...]


class SampleGap(Struct, frozen=True):
    """From the sample at `from_ms` on to `to_ms` nothing is known."""

    from_ms: int
    to_ms: int
    why: str


class SharesPage(Struct, frozen=True):
    """The queues at `times_ms`, as the scheduler published them, since `since_ms`. The first `coarse` times are half an
    hour apart, the others a minute."""

    rows: ClassVar[str] = "queues"
    now_ms: int
    since_ms: int
    times_ms: tuple[int, ...]
    queues: tuple[SampledQueue, ...]
    gaps: tuple[SampleGap, ...]
    coarse: int = 0


class DecisionPage(Struct, frozen=True):
    """A step of the scheduler, as in `DecidedRun`. `place` is the file and the line of the recording."""

    rows: ClassVar[str] = "waiting"
    decision: str
    now_ms: int
    events: tuple[str, ...]
    waiting: tuple[RecordedWaiting, ...]
    decided: tuple[str, ...]
    rooms: tuple[RecordedRoom, ...]
    raised: str
    place: str


AnyPage = (
    SchedulerPage
    | DecisionPage
    | SharesPage
    | FleetPage
    | QueuePage
    | JobsPage
    | JobsInWindow
    | JobPage
    | NodeDetailPage
    | TeamsPage
    | LeasesPage
    | PastPage
)


class NotYet(Exception):
    """An answer that takes long is left out of the first page; the page is made again with it."""


class Asking(Protocol):
    """Asks for an answer as a `kind`; of one object where it has a `name`, NAMESPACE/NAME. With `seldom` one that takes
    long may be older, and `again_s` is then not 0. Raises SourceAway, NoSuchObject, JsonError, and with `seldom`
    NotYet. An answer that no other page asks for is not `shared`: it is not kept for them."""

    again_s: float

    async def __call__(
        self, resource: Resource, kind: type[T], query: Mapping[str, str] = ..., name: str = ..., *, seldom: bool = ...,
        shared: bool = ...,
    ) -> T: ...  # fmt: skip


Page = Callable[[Asking, Sequence[str], str], Awaitable[AnyPage]]
"""How a page is made. It gets the levels of the fabric, and the name of what it is about."""
