# SPDX-License-Identifier: Apache-2.0
"""Small clusters for the pages, and a board over one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import ClientSession

from dovetail.aggregated.question import BadQuestion, Reply
from dovetail.core.cycle import enter
from dovetail.core.json_text import decode_json
from dovetail.core.policy import Policy, unhurried
from dovetail.core.state import State
from dovetail.dashboard.access import Accesses, OwnAccess
from dovetail.dashboard.app import SchedulerSources
from dovetail.dashboard.board import PageBoard
from dovetail.dashboard.copied_cluster import question_of
from dovetail.dashboard.serve import bound, serving
from dovetail.dashboard.sources import PredictingSource, SourceAway
from dovetail.kube.manifests.cluster import of_documents
from dovetail.kube.manifests.documents import Document
from dovetail.kube.objects.views import ViewDocument
from dovetail.kube.reading.views import NoSuchObject, ViewRequest
from dovetail.viewserver.answers import ViewAnswers

NOW_MS = 1_800_000_000_000
Object = dict[str, Any]


def node(name: str, gpus: int = 8, **labels: str) -> Object:
    """A Node of so many H100; of a label `__` is a slash, of its key the domain is dovetail.dev."""
    amounts = {"cpu": "96", "memory": "1Ti", "pods": "110", "nvidia.com/gpu": str(gpus)}
    own = {f"dovetail.dev/{key}": value for key, value in labels.items()}
    return {
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "labels": {"nvidia.com/gpu.product": "H100", "kubernetes.io/hostname": name} | own},
        "status": {
            "capacity": amounts, "allocatable": amounts,
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
        },
    }  # fmt: skip


def pod(
    name: str, gpus: int = 1, namespace: str = "team-a", on: str = "", queue: str = "", **annotations: str
) -> Object:
    """A Pod of ours, bound where `on` names a node."""
    return {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": name, "namespace": namespace, "uid": f"uid-{namespace}-{name}", "annotations": annotations,
            "labels": {"dovetail.dev/queue": queue} if queue else {},
            "creationTimestamp": "2027-01-15T07:00:00Z",
        },
        "spec": {
            "schedulerName": "dovetail", **({"nodeName": on} if on else {}),
            "containers": [{"name": "main", "image": "x", "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}],
        },
        "status": {"phase": "Running" if on else "Pending"},
    }  # fmt: skip


def answers_of(*objects: Object, now_ms: int = NOW_MS) -> ViewAnswers:
    """What answers views of these objects."""
    found = of_documents([Document("test", one) for one in objects], "dovetail")
    assert not found.problems, found.problems
    state = State(unhurried(Policy()))
    enter(state, found.events, now_ms)
    return ViewAnswers(state, now_ms, "dovetail")


class FakeSource:
    """Answers from `answers`, keeps what it is asked, and is away while `why` is set. It fails for resources in
    `without`."""

    name = "https://cluster.example"

    def __init__(self, *objects: Object) -> None:
        self.changed = asyncio.Event()
        self.asked: list[ViewRequest] = []
        self.predicted: list[tuple[ViewRequest, str]] = []
        self.why = ""
        self.without: set[str] = set()
        self.steps = 0
        self.put(*objects)

    def put(self, *objects: Object) -> None:
        """From now on the cluster has these objects."""
        self.answers = answers_of(*objects)
        self.steps += 1
        self.changed.set()

    async def moment(self, namespace: str) -> str:
        if self.why:
            raise SourceAway(self.why)
        return str(self.steps)

    async def ask(self, request: ViewRequest) -> ViewDocument:
        if self.why:
            raise SourceAway(self.why)
        if request.resource.plural in self.without:
            raise RuntimeError(request.resource.plural)
        self.asked.append(request)
        reply: Reply = self.answers.answer(question_of(request))
        if reply.status != 200:
            raise NoSuchObject(reply.body.decode())
        return decode_json(reply.body, ViewDocument)

    async def predict(self, request: ViewRequest, authorization: str) -> ViewDocument:
        self.predicted.append((request, authorization))
        reply: Reply = self.answers.answer(question_of(request))
        if reply.status != 200:
            raise BadQuestion(400, reply.body.decode())
        return decode_json(reply.body, ViewDocument)


@asynccontextmanager
async def served(
    source: PredictingSource,
    accesses: Accesses | None = None,
    fabric: tuple[str, ...] = ("dovetail.dev/rack",),
    scheduler: SchedulerSources = SchedulerSources(),  # noqa: B008
) -> AsyncIterator[tuple[ClientSession, PageBoard]]:
    """A client of the pages, and their board."""
    board, listening = PageBoard(source, fabric, lambda: NOW_MS), bound("127.0.0.1:0")
    url = f"http://127.0.0.1:{listening.getsockname()[1]}/"
    async with serving(board, accesses or OwnAccess(), listening, scheduler), ClientSession(url) as client:
        yield client, board
