# SPDX-License-Identifier: Apache-2.0
"""The pages: what each shows, made of the answers that commands print.

Rules: a page asks by `Asking`, so that pages of one moment share their answers. A page for users of one namespace is
made of answers for that namespace alone, which are redacted where they are made.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

import msgspec
from msgspec.structs import replace

from dovetail.dashboard.gpu_cells import HELD, PART, cells_of, gpu_count
from dovetail.dashboard.job_windows import window_of
from dovetail.dashboard.page_types import (
    Asking,
    FleetPage,
    GridNode,
    JobNode,
    JobPage,
    JobsInWindow,
    JobsPage,
    LeasesPage,
    ListedJob,
    NodeDetailPage,
    NotYet,
    Page,
    QueuedJob,
    QueuePage,
    TeamsPage,
)
from dovetail.jobs.kinds import group_of
from dovetail.kube.objects.base import epoch_ms
from dovetail.kube.objects.views import (
    CAPACITIES,
    EXPLANATIONS,
    GPU_HOLDERS,
    JOB_LISTS,
    LEASE_LISTS,
    NODE_HOLDERS,
    NODE_LISTS,
    NODE_TOPOLOGIES,
    QUEUE_SHARES,
    WAITING_JOBS,
)
from dovetail.kube.reading.views import NoSuchObject
from dovetail.views.free_types import Free
from dovetail.views.held_types import HeldGpus, NodeHolder
from dovetail.views.job_types import JobFilter, JobList, JobRow, JobTime, JobWindow
from dovetail.views.lease_types import LeasesView
from dovetail.views.names import JOB
from dovetail.views.node_types import NodeHealthView, NodeList
from dovetail.views.queue_types import QueuePosition, QueueShare
from dovetail.views.topology_types import NodeTopology, Topology
from dovetail.views.why_types import Explanation

MOST_DRAWN = 8
"""The nodes of a job whose wiring is asked for."""
MANY_NODES = 200
"""With fewer nodes what fits is worked out at once."""
MOST_AHEAD = 2_000
"""With more waiting jobs the list of jobs has no expected starts; the queue has them."""


async def fleet(ask: Asking, fabric: Sequence[str], name: str) -> FleetPage:
    """The nodes, what holds their GPUs, and what still fits."""
    listed = await ask(NODE_LISTS, NodeList)
    held = await ask(GPU_HOLDERS, HeldGpus)
    free: Free | None = None
    with suppress(NotYet):
        free = await ask(CAPACITIES, Free, seldom=len(listed.nodes) >= MANY_NODES)
    levels, holders = _levels(listed.nodes, fabric), {one.node: one.holders for one in held.nodes}
    nodes = tuple(_fleet_node(one, levels, holders.get(one.node, ())) for one in listed.nodes)
    fits, stranded = (free.gpus, free.stranded) if free is not None else ((), None)
    return FleetPage(levels, nodes, fits, stranded, listed.budget, not ask.again_s)


def _fleet_node(node: NodeHealthView, levels: Sequence[str], holders: Sequence[NodeHolder]) -> GridNode:
    cells, exact = cells_of(node, holders)
    used = sum(cells.count(one) for one in (HELD, PART))
    return GridNode(
        node.node, _place(node, levels), node.model, node.state, gpu_count(node), used, cells.count("."), cells, exact,
        len(node.jobs), node.why, node.next, node.since_ms, node.maintenance, node.quarantine,
    )  # fmt: skip


async def queue(ask: Asking, fabric: Sequence[str], name: str) -> QueuePage:
    """The waiting jobs in queue order."""
    found = await ask(WAITING_JOBS, QueuePosition)
    jobs = tuple(
        QueuedJob(
            one.position, one.job, one.queue, one.user, one.pods, one.gpus_milli, one.priority, one.state, one.code,
            one.message, one.reclaim, one.since_ms, one.expected, _distinct(place.node for place in one.places),
        )
        for one in found.jobs
    )  # fmt: skip
    return QueuePage(jobs, found.whole, found.elsewhere)


async def jobs(ask: Asking, fabric: Sequence[str], name: str) -> JobsPage:
    """All jobs that run, wait or are done."""
    found = await ask(JOB_LISTS, JobList, _job_query(JobFilter()))
    return JobsPage(tuple(map(_listed, found.jobs)), found.elsewhere)


async def jobs_in_window(ask: Asking, fabric: Sequence[str], name: str) -> JobsInWindow:
    """The jobs of the window of this name."""
    window = window_of(name)
    if window is None:
        raise NoSuchObject("there is no such window of the jobs")
    found = await ask(JOB_LISTS, JobWindow, _job_query(window), shared=False)
    return JobsInWindow(tuple(map(_listed, found.jobs)), found.elsewhere, total=found.total, found=found.found)


async def job(ask: Asking, fabric: Sequence[str], name: str) -> JobPage:
    """The job NAMESPACE/NAME; NAMESPACE/NAME/KIND where several have the name."""
    namespace, short, kind = (*name.split("/"), "")[:3]
    name = f"{namespace}/{short}"
    named, rows = list[JobRow](), list[JobRow]()
    with suppress(NoSuchObject):
        found = await ask(JOB_LISTS, JobList, _job_query(JobFilter(names=(short,), namespace=namespace)))
        named = [one for one in found.jobs if one.job == name]
        rows = [one for one in named if one.kind == (kind or named[0].kind)]
    explained: Explanation | None = None
    try:
        explained = await ask(EXPLANATIONS, Explanation, {"kind": JOB}, name)
    except NoSuchObject:
        if not rows:
            raise
    called = rows[0].job if rows else explained.job.job if explained is not None and explained.job is not None else name
    held = await ask(GPU_HOLDERS, HeldGpus)
    on = {one.node: tuple(pod for pod in one.holders if pod.job == called) for one in held.nodes}
    on = {node: pods for node, pods in on.items() if pods}
    listed = await ask(NODE_LISTS, NodeList) if on else NodeList((), 0)
    levels = _levels(listed.nodes, fabric)
    found_on = [one for one in listed.nodes if one.node in on]
    read = {one.node: await _wiring(ask, one.node) for one in found_on[:MOST_DRAWN]}
    wiring = {name: topology for name, topology in read.items() if topology is not None}
    nodes = tuple(
        JobNode(one.node, _place(one, levels), one.model, cells_of(one, on[one.node])[0], on[one.node])
        for one in found_on
    )
    return JobPage(
        called, _listed(rows[0]) if rows else None, explained, levels, nodes, wiring, MOST_DRAWN,
        tuple([one.kind for one in named if one not in rows]),
    )  # fmt: skip


async def _wiring(ask: Asking, node: str) -> Topology | None:
    """Without the sets of GPUs, which a drawing does not show."""
    found = (await ask(NODE_TOPOLOGIES, NodeTopology, {"node": node})).inside.topology
    return replace(found, sets=()) if found is not None else None


async def node(ask: Asking, fabric: Sequence[str], name: str) -> NodeDetailPage:
    """The node NAME."""
    listed = await ask(NODE_LISTS, NodeList)
    found = [one for one in listed.nodes if one.node == name]
    if not found:
        raise NoSuchObject(f"no GPU node is called {name}")
    holders = await ask(NODE_HOLDERS, tuple[NodeHolder, ...], {"node": name})
    cells, exact = cells_of(found[0], holders)
    inside = (await ask(NODE_TOPOLOGIES, NodeTopology, {"node": name})).inside
    place = tuple((key, found[0].labels[key]) for key in fabric if key in found[0].labels)
    return NodeDetailPage(found[0], cells, exact, place, holders, inside)


async def teams(ask: Asking, fabric: Sequence[str], name: str) -> TeamsPage:
    """The queues and their shares."""
    return TeamsPage(await ask(QUEUE_SHARES, tuple[QueueShare, ...]))


async def leases(ask: Asking, fabric: Sequence[str], name: str) -> LeasesPage:
    """The leases of software agents, and what others negotiate for."""
    return LeasesPage(await ask(LEASE_LISTS, LeasesView))


PAGES: Mapping[str, Page] = {"fleet": fleet, "queue": queue, "jobs": jobs, "teams": teams, "leases": leases}
"""By path. Each gets the levels of the fabric, and the name of what it is about."""
OF_OBJECT: Mapping[str, Page] = {"job": job, "node": node}
"""The pages about one job or one node."""
OF_WINDOW: Mapping[str, Page] = {"jobs": jobs_in_window}
"""The pages that also have windows."""


def _levels(nodes: Iterable[NodeHealthView], fabric: Sequence[str]) -> tuple[str, ...]:
    carried: set[str] = set()
    for one in nodes:
        carried |= one.labels.keys()
    return tuple(key for key in fabric if key in carried)


def _place(node: NodeHealthView, levels: Sequence[str]) -> tuple[str, ...]:
    return tuple(node.labels.get(key, "") for key in levels)


def _distinct(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(filter(None, names)))


def _job_query(asked: JobFilter) -> dict[str, str]:
    return {"filter": msgspec.json.encode(asked).decode(), "mostAhead": str(MOST_AHEAD)}


def _listed(row: JobRow) -> ListedJob:
    return ListedJob(
        row.job, row.kind, row.user, row.queue, row.state, row.gpus, row.gpus_milli, row.pods, row.placed, row.nodes,
        row.reason, row.message, row.when, row.priority, row.lease, epoch_ms(row.submitted), *_time(row.start),
        *_time(row.end), group_of(row.kind),
    )  # fmt: skip


def _time(time: JobTime | None) -> tuple[int, str]:
    return (epoch_ms(time.at), time.sure) if time is not None else (0, "")
