# SPDX-License-Identifier: Apache-2.0
"""Moves that make room for a job or a shape: the core's own plan (`preemption.defragmentation`), for people. A dry run.

Rules: nothing is moved. Whoever carries a plan out evicts the pods of one step after another; their owners make them
anew, and the scheduler places them. So a pod without a controller can be moved by nobody but who made it: it is told.
Queues are not asked: whether a job may have the room is another question than where it could be. A shape is asked for
as in `shape`, of each model apart; what loses least is taken. Of a gang that has started each pod that is missing is
planned for by itself: told is the first that does not fit. Lost work is in GPU-minutes, as it is charged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import Struct
from msgspec.structs import replace

from dovetail.core.model import GPU
from dovetail.core.pipeline.pre_enqueue import beyond, blocked
from dovetail.core.placing.gangs import Group
from dovetail.core.preemption.defragmentation import Move, MovePlan, NoPlan, plan
from dovetail.core.reasons import Reason
from dovetail.core.state import State
from dovetail.core.workloads.index import complete
from dovetail.views.forecast import ForecastPlace
from dovetail.views.jobs import JobNotFound, JobView, find_jobs, name_of, not_waiting
from dovetail.views.probe import Beside, Probe
from dovetail.views.shape import ShapeView, models_of

_MILLI_MS_PER_MINUTE = 60_000_000


class PodMove(Struct, frozen=True):
    """`gpus` are the indices of those that are free for it on `target` by then; none where they are only counted."""

    pod: str
    source: str
    target: str
    gpus: tuple[int, ...]


class MoveStepView(Struct, frozen=True):
    """Pods of `job` that move at the same time. `lost_gpu_minutes` is the work that has to be done again."""

    job: str
    queue: str
    moves: tuple[PodMove, ...]
    lost_gpu_minutes: float


class Defrag(Struct, frozen=True):
    """Room for `job` ("" where a `shape` was asked for). `room` is whether there is some after the `steps`, which are
    none where it fits as it is. `places` are where its pods would go then. Else `why` says why there is no plan, and
    `proven` that no moves can help. `notes` say what the plan leaves to whoever carries it out."""

    job: str
    shape: ShapeView | None
    room: bool
    steps: tuple[MoveStepView, ...]
    lost_gpu_minutes: float
    places: tuple[ForecastPlace, ...]
    why: str
    proven: bool
    notes: tuple[str, ...]


def for_job(state: State, key: str) -> Defrag:
    """Raises NotFound where the job "namespace/name" does not exist or does not wait."""
    job = find_jobs(state, key)[0]
    if not job.waiting:
        raise JobNotFound(f"{job.name} does not wait: {not_waiting(job)}")
    refusal = blocked(state, job.workload, job.queue, job.waiting, state.workloads.distinct(job.waiting))
    groups: list[Group] = []
    if refusal is None:
        groups = [group for group in state.workloads.groups(job.workload) if complete(group)]
    found: MovePlan | NoPlan = NoPlan(str(refusal or Reason.GANG_INCOMPLETE.text), proven=True)
    for group in groups:
        found = plan(state, group, job.workload)
        if isinstance(found, NoPlan) or found.steps:
            break
    names = {pod.uid: pod.key for pod in job.pods}
    return _told(state, job.name, None, found, names, *_beside_room(state, job))


def _beside_room(state: State, job: JobView) -> Iterator[str]:
    """What keeps a job waiting although there is room."""
    fixed = not all(map(state.shares.preemptible, job.waiting))
    refusal = None
    if job.queue in state.shares.tree.queues:
        refusal = beyond(state, job.workload, job.queue, state.shares.wanted_next(job.workload), fixed)
    if refusal is not None:
        yield f"room is not all that it waits for: {refusal}"
    if ahead := state.queue.before(job.workload):
        which = "a job before it" if ahead == 1 else f"{ahead} jobs before it"
        yield f"{which} in the line may take the room: dovetail priority {job.name}"


def for_shape(state: State, shape: ShapeView, beside: Beside) -> Defrag:
    """Raises ShapeError where no node has GPUs of the model."""
    ask = Probe(state, beside)
    best: MovePlan | None = None
    none: list[NoPlan] = []
    for model, _ in models_of(ask, shape):
        found = plan(state, _gang(ask, shape, model))
        if isinstance(found, NoPlan):
            none.append(found)
        elif best is None or (found.lost_milli_ms, len(found.steps)) < (best.lost_milli_ms, len(best.steps)):
            best = found
    why = "; ".join(dict.fromkeys(one.why for one in none))
    names = {f"{i}": f"pod {i + 1}" for i in range(shape.pods)}
    others = ("those who wait may take the room before anybody comes for it",) if state.queue.workloads() else ()
    return _told(state, "", shape, best or NoPlan(why, all(one.proven for one in none)), names, *others)


def _gang(ask: Probe, shape: ShapeView, model: str | None) -> Group:
    pod = ask.pod(model, shape.gpus, (GPU, shape.gpus))
    return Group(pods=[replace(pod, uid=f"{i}") for i in range(shape.pods)], missing=shape.pods)


def _told(
    state: State, job: str, shape: ShapeView | None, found: MovePlan | NoPlan, names: Mapping[str, str], *notes: str
) -> Defrag:
    """`names` are those of the pods that get room, by uid."""
    if isinstance(found, NoPlan):
        return Defrag(job, shape, False, (), 0.0, (), found.why, found.proven, ())
    index, queue_of = state.workloads, state.shares.queue_of
    steps = tuple(
        MoveStepView(
            name_of(state, step.workload),
            queue_of(index.pods[step.moves[0].uid]),
            tuple(PodMove(index.pods[one.uid].key, one.source, one.target, _known(state, one)) for one in step.moves),
            _minutes(step.lost_milli_ms),
        )
        for step in found.steps
    )
    places = tuple(ForecastPlace(names[uid], node) for uid, node in found.placed)
    notes = (*_without_owner(state, found), *notes) if steps else notes
    return Defrag(job, shape, True, steps, _minutes(found.lost_milli_ms), places, "", False, notes)


def _known(state: State, move: Move) -> tuple[int, ...]:
    """Its GPUs, where anybody can know which ones it gets."""
    nodes = state.cluster.nodes
    return move.devices if nodes.layout(nodes.slots[move.target]) is not None else ()


def _without_owner(state: State, found: MovePlan) -> Iterator[str]:
    for step in found.steps:
        for move in step.moves:
            pod = state.workloads.pods[move.uid]
            if not pod.owner:
                yield f"{pod.key} has no controller: whoever made it has to make it anew"


def _minutes(milli_ms: int) -> float:
    return round(milli_ms / _MILLI_MS_PER_MINUTE, 1)
