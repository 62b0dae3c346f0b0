# SPDX-License-Identifier: Apache-2.0
"""Moves that make room for a job or a shape: the core's own plan (`preemption.defragmentation`) as an answer.

Rules
- It is a dry run: nothing is moved. To carry out a plan, an operator evicts the pods of one step after another; their
  controllers create them again, and the scheduler binds these. A note names each pod without a controller.
- The quota of queues is not checked for the room; notes report what else keeps the job waiting.
- For a shape, a plan is made for each model, as in `shape`; the plan that loses least work is the answer.
- For a gang that has started, each missing pod is planned by itself; the first that does not fit is the answer.
- Lost work is in GPU-minutes, as it is charged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec.structs import replace

from dovetail.core.model import GPU
from dovetail.core.pipeline.pre_enqueue import beyond, blocked
from dovetail.core.placing.gangs import Group
from dovetail.core.preemption.defragmentation import MovePlan, NoPlan, plan
from dovetail.core.preemption.relocation import Move
from dovetail.core.reasons import Reason
from dovetail.core.state import State
from dovetail.core.workloads.index import complete
from dovetail.views.defrag_types import Defrag, DefragQuestion, MoveStepView, PodMove
from dovetail.views.forecast_types import ForecastPlace
from dovetail.views.free_types import Beside
from dovetail.views.job_types import JobView
from dovetail.views.jobs import find_jobs, name_of, not_waiting
from dovetail.views.names import JobNotFound
from dovetail.views.probe import Probe
from dovetail.views.shape import models_of
from dovetail.views.shape_types import ShapeView, parse

_MILLI_MS_PER_MINUTE = 60_000_000


def defrag(state: State, asked: DefragQuestion) -> Defrag:
    """The plan; the state is changed. Raises JobNotFound and ShapeError."""
    if asked.job:
        return for_job(state, asked.job)
    return for_shape(state, parse(asked.shape), Beside(asked.cpu_milli, asked.memory_bytes))


def for_job(state: State, key: str) -> Defrag:
    """The plan for the job "namespace/name". Raises JobNotFound if it does not exist or does not wait."""
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
    return _answer(state, job.name, None, found, names, *_other_obstacles(state, job))


def _other_obstacles(state: State, job: JobView) -> Iterator[str]:
    """Notes on what else than room keeps a job waiting."""
    fixed = not all(map(state.shares.pod_queues.preemptible, job.waiting))
    refusal = None
    if job.queue in state.shares.tree.queues:
        refusal = beyond(state, job.workload, job.queue, state.shares.wanted_next(job.workload), fixed)
    if refusal is not None:
        yield f"the job also waits for its queue: {refusal}"
    if ahead := state.queue.before(job.workload):
        which = "a job" if ahead == 1 else f"{ahead} jobs"
        yield f"{which} before it in queue order may take the room: dovetail priority {job.name}"


def for_shape(state: State, shape: ShapeView, beside: Beside) -> Defrag:
    """The plan for a shape. Raises ShapeError if no node has GPUs of the model."""
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
    others = ("waiting jobs may take the room first",) if state.queue.workloads() else ()
    return _answer(state, "", shape, best or NoPlan(why, all(one.proven for one in none)), names, *others)


def _gang(ask: Probe, shape: ShapeView, model: str | None) -> Group:
    pod = ask.pod(model, shape.gpus, (GPU, shape.gpus))
    return Group(pods=[replace(pod, uid=f"{i}") for i in range(shape.pods)], missing=shape.pods)


def _answer(
    state: State, job: str, shape: ShapeView | None, found: MovePlan | NoPlan, names: Mapping[str, str], *notes: str
) -> Defrag:
    """The answer for a plan. `names` are the names of the pods that get room, by uid."""
    if isinstance(found, NoPlan):
        return Defrag(job, shape, False, (), 0.0, (), found.why, found.proven, ())
    index, queue_of = state.workloads, state.shares.pod_queues.of
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
    """The GPUs that the pod gets on the target; empty if the wiring of that node is not known."""
    nodes = state.cluster.nodes
    return move.devices if nodes.layout(nodes.slots[move.target]) is not None else ()


def _without_owner(state: State, found: MovePlan) -> Iterator[str]:
    for step in found.steps:
        for move in step.moves:
            pod = state.workloads.pods[move.uid]
            if not pod.owner:
                yield f"{pod.key} has no controller: create it again by hand after its eviction"


def _minutes(milli_ms: int) -> float:
    return round(milli_ms / _MILLI_MS_PER_MINUTE, 1)
