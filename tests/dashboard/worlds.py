# SPDX-License-Identifier: Apache-2.0
"""Small clusters for the pages, and a board over one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import ClientSession

from dovetail.aggregated.question import BadQuestion, Reply
from dovetail.core.cycle import enter
from dovetail.core.json_text import decode_json
from dovetail.core.policy import Policy, unhurried
from dovetail.core.state import State
from dovetail.cost.price_sources import PriceSources
from dovetail.dashboard.access import Accesses, OwnAccess
from dovetail.dashboard.actions import Actions
from dovetail.dashboard.app import SchedulerSources
from dovetail.dashboard.board import PageBoard
from dovetail.dashboard.copied_cluster import question_of
from dovetail.dashboard.serve import bound, serving
from dovetail.dashboard.sources import PredictingSource, SourceAway, ViewSource
from dovetail.dashboard.viewers import Viewers
from dovetail.historyserver.server import answered
from dovetail.kube.api.changes import Change
from dovetail.kube.api.resources import GPU_NODES, QUEUES
from dovetail.kube.manifests.cluster import of_documents
from dovetail.kube.manifests.documents import Document
from dovetail.kube.objects.topology import GPUNode
from dovetail.kube.objects.views import ViewDocument, ViewMeta
from dovetail.kube.queue_budgets import QueueBudgetUse, QueueBudgetUses
from dovetail.kube.reading.views import NoSuchObject, ViewRequest
from dovetail.kube.translate.reported import ReportedObjects, batch_of
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


def wiring(name: str, switched: bool = True) -> Object:
    """The GPUNode of a node of 8 GPUs in two NUMA nodes, with NVLinks by switches or between pairs, and four NICs."""
    other = [[0 if a == b else 18 if switched else 12 * (a // 2 == b // 2) for b in range(8)] for a in range(8)]
    levels = [
        ["PIX" if gpu // 2 == nic else "NODE" if gpu // 4 == nic // 2 else "SYS" for gpu in range(8)]
        for nic in range(4)
    ]
    return {
        "apiVersion": "dovetail.dev/v1alpha1", "kind": "GPUNode", "metadata": {"name": name},
        "status": {
            "gpus": [
                {"index": gpu, "uuid": f"GPU-{name}-{gpu}", "product": "H100", "numaNode": gpu // 4, "healthy": True}
                for gpu in range(8)
            ],
            "nvlinks": other,
            "foreignProcesses": [
                {"gpu": 5, "uuid": f"GPU-{name}-5", "pid": 4711, "holder": "other_pod", "namespace": "team-a",
                 "pod": "runs", "memoryMiB": 3072},
                {"uuid": f"GPU-{name}-6", "pid": 815, "holder": "no_pod"},
            ],
            "holderProcesses": [
                {"gpu": 0, "uuid": f"GPU-{name}-0", "pid": 42, "namespace": "team-a", "pod": "runs", "memoryMiB": 1024},
                {"gpu": 1, "uuid": f"GPU-{name}-1", "pid": 43, "namespace": "team-b", "pod": "its", "memoryMiB": 1024},
            ],
            "nics": [
                {"name": f"mlx5_{nic}", "numaNode": nic // 2, "speedMBps": 50_000, "rdma": True, "levels": levels[nic]}
                for nic in range(4)
            ],
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
    reported = ReportedObjects("dovetail")
    gpu_nodes = [msgspec.convert(one, GPUNode) for one in objects if one["kind"] == "GPUNode"]
    reported.take(batch_of(GPU_NODES, [Change("added", one) for one in gpu_nodes]))
    return ViewAnswers(state, now_ms, "dovetail", reported)


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


BUDGETS = QueueBudgetUses(
    NOW_MS, 2,
    (
        QueueBudgetUse(
            "research", "USD", "Month", "Hold", NOW_MS - 14 * 86_400_000, NOW_MS + 16 * 86_400_000, 40_000_000_000,
            31_000_000_000, NOW_MS, 66_000_000_000, NOW_MS + 4 * 86_400_000,
        ),
        QueueBudgetUse("product", "GPU-hours", "Month", "Report", NOW_MS, NOW_MS + 86_400_000, 2_000_000_000),
    ),
)  # fmt: skip
"""What FakePast has of budgets."""


class FakePast:
    """Answers from a file, in this process, and keeps what it is asked."""

    name = "the history of https://cluster.example"

    def __init__(self, store: Path) -> None:
        self.changed = asyncio.Event()
        self.asked: list[ViewRequest] = []
        self._store = store

    async def moment(self, namespace: str) -> str:
        return ""

    async def ask(self, request: ViewRequest) -> ViewDocument:
        self.asked.append(request)
        if request.resource == QUEUES:
            return ViewDocument("v1", "Queue", ViewMeta(""), NOW_MS, 0, "", msgspec.Raw(msgspec.json.encode(BUDGETS)))
        reply = answered(self._store, PriceSources(), question_of(request))
        if reply.status != 200:
            raise NoSuchObject(reply.body.decode())
        return decode_json(reply.body, ViewDocument)


@asynccontextmanager
async def served(
    source: PredictingSource,
    accesses: Accesses | None = None,
    fabric: tuple[str, ...] = ("dovetail.dev/rack",),
    past: ViewSource | None = None,
    scheduler: SchedulerSources = SchedulerSources(),  # noqa: B008
    viewers: Viewers | None = None,
) -> AsyncIterator[tuple[ClientSession, PageBoard]]:
    """A client of the pages, and their board. With `viewers` these may act."""
    board, listening = PageBoard(source, fabric, lambda: NOW_MS, past), bound("127.0.0.1:0")
    url = f"http://127.0.0.1:{listening.getsockname()[1]}/"
    actions = Actions(viewers, board, lambda: NOW_MS) if viewers is not None else None
    async with serving(board, accesses or OwnAccess(), listening, scheduler, actions), ClientSession(url) as client:
        yield client, board
