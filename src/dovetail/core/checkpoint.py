# SPDX-License-Identifier: Apache-2.0
"""A state written down as values, and a state made from them.

Rules: `restore(take(state))` knows the same objects, and holds the same room, GPUs and volumes for the same pods, with
the same back-offs and deadlines. It is canonical: caches, the numbering of domains and the marks of refused
workloads are made again, so all waiting workloads are tried at once, as views want it. `restore(take(state,
marks=True))` tries what the state would try, and decides as it does. Two states restored from one checkpoint decide the
same for ever; a driver that wants its later decisions to be repeatable goes on from the restored state.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from dovetail.core import events as ev
from dovetail.core import marks as waiting_marks
from dovetail.core.bargaining import record
from dovetail.core.cluster.mix import Record as Counted
from dovetail.core.cluster.rejection import Rejection
from dovetail.core.decisions import ClaimGrant, VolumePick
from dovetail.core.dra.extended import claim_key
from dovetail.core.event_handlers import apply
from dovetail.core.headroom.headroom import Headroom
from dovetail.core.policy import Policy
from dovetail.core.preemption.moves import MoveRoom
from dovetail.core.queues.eviction_counts import EvictionCounts
from dovetail.core.queues.types import Evictions, History
from dovetail.core.reasons import Expected, Refusal
from dovetail.core.reservations.reservation import Reservation
from dovetail.core.state import State
from dovetail.core.workloads.index import Precedence
from dovetail.core.workloads.lifecycle import GangLives, GangState


class Held(Struct, frozen=True):
    """A pod that was placed. `devices` are the indices of the GPUs that it holds on the node, `slices` its MIG
    instances there, `grants` what was allocated for its claims with it, `by_claim` the extended resources that it has
    by one of these."""

    uid: str
    node: str
    devices: tuple[int, ...] = ()
    picks: tuple[VolumePick, ...] = ()
    grants: tuple[ClaimGrant, ...] = ()
    slices: tuple[int, ...] = ()
    by_claim: tuple[str, ...] = ()


class Avoided(Struct, frozen=True):
    """The pod is not tried on the node ("": on any) before `until_ms`."""

    uid: str
    node: str
    until_ms: int


class ReportedRefusal(Struct, frozen=True):
    """The refusal that was reported of a workload (`root`), when, and for which pods."""

    root: str
    refusal: Refusal
    at_ms: int
    uids: tuple[str, ...]


class HeldRoom(Struct, frozen=True):
    """A reservation, with names of nodes instead of slots; see `reservation.Reservation`."""

    root: str
    queue: str
    nodes: tuple[str, ...]
    expected: Expected
    made_ms: int
    planned_ms: int = 0
    precedence: Precedence = (0, 0)
    guaranteed: bool = False
    waits_for: tuple[str, ...] = ()
    evicting: tuple[str, ...] = ()
    nominated: tuple[tuple[str, str], ...] = ()
    deadline_ms: int = 0
    failure: str = ""
    moving: bool = False


class HeldHeadroom(Struct, frozen=True):
    """Headroom, with names of nodes instead of slots; see `headroom.headroom.Headroom`."""

    room: Headroom
    nodes: tuple[tuple[str, ...], ...] = ()


class Checkpoint(Struct, frozen=True):
    """`events` have every known object, nodes from the lowest slot on and pods in the order in which they came; `held`
    are the pods on nodes, those included that were decided and are not seen bound yet. `starting` are roots that are
    being bound, with the time when that is overdue; `started` the gangs that had their minimum. `histories` is what
    each queue has used, `run_times` what was learned (kind, name, ms), `mix` what kinds of pods came and how many,
    `ended` how many with GPUs are gone, `rooms` the reservations, the oldest first; `spared` are pods that are not
    evicted until then, `unknown` roots whose start is not known. `failed` and `succeeded` are how many
    pods of each gang ended so, `broken` roots with since when (see `core.workloads.broken`). `kept` is room for pods
    that are on the move, `moved` when each job was moved last, `moves` when pods were moved in the last hour (see
    `core.preemption.moves`), `evictions` how often jobs were evicted. `quarantined` are nodes. `leaving` are
    pods that are evicted for maintenance, with their deadlines, `drains` when others were in the last hour.
    `bargaining` are the tables of the broker, None where it has nothing to do. `headrooms` is where headroom lies, and
    `headroom_again_ms` when what is lacking is searched for again, if something has changed (`headroom_changed`) or it
    is not done for all: for `headroom_in_vain` it is. `marks` are there for one that goes on (see `core.marks`).
    """

    steps: int
    now_ms: int
    events: tuple[ev.Event, ...] = ()
    held: tuple[Held, ...] = ()
    avoided: tuple[Avoided, ...] = ()
    starting: tuple[tuple[str, int], ...] = ()
    started: tuple[str, ...] = ()
    reported: tuple[ReportedRefusal, ...] = field(default=(), name="told")
    rejections: tuple[Rejection, ...] = ()
    histories: tuple[History, ...] = ()
    run_times: tuple[tuple[str, str, tuple[int, ...]], ...] = ()
    mix: tuple[Counted, ...] = ()
    ended: int = 0
    rooms: tuple[HeldRoom, ...] = ()
    spared: tuple[tuple[str, int], ...] = ()
    unknown: tuple[tuple[str, int, Expected | None], ...] = ()
    failed: tuple[tuple[str, int], ...] = ()
    succeeded: tuple[tuple[str, int], ...] = ()
    broken: tuple[tuple[str, int], ...] = ()
    kept: tuple[MoveRoom, ...] = ()
    moved: tuple[tuple[str, int], ...] = ()
    moves: tuple[int, ...] = ()
    evictions: tuple[Evictions, ...] = field(default=(), name="given_way")
    quarantined: tuple[str, ...] = ()
    leaving: tuple[tuple[str, int], ...] = ()
    drains: tuple[int, ...] = ()
    bargaining: record.Bargaining | None = None
    headrooms: tuple[HeldHeadroom, ...] = ()
    headroom_again_ms: int = 0
    headroom_changed: bool = True
    headroom_in_vain: tuple[str, ...] = ()
    marks: waiting_marks.Marks | None = None


def take(state: State, *, marks: bool = False) -> Checkpoint:
    """Write the state down; with its `marks` for one that goes on exactly so. The state itself stays as it is."""
    cluster = state.cluster
    names = cluster.nodes.names
    lives, broken_ms = state.workloads.lives, state.policy.broken_deadline_ms
    return Checkpoint(
        steps=state.steps,
        now_ms=state.now_ms,
        events=tuple(_known(state)),
        held=tuple(
            Held(uid, names[p.slot], p.devices, p.picks, p.grants, p.slices, p.by_claim)
            for uid in state.workloads.pods
            if (p := cluster.placements.get(uid)) is not None
        ),
        avoided=tuple(
            Avoided(uid, node, until_ms) for uid, nodes in cluster.avoided.items() for node, until_ms in nodes.items()
        ),
        starting=tuple([(gang_id, lives.due_ms[gang_id]) for gang_id in lives.gangs(GangState.STARTING)]),
        started=tuple(sorted(lives.gangs(GangState.STARTED, GangState.BROKEN))),
        reported=tuple(ReportedRefusal(*report) for report in state.queue.reports()),
        rejections=tuple(cluster.rejections),
        histories=state.shares.histories(),
        run_times=state.run_times.records(),
        mix=cluster.mix.records(),
        ended=cluster.mix.ended,
        rooms=tuple(
            HeldRoom(
                one.workload,
                one.queue,
                tuple(names[slot] for slot in one.slots.tolist()),
                one.expected,
                one.made_ms,
                one.planned_ms,
                one.precedence,
                one.guaranteed,
                tuple(sorted(one.waits_for)),
                tuple(sorted(one.evicting)),
                tuple((uid, names[slot]) for uid, slot in one.nominated),
                one.deadline_ms,
                one.failure,
                one.moving,
            )
            for one in state.reservations
        ),
        spared=tuple(state.reservations.spared.items()),
        unknown=tuple((root, until_ms, why) for root, (until_ms, why) in state.reservations.unknown.items()),
        failed=tuple(state.broken.failed.items()),
        succeeded=tuple(state.broken.succeeded.items()),
        broken=tuple([(gang_id, lives.due_ms[gang_id] - broken_ms) for gang_id in lives.gangs(GangState.BROKEN)]),
        kept=tuple(state.moves.rooms.values()),
        moved=tuple(state.moves.moved_ms.items()),
        moves=tuple(state.moves.times_ms),
        evictions=state.eviction_counts.records(),
        quarantined=state.cluster.quarantines.in_force,
        leaving=tuple(state.drains.leaving.items()),
        drains=tuple(state.drains.times_ms),
        bargaining=record.take(state),
        headrooms=tuple(
            [
                HeldHeadroom(
                    replace(room, places=()),
                    # Since the last step a node may have gone.
                    tuple([tuple([names[slot] for slot in one]) for one in room.places if all(names[s] for s in one)]),
                )
                for room in state.headrooms.rooms.values()
            ]
        ),
        headroom_again_ms=state.headrooms.again_ms,
        headroom_changed=state.headrooms.changed,
        headroom_in_vain=tuple(sorted(state.headrooms.in_vain)),
        marks=waiting_marks.take(state) if marks else None,
    )


def restore(policy: Policy, checkpoint: Checkpoint) -> State:
    """A state that goes on where the checkpoint was taken."""
    state = State(policy)
    if checkpoint.marks is not None:
        state.cluster.nodes.number(checkpoint.marks.slots, checkpoint.marks.vacant)
    if checkpoint.bargaining is not None:
        for plane in checkpoint.bargaining.planes:
            # The queues of its pods.
            apply(state, ev.PlaneChanged(plane))
    for event in checkpoint.events:
        apply(state, event)
    cluster = state.cluster
    for held in checkpoint.held:
        if held.uid not in cluster.placements:
            pod = state.workloads.pods[held.uid]
            shape = cluster.shapes.without(pod.request, held.by_claim)
            cluster.place(pod, cluster.nodes.slot_of(held.node), held.picks, shape)
            cluster.nominated.pop(held.uid, None)
            state.touch(state.workloads.workload_of(pod))
        elif held.picks:
            cluster.placements[held.uid].picks = held.picks
            cluster.volumes.assume(held.picks)
    for held in checkpoint.held:
        if held.grants:
            cluster.placements[held.uid].grants = held.grants
            cluster.claims.assume(held.grants, claim_key(state.workloads.pods[held.uid]) if held.by_claim else "")
    cluster.gpus.hold_exactly({held.uid: held.devices for held in checkpoint.held})
    cluster.slices.hold_exactly(cluster.placements, {held.uid: held.slices for held in checkpoint.held})
    cluster.reallocation.unsettled.clear()
    cluster.quarantines.restore(checkpoint.quarantined)
    if checkpoint.bargaining is not None:
        record.restore(state, checkpoint.bargaining)
    for avoided in checkpoint.avoided:
        cluster.avoided.setdefault(avoided.uid, {})[avoided.node] = avoided.until_ms
    _restore_lives(state, checkpoint)
    state.broken.failed, state.broken.succeeded = dict(checkpoint.failed), dict(checkpoint.succeeded)
    state.moves.moved_ms, state.moves.times_ms = dict(checkpoint.moved), list(checkpoint.moves)
    state.drains.leaving, state.drains.times_ms = dict(checkpoint.leaving), list(checkpoint.drains)
    for kept in checkpoint.kept:
        state.moves.put(kept)
    for rejection in checkpoint.rejections:
        cluster.rejections.put(rejection)
    for report in checkpoint.reported:
        state.queue.report(report.root, report.refusal, report.at_ms, report.uids)
    state.steps, state.now_ms = checkpoint.steps, checkpoint.now_ms
    cluster.now_ms = cluster.claims.now_ms = checkpoint.now_ms
    state.shares.advance(checkpoint.now_ms)
    # Queues were read at time 0.
    state.shares.follow_calendars()
    for held in checkpoint.held:
        state.shares.sync(state.workloads.pods[held.uid])
    state.shares.restore(checkpoint.histories)
    state.run_times.restore(checkpoint.run_times)
    cluster.mix.restore(checkpoint.mix, checkpoint.ended)
    state.eviction_counts = EvictionCounts(checkpoint.evictions)
    state.reservations.spared = dict(checkpoint.spared)
    state.reservations.unknown = {root: (until_ms, why) for root, until_ms, why in checkpoint.unknown}
    for room in checkpoint.rooms:
        slots = np.array(sorted(cluster.nodes.slot_of(node) for node in room.nodes), dtype=np.int64)
        state.reservations.restore(
            Reservation(
                room.root,
                room.queue,
                slots,
                room.expected,
                room.made_ms,
                room.planned_ms,
                room.precedence,
                room.guaranteed,
                frozenset(room.waits_for),
                frozenset(room.evicting),
                tuple((uid, cluster.nodes.slot_of(node)) for uid, node in room.nominated),
                room.deadline_ms,
                room.failure,
                room.moving,
            )
        )
        for uid, _ in room.nominated:
            cluster.nominated.pop(uid, None)
    for one in checkpoint.headrooms:
        places = tuple([tuple([cluster.nodes.slot_of(node) for node in place]) for place in one.nodes])
        state.headrooms.rooms[one.room.key] = replace(one.room, places=places)
    state.headrooms.again_ms, state.headrooms.changed = checkpoint.headroom_again_ms, checkpoint.headroom_changed
    state.headrooms.in_vain = set(checkpoint.headroom_in_vain)
    state.lending.renew(state.budgets.values())
    cluster.spares.settle(state.promised_slots())
    if checkpoint.marks is not None:
        waiting_marks.restore(state, checkpoint.marks)
    return state


def _restore_lives(state: State, checkpoint: Checkpoint) -> None:
    """Forget what the events of the checkpoint led to: gangs are in the states that they had."""
    state.workloads.lives = lives = GangLives()
    for gang_id in checkpoint.started:
        lives.restore(gang_id, GangState.STARTED)
    for gang_id, due_ms in checkpoint.starting:
        lives.restore(gang_id, GangState.STARTING, due_ms)
    for gang_id, since_ms in checkpoint.broken:
        lives.restore(gang_id, GangState.BROKEN, since_ms + state.policy.broken_deadline_ms)


def _known(state: State) -> Iterator[ev.Event]:
    cluster, roster = state.cluster, state.workloads
    yield from (ev.NamespaceChanged(namespace) for namespace in cluster.peers.namespaces())
    yield from (ev.StorageClassChanged(storage_class) for storage_class in cluster.volumes.classes.values())
    yield from (ev.VolumeChanged(volume) for volume in cluster.volumes.volumes.values())
    yield from (ev.VolumeClaimChanged(claim) for claim in cluster.volumes.claims.values())
    if cluster.link_speeds.record is not None:
        yield ev.FabricChanged(cluster.link_speeds.record)
    yield from (ev.DeviceClassChanged(device_class) for device_class in cluster.claims.classes.values())
    yield from (ev.SliceChanged(one) for one in cluster.claims.slices.values())
    yield from (ev.ClaimChanged(claim) for claim in cluster.claims.claims.values())
    yield from (ev.QueueChanged(queue) for queue in state.shares.read_queues())
    yield from (ev.BudgetChanged(budget) for budget in state.budgets.values())
    yield from (ev.NodeChanged(node) for node in cluster.nodes.records if node is not None)
    yield from (ev.GangChanged(gang) for gang in roster.gangs.values())
    yield from (ev.PodChanged(pod) for pod in roster.pods.values())
