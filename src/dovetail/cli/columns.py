# SPDX-License-Identifier: Apache-2.0
"""The columns of the lists of `queue`, `nodes`, `share`, `leases` and `free`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from dovetail.cli.listing import ListColumn, ListColumns, Shown, time_of
from dovetail.cli.output import ago, count, gpus, span, start
from dovetail.core.reasons import Sure, When

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dovetail.core.queues.types import Amounts
    from dovetail.views.free_types import Blocked, Free
    from dovetail.views.lease_types import LeaseRow
    from dovetail.views.node_types import NodeHealthView
    from dovetail.views.queue_types import QueueShare, WaitingWorkload

_GPU = "gpu"
"""The class of GPUs among amounts."""


def _starts(row: WaitingWorkload, shown: Shown) -> str:
    return "never" if row.state == When.NEVER else start(row.expected, shown.now_ms)


QUEUE: ListColumns[WaitingWorkload] = ListColumns(
    (
        ListColumn("position", lambda row: row.position, heading=""),
        ListColumn("job", lambda row: row.job),
        ListColumn("queue", lambda row: row.queue),
        ListColumn("gpus", lambda row: row.gpus_milli / 1000, lambda row, _: gpus(row.gpus_milli), "GPUs"),
        ListColumn("waiting", lambda row: time_of(row.since_ms), lambda row, shown: ago(row.since_ms, shown.now_ms)),
        ListColumn("reason", lambda row: row.code),
        ListColumn(
            "starts",
            lambda row: time_of(row.expected.start_ms) if row.expected.sure is not Sure.UNKNOWN else None,
            _starts,
        ),
        ListColumn("basis", lambda row: row.expected.basis, heading="based on", wide=True, prose=True),
        ListColumn("user", lambda row: row.user, wide=True),
        ListColumn("pods", lambda row: row.pods, wide=True, to_the_right=True),
        ListColumn("priority", lambda row: row.priority, wide=True, to_the_right=True),
        ListColumn("nodes", lambda row: ",".join(dict.fromkeys(one.node for one in row.places)), wide=True),
        ListColumn("why", lambda row: row.message, wide=True, prose=True),
    ),
    named_by="job",
    state="reason",
)

NODE_STYLES = {"healthy": "green", "degraded": "yellow", "draining": "red", "quarantined": "red", "unknown": "dim"}
_PLACED = {
    "": "",
    "in force": " (no pod is placed on it)",
    "beyond the budget": " (it stays in use: beyond the budget)",
}


def _counted(state: str) -> ListColumn[NodeHealthView]:
    return ListColumn(state, lambda row: row.by_state.get(state) if row.by_state else None, to_the_right=True)


def _since(row: NodeHealthView, shown: Shown) -> str:
    return span(max(0, shown.now_ms - row.since_ms)) if row.since_ms else ""


NODES: ListColumns[NodeHealthView] = ListColumns(
    (
        ListColumn("node", lambda row: row.node),
        ListColumn("state", lambda row: row.state, styles=NODE_STYLES),
        ListColumn("gpus", lambda row: row.gpus, heading="GPUs", to_the_right=True),
        ListColumn("used", lambda row: row.used, to_the_right=True),
        *map(_counted, ("healthy", "degraded", "draining", "quarantined")),
        ListColumn("since", lambda row: time_of(row.since_ms), _since),
        ListColumn("why", lambda row: row.why, prose=True),
        ListColumn("next", lambda row: row.next + _PLACED[row.quarantine], prose=True),
        ListColumn("model", lambda row: row.model, wide=True),
        ListColumn("step", lambda row: row.readiness.step if row.readiness is not None else None, wide=True),
        ListColumn("maintenance", lambda row: row.maintenance, wide=True, prose=True),
        ListColumn("jobs", lambda row: ", ".join(row.jobs), wide=True, prose=True),
    ),
    named_by="node",
    state="state",
)


def _amount(amounts: Amounts) -> float:
    """GPUs among amounts."""
    return dict(amounts).get(_GPU, 0) / 1000


SHARE: ListColumns[QueueShare] = ListColumns(
    (
        ListColumn("queue", lambda row: row.queue),
        ListColumn("guarantee", lambda row: _amount(row.guarantee), to_the_right=True),
        ListColumn("limit", lambda row: _amount(row.limit) if _GPU in dict(row.limit) else None, to_the_right=True),
        ListColumn("fair-share", lambda row: _amount(row.due), to_the_right=True),
        ListColumn("allocated", lambda row: _amount(row.allocated), to_the_right=True),
        ListColumn("borrowed", lambda row: _amount(row.borrowed), to_the_right=True),
        ListColumn("pending", lambda row: _amount(row.pending), to_the_right=True),
        ListColumn("jobs", lambda row: row.pending_jobs, to_the_right=True),
        ListColumn("first-job", lambda row: row.head),
        ListColumn("gpu-hours-1d", lambda row: row.gpu_hours_1d, heading="GPU-hours 1 day", to_the_right=True),
        ListColumn("gpu-hours-7d", lambda row: row.gpu_hours_7d, heading="7 days", to_the_right=True),
        ListColumn("gpu-hours-30d", lambda row: row.gpu_hours_30d, heading="30 days", to_the_right=True),
        ListColumn("share-percent", lambda row: row.usage_ppm / 10_000, heading="% share", to_the_right=True),
        ListColumn("weight-percent", lambda row: row.weight_ppm / 10_000, heading="% of weight", to_the_right=True),
        ListColumn("credit", lambda row: row.credit_gpu_hours, to_the_right=True),
        ListColumn("problem", lambda row: row.problem, prose=True),
    ),
    named_by="queue",
)


def devices_of(row: LeaseRow) -> str:
    """What a lease is of: `4 GPUs on gpu-1 0,1,2,3`."""
    return f"{row.what} on {'; '.join(map(str, row.devices))}" if row.devices else row.what


def _end_ms(row: LeaseRow) -> int:
    """When it ended, has to end or ends; 0 if not known."""
    return row.ended_ms or (row.revocation.deadline_ms if row.revocation is not None else row.end_ms)


def lease_ends(row: LeaseRow, now_ms: int) -> str:
    """When a lease ends, or for how long it has been over."""
    at_ms = _end_ms(row)
    if not at_ms:
        return "?"
    if row.ended_ms:
        return f"{span(max(0, now_ms - at_ms))} ago"
    return f"in {span(at_ms - now_ms)}" if at_ms > now_ms else f"overdue, {span(now_ms - at_ms)}"


LEASES: ListColumns[LeaseRow] = ListColumns(
    (
        ListColumn("lease", lambda row: row.lease),
        ListColumn("plane", lambda row: row.plane),
        ListColumn("class", lambda row: row.service),
        ListColumn("devices", devices_of, prose=True),
        ListColumn("state", lambda row: row.state or "new"),
        ListColumn("ends", lambda row: time_of(_end_ms(row)), lambda row, shown: lease_ends(row, shown.now_ms)),
        ListColumn("renewals", lambda row: row.renewals),
        ListColumn("pods", lambda row: ",".join(row.pods), heading="pods inside", prose=True),
        ListColumn("starts", lambda row: time_of(row.start_ms), heading="since", wide=True,
                   text=lambda row, shown: ago(row.start_ms, shown.now_ms)),
        ListColumn("waiting", lambda row: ",".join(row.waiting), heading="pods that wait", wide=True, prose=True),
        ListColumn("taken-back", lambda row: row.revocation.cause if row.revocation is not None else None, wide=True),
        ListColumn("cause", lambda row: row.cause, wide=True),
        ListColumn("refused", lambda row: row.refused, wide=True, prose=True),
        ListColumn("problem", lambda row: row.problem, wide=True, prose=True),
    ),
    named_by="lease",
    state="state",
)  # fmt: skip


class FreeRow(Struct, frozen=True):
    """So many pods of a `size` that start now. `kind` is gpu, mig, share or class; `devices` are those of the model,
    the geometry or the class, of which `free` are free. `blocked` is why there is not one more, None if not known."""

    kind: str
    model: str
    size: str
    pods: int
    devices: int
    free: int
    nodes: int
    blocked: Blocked | None


def free_rows(answer: Free) -> Iterator[FreeRow]:
    """What still fits, each size of each kind of devices in a row."""
    for one in answer.gpus:
        for size in one.sizes:
            shape = f"{size.gpus}x{one.model}" if one.model else str(size.gpus)
            yield FreeRow("gpu", one.model, shape, size.pods, one.gpus, one.free, one.nodes, size.blocked)
    for cards in answer.mig:
        for row in cards.profiles:
            yield FreeRow("mig", cards.model, row.profile, row.free, row.instances, row.free, cards.nodes, row.blocked)
    for shared in answer.shared:
        replicas = shared.replicas, shared.replicas_free, shared.nodes
        for part in shared.shares:
            yield FreeRow("share", shared.model, f"{part.milli / 1000:g}", part.pods, *replicas, part.blocked)
    for found in answer.classes:
        yield FreeRow("class", "", found.name, found.free, found.devices, found.free, found.nodes, found.blocked)


def lacking(blocked: Blocked) -> str:
    """What a node lacks: `2 nvidia.com/gpu`, `250/1000 of a GPU`, `1 device`."""
    from dovetail.views.held_types import DEVICES, SHARE

    if blocked.lacking == DEVICES:
        return count(int(blocked.missing), "device")
    return f"{blocked.missing} of a GPU" if blocked.lacking == SHARE else f"{blocked.missing} {blocked.lacking}"


def _blocked(row: FreeRow) -> str:
    found = row.blocked
    if found is None:
        return ""
    return f"{found.node} lacks {lacking(found)}" if found.node and found.missing else found.rule


FREE: ListColumns[FreeRow] = ListColumns(
    (
        ListColumn("kind", lambda row: row.kind),
        ListColumn("model", lambda row: row.model),
        ListColumn("size", lambda row: row.size),
        ListColumn("pods", lambda row: row.pods, to_the_right=True),
        ListColumn("free", lambda row: row.free, to_the_right=True),
        ListColumn("devices", lambda row: row.devices, to_the_right=True),
        ListColumn("nodes", lambda row: row.nodes, to_the_right=True),
        ListColumn("blocked", _blocked, heading="not one more, as", prose=True),
    ),
    named_by="size",
)
