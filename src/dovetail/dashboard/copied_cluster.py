# SPDX-License-Identifier: Apache-2.0
"""Our own copy of a cluster, for where the running scheduler does not answer: a playground, files, an older Dovetail.

Rules
- The copy is followed by watches, so a change is there at once, and a viewer costs the API server nothing.
- The answers are those of the view server (`viewserver.answers`), redacted in the same way.
- One thread works on the copy, so that the streams of viewers go on meanwhile. What has changed is handed to it by a
  queue, and counts from the next answer on.
- Predictions take turns, as those of the running scheduler: a viewer asks one at a time, and A_MINUTE in a minute. The
  other answers wait for them.
- Times in answers are at most REFRESHED_S old.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

from dovetail.aggregated.question import BadQuestion, Question, Reply
from dovetail.aggregated.turns import Turns
from dovetail.core.bargaining import broker
from dovetail.core.checkpoint import restore, take
from dovetail.core.cycle import apply_events, enter
from dovetail.core.events import Event
from dovetail.core.json_text import decode_json
from dovetail.core.policy import Policy
from dovetail.core.state import State
from dovetail.dashboard.sources import SourceAway
from dovetail.kube.api.changes import Change
from dovetail.kube.api.client import Client
from dovetail.kube.api.config import ClusterConfig
from dovetail.kube.api.discovery import discover_when_up
from dovetail.kube.api.resources import CONTROL_PLANES, GPU_LEASES, GPU_NODES, LEASE_REQUESTS, Resource
from dovetail.kube.informers import Informers
from dovetail.kube.objects.views import ViewDocument
from dovetail.kube.reading.live_cluster import LiveCluster
from dovetail.kube.reading.views import NoSuchObject, ViewRequest
from dovetail.kube.translate.reported import ReportedObjects, batch_of, notes_batch, of_interest
from dovetail.kube.translate.translator import Translator
from dovetail.viewserver.answers import ViewAnswers

REFRESHED_S = 30.0
TOGETHER_S = 0.1
"""Changes of so long are taken together."""
A_MINUTE, MOST_WAITING = 10, 16
_NOTED = ("Node ", "Pod ")
_log = logging.getLogger(__name__)


class CopiedCluster:
    """A copy, empty until something is put into it. `ours` is the scheduler's name. `at_ms` is the time of a cluster
    that stands still, 0 for one that goes on."""

    def __init__(self, name: str, policy: Policy, ours: str, at_ms: int = 0) -> None:
        self.name = name
        self.changed = asyncio.Event()
        self.unread = "the cluster is not read yet"
        """Why nothing is answered; "" once the cluster was read."""
        self._policy = policy
        self._ours = ours
        self._at_ms = at_ms
        self._copy = State(policy)
        self._objects = ReportedObjects(ours)
        self._news: SimpleQueue[tuple[Sequence[Event], Sequence[bytes]]] = SimpleQueue()
        self._changes = 0
        self._answered: tuple[int, ViewAnswers] | None = None
        self._turns = Turns("prediction", A_MINUTE, MOST_WAITING)
        self._thread = ThreadPoolExecutor(1, "copied-cluster")

    def put(self, events: Sequence[Event], reported: Sequence[bytes] = ()) -> None:
        """What has happened: events of the core, and batches of objects that views show besides."""
        self.unread = ""
        self._news.put((events, reported))
        self._changes += 1
        self.changed.set()

    def put_read(self, cluster: LiveCluster) -> None:
        """A cluster that was read once, and stands still at `at_ms`."""
        feed, leased = cluster.feed, cluster.feed.leases.objects
        nodes = filter(None, map(feed.node_records.gpu_node, cluster.state.cluster.nodes.slots))
        kinds: tuple[tuple[Resource, Iterable[Any]], ...] = (
            (CONTROL_PLANES, leased.planes), (LEASE_REQUESTS, leased.requests), (GPU_LEASES, leased.leases),
            (GPU_NODES, nodes),
        )  # fmt: skip
        for resource, made in kinds:
            self._objects.take(batch_of(resource, [Change("added", one) for one in made]))
        self._objects.take(notes_batch((about, feed.notes(about)) for about in feed.noted()))
        self._answered = self._period(), ViewAnswers(cluster.state, self._at_ms, self._ours, self._objects)
        self.unread = ""

    def put_state(self, state: State) -> None:
        """A state of a scheduler that stands still at `at_ms`."""
        self._answered = self._period(), ViewAnswers(state, self._at_ms, self._ours, self._objects)
        self.unread = ""

    async def moment(self, namespace: str) -> str:
        if self.unread:
            raise SourceAway(self.unread)
        return f"{self._changes} {self._period()}"

    async def ask(self, request: ViewRequest) -> ViewDocument:
        if self.unread:
            raise SourceAway(self.unread)
        reply = await asyncio.get_running_loop().run_in_executor(self._thread, self._reply, question_of(request))
        if reply.status == 200:
            return decode_json(reply.body, ViewDocument)
        message = reply.body.decode()
        raise SourceAway(message) if reply.status == 503 else NoSuchObject(message)

    async def predict(self, request: ViewRequest, authorization: str) -> ViewDocument:
        if self.unread:
            raise BadQuestion(503, self.unread)
        question = question_of(request)

        async def worked_out() -> Reply:
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._reply, question)

        reply = await self._turns.take(authorization, worked_out)
        if reply.status != 200:
            raise BadQuestion(reply.status, reply.body.decode())
        return decode_json(reply.body, ViewDocument)

    def _period(self) -> int:
        return 0 if self._at_ms else int(time.monotonic() / REFRESHED_S)

    def _reply(self, question: Question) -> Reply:
        """In the thread alone."""
        now_ms, period = self._at_ms or time.time_ns() // 1_000_000, self._period()
        news = self._answered is None or self._answered[0] != period
        while not self._news.empty():
            events, batches = self._news.get()
            apply_events(self._copy, events, now_ms)
            for batch in batches:
                self._objects.take(batch)
            news = True
        if news:
            state = self._copy
            if broker.active(state):
                # What enters a state is dropped with it, and the copy stays as it was read.
                state = restore(self._policy, take(state))
            enter(state, (), now_ms)
            self._answered = period, ViewAnswers(state, now_ms, self._ours, self._objects)
        assert self._answered is not None
        return self._answered[1].answer(question)


def question_of(request: ViewRequest) -> Question:
    """As the API server would pass it on."""
    whole = not request.alone
    name = f"{request.namespace}:{request.name}" if whole and request.name else request.name
    query = tuple(sorted(request.query.items()))
    return Question(request.resource.plural, "" if whole else request.namespace, name, query, request.body.decode())


async def follow(copy: CopiedCluster, config: ClusterConfig, ours: str) -> None:
    """Keep the copy up to date until cancelled. Raises KubeError where the API server refuses to be read."""
    feed = Translator(ours)
    batches: list[bytes] = []
    noted: set[str] = set()

    def seen(resource: Resource, changes: list[Change[Any]]) -> None:
        if found := of_interest(resource, changes, ours):
            batches.append(batch_of(resource, found))
            informers.changed.set()

    async with Client(config, user_agent="dovetail-dashboard") as client:
        informers = Informers(client, await discover_when_up(client, _log), feed)
        informers.seen, feed.on_notes = seen, noted.add
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(informers.run())
            tasks.create_task(_name_unread(copy, informers))
            await informers.synced()
            while True:
                events, taken = await informers.events(0), [*batches]
                batches.clear()
                if found := [(one, feed.notes(one)) for one in noted if one.startswith(_NOTED)]:
                    taken.append(notes_batch(found))
                noted.clear()
                copy.put(events, taken)
                await informers.changed.wait()
                await asyncio.sleep(TOGETHER_S)


async def _name_unread(copy: CopiedCluster, informers: Informers) -> None:
    """Name the lists that are not read yet, until all are."""
    while unread := [str(one.resource) for one in informers.reflectors if not one.synced.is_set()]:
        copy.unread = f"the cluster is not read yet: {', '.join(unread)} (the log has what the API server answered)"
        await asyncio.sleep(1.0)
