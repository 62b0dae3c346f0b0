# SPDX-License-Identifier: Apache-2.0
"""What viewers have done: a node drained, the owner of an idle job notified, a job suspended. Only where that is
switched on.

Rules
- Every request to the cluster has the token of the viewer; on the machine of a user the identity of the kubeconfig.
  The account of the dashboard in a cluster never acts: there our configuration has no identity at all (`viewers`).
- An action is a dry run, until it has a confirmation, which a dry run gives. The dry run is the plan of the scheduler,
  and the API server checks the same change and stores nothing (dryRun=All), so a missing right is known before. What is
  done is done to what the dry run saw: not to another job of that name, nor to another maintenance.
- What a dry run shows needs the rights that the pages with the same need (`needed_for`).
- What is done is the code of the commands: `kube.maintenances` of `dovetail drain`, `jobs.notices` of `dovetail idle
  --notify`, `jobs.suspending`, whose undo is `dovetail release`.
- Which rights a viewer has is asked by SelfSubjectAccessReview. That decides what is offered; the API server decides
  again what is done.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dovetail.aggregated.question import BadQuestion
from dovetail.aggregated.turns import Turns
from dovetail.core.json_text import JsonError, decode_json
from dovetail.cost.idle_notes import idle_note
from dovetail.cost.idle_pods import IdleList
from dovetail.dashboard.access import Right, lists
from dovetail.dashboard.action_records import ActionRecord, log, write_record
from dovetail.dashboard.action_types import (
    Action,
    ActionDone,
    ActionPreview,
    AskedAction,
    DrainNode,
    NotifyOwner,
    SuspendJob,
    UndrainNode,
)
from dovetail.dashboard.board import PageBoard
from dovetail.dashboard.confirmations import Confirmations
from dovetail.dashboard.past_pages import NEEDED, idle_question
from dovetail.dashboard.sources import SourceAway
from dovetail.dashboard.viewers import Viewers, user_of
from dovetail.jobs.changes import NotDone
from dovetail.jobs.cluster import JobCluster
from dovetail.jobs.finding import JobUnknown, NamedJob
from dovetail.jobs.kinds import kind_of, text_at
from dovetail.jobs.notices import Notice, write
from dovetail.kube.api.client import Client
from dovetail.kube.api.config import ClusterConfig
from dovetail.kube.api.errors import ApiError, Forbidden, KubeError, Unauthorized
from dovetail.kube.api.resources import NODES
from dovetail.kube.api.rights import missing_right
from dovetail.kube.maintenances import MaintenanceRequest, begin_maintenance, end_maintenance, read_maintenances
from dovetail.kube.objects.views import DRAIN_PLANS, JOB_LISTS
from dovetail.kube.reading.views import NoSuchObject, ViewRequest
from dovetail.views.drain_types import DrainPlan, DrainQuestion
from dovetail.views.job_types import JobFilter, JobList

MOST_BYTES = 4096
A_MINUTE, MOST_WAITING, AT_ONCE = 30, 16, 8
_MODES = {
    "WaitForJobs": "Pods that run there run to their end.",
    "WaitForCheckpoint": "Pods that have saved their work are moved, with room held elsewhere.",
    "Evict": "Pods that run there are evicted at once.",
}
_SHOWN = 12


class Asker(Struct, frozen=True):
    """A viewer, by the Authorization header of the request, the namespace that the pages show ("": all), and how the
    API server is reached as this viewer, whose name there is `user`."""

    authorization: str
    namespace: str
    config: ClusterConfig
    user: str


class _DryRun(Struct, frozen=True):
    """What it shows, and which object it saw, as a text that another one does not have ("": any of that name)."""

    preview: ActionPreview
    saw: str = ""


def asked_action(body: bytes) -> AskedAction:
    """Raises BadQuestion."""
    try:
        return decode_json(body, AskedAction)
    except JsonError as error:
        raise BadQuestion(400, str(error)) from error


def needed_for(action: Action) -> tuple[Right, ...]:
    """The rights to see what its dry run shows, besides that to see the pages."""
    match action:
        case DrainNode():
            return (Right("create", DRAIN_PLANS),)
        case NotifyOwner():
            return lists(NEEDED["idle"])
    return ()


class Actions:
    """Of the cluster behind the viewers; `board` has what answers."""

    def __init__(self, viewers: Viewers, board: PageBoard, clock_ms: Callable[[], int]) -> None:
        self.viewers = viewers
        self._board = board
        self._clock_ms = clock_ms
        self._confirmations = Confirmations()
        self._turns = Turns("action", A_MINUTE, MOST_WAITING, at_once=AT_ONCE)

    async def answer(self, asked: AskedAction, namespace: str, authorization: str) -> ActionPreview | ActionDone:
        """Make a dry run of an action, or do it if it is confirmed. The viewer may see `namespace` ("": all) and has
        the rights that are `needed_for` the action. Raises BadQuestion."""
        action = asked.action
        if namespace and isinstance(action, NotifyOwner | SuspendJob) and action.namespace != namespace:
            raise BadQuestion(403, "the job is in another namespace than the one that is shown")
        form, saw = msgspec.json.encode(action), None
        if asked.confirmation:
            saw = self._confirmations.seen_by(asked.confirmation, form, authorization, self._clock_ms())
            if saw is None:
                raise BadQuestion(409, "this was not confirmed, or too late: look at the dry run again")

        async def acted() -> ActionPreview | ActionDone:
            config = self.viewers.config(authorization)
            try:
                asker = Asker(authorization, namespace, config, await user_of(config))
                found = await self._acted(action, asker, saw)
            except (JobUnknown, NotDone, NoSuchObject) as error:
                raise BadQuestion(409, str(error)) from error
            except Unauthorized as error:
                raise BadQuestion(401, str(error)) from error
            except Forbidden as error:
                raise BadQuestion(403, missing_right(error)) from error
            except (KubeError, SourceAway) as error:
                status = 503 if isinstance(error, ApiError | SourceAway) else 409
                raise BadQuestion(status, str(error)) from error
            if isinstance(found, ActionDone):
                return found
            confirmation, until_ms = self._confirmations.made(form, found.saw, authorization, self._clock_ms())
            return replace(found.preview, confirmation=confirmation, valid_until_ms=until_ms)

        return await self._turns.take(authorization, acted)

    async def _acted(self, action: Action, asker: Asker, saw: str | None) -> _DryRun | ActionDone:
        """`saw`: what the dry run saw that is confirmed; None for a dry run."""
        match action:
            case DrainNode():
                return await self._drain(action, asker, dry_run=saw is None)
            case UndrainNode():
                return await self._end(action, asker, saw)
            case NotifyOwner():
                return await self._notify(action, asker, dry_run=saw is None)
            case SuspendJob():
                return await self._suspend(action, asker, saw)

    async def _drain(self, action: DrainNode, asker: Asker, *, dry_run: bool) -> _DryRun | ActionDone:
        question = DrainQuestion((action.node,), action.mode)
        asked = MaintenanceRequest(f"user/{asker.user}"[:253], action.reason, question.maintenance(self._clock_ms()))
        if dry_run:
            body = msgspec.json.encode(question)
            request = ViewRequest(DRAIN_PLANS, asker.namespace, body=body, alone=bool(asker.namespace))
            found = await self._board.source.predict(request, asker.authorization)
            plan = decode_json(found.answer, DrainPlan)
            await begin_maintenance(asker.config, (action.node,), asked, dry_run=True)
            return _preview(
                asker.user, f"Drain {action.node}",
                ("No pod starts there that would still run when the node has to be empty.", _MODES[action.mode]),
                plan=plan,
            )  # fmt: skip
        await begin_maintenance(asker.config, (action.node,), asked)
        why = f": {action.reason}" if action.reason else ""
        note = f"{asker.user} put node {action.node} into maintenance on a web page ({action.mode}){why}"
        return await self._recorded(asker, _of_node(action.node, "MaintenanceBegun", "Draining", note))

    async def _end(self, action: UndrainNode, asker: Asker, saw: str | None) -> _DryRun | ActionDone:
        found = (await read_maintenances(asker.config, (action.node,)))[action.node]
        if found is None:
            raise NotDone(f"{action.node} is not in maintenance")
        sees = f"{found.by} {found.maintenance.requested_ms} {found.maintenance.drain}"
        if saw not in (None, sees):
            raise NotDone(f"{action.node} is in another maintenance by now: look at the dry run again")
        await end_maintenance(asker.config, (action.node,), dry_run=saw is None)
        if saw is None:
            why = f": {found.reason}" if found.reason else ""
            ended = f"The maintenance by {found.by or 'somebody'}{why} ({found.maintenance.drain}) ends."
            return _preview(asker.user, f"Use {action.node} again", (ended, "Pods start there again."), sees)
        note = f"{asker.user} ended the maintenance of node {action.node}, on a web page"
        return await self._recorded(asker, _of_node(action.node, "MaintenanceEnded", "Draining", note))

    async def _notify(self, action: NotifyOwner, asker: Asker, *, dry_run: bool) -> _DryRun | ActionDone:
        job = f"{action.namespace}/{action.job}"
        resource, query = idle_question()
        request = ViewRequest(resource, asker.namespace, query=query, alone=bool(asker.namespace))
        answer = decode_json((await self._board.past.ask(request)).answer, IdleList)
        notes = {row: idle_note(row, answer) for row in answer.pods if row.job == job}
        if not notes:
            raise NotDone(f"no pod of {job} has left a GPU idle for an hour or longer")
        if dry_run:
            lines = [f"{row.pod}: {note}" for row, note in notes.items()]
            more = (f"and {len(lines) - _SHOWN} pods more",) if len(lines) > _SHOWN else ()
            effects = ("An event for its owner is written on each idle pod; nothing else is changed.",)
            return _preview(asker.user, f"Notify the owner of {job}", (*effects, *lines[:_SHOWN], *more))
        notices = [Notice(row.pod, row.uid, row.since, note) for row, note in notes.items()]
        done = await write(asker.config, notices, datetime.fromtimestamp(self._clock_ms() / 1000, UTC))
        had = f", {len(done.there)} had theirs" if done.there else ""
        text = f"notified the owner of {job}: {len(done.written)} events written{had}"
        if done.written or not done.refused:
            log(asker.user, text)
        if done.refused:
            pod, why = done.refused[0]
            raise BadQuestion(403, f"{len(done.written)} events were written; none on {pod}: {why}")
        return ActionDone(asker.user, text, "the events on the pods, and the log of the dashboard")

    async def _suspend(self, action: SuspendJob, asker: Asker, saw: str | None) -> _DryRun | ActionDone:
        kind = kind_of(action.group, action.kind)
        if kind is None:
            raise NotDone(f"a {action.kind} of {action.group} is not suspended here: its kind is not known")
        async with JobCluster(asker.config) as cluster:
            job = await cluster.object(action.namespace, action.job, kind)
            uid = text_at(job.document, "metadata.uid") if job.document is not None else ""
            if saw not in (None, uid):
                raise NotDone(f"{job.title} is another one than that of the dry run: look at the dry run again")
            await cluster.suspend(job, dry_run=saw is None)
        if saw is None:
            lost = await self._lost(f"{action.namespace}/{action.job}", action.kind, asker)
            running = sum(pod.state in ("starts", "runs") for pod in job.pods)
            effects = (
                f"Its controller deletes its {len(job.pods)} pods, of which {running} run.", lost, _undo(job),
            )  # fmt: skip
            return _preview(asker.user, f"Suspend {job.title}", effects, uid)
        assert job.kind is not None
        record = ActionRecord(
            job.kind.resource, job.namespace, job.name, uid, "JobSuspended", "Suspending",
            f"{asker.user} suspended {job.title}, on a web page. {_undo(job)}",
        )  # fmt: skip
        return await self._recorded(asker, record)

    async def _lost(self, name: str, kind: str, asker: Asker) -> str:
        namespace, _, short = name.partition("/")
        query = {"filter": msgspec.json.encode(JobFilter(names=(short,), namespace=namespace)).decode()}
        query["mostAhead"] = "0"
        request = ViewRequest(JOB_LISTS, asker.namespace, query=query, alone=bool(asker.namespace))
        with suppress(NoSuchObject):
            found = decode_json((await self._board.source.ask(request)).answer, JobList)
            for row in found.jobs:
                if (row.job, row.kind) == (name, kind):
                    return f"Work of {row.lost_gpu_minutes} GPU-minutes since it started, or was last saved, is lost."
        return "Which work is lost is not known: the scheduler does not know this job."

    async def _recorded(self, asker: Asker, record: ActionRecord) -> ActionDone:
        log(asker.user, record.note)
        async with Client(asker.config, user_agent="dovetail-dashboard") as client:
            where = await write_record(client, record, self._clock_ms())
        return ActionDone(asker.user, record.note, where)


def _undo(job: NamedJob) -> str:
    kind = job.kind.name if job.kind is not None else ""
    return f"To undo it: dovetail release {kind}/{job.namespace}/{job.name}"


def _preview(
    user: str, title: str, effects: tuple[str, ...], saw: str = "", plan: DrainPlan | None = None
) -> _DryRun:  # fmt: skip
    return _DryRun(ActionPreview(user, title, effects, plan, "", 0), saw)


def _of_node(node: str, reason: str, action: str, note: str) -> ActionRecord:
    return ActionRecord(NODES, "", node, "", reason, action, note)
