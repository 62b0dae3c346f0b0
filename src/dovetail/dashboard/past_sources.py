# SPDX-License-Identifier: Apache-2.0
"""What answers questions about the past: the collector of the cluster, a history that this machine reads, or nothing.

Rules: a question about the past is worked out from many records, so a page is at most REREAD_S behind the history, and
a history that we read ourselves answers one question after the other, in a process of its own (`past_process`).
"""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import suppress

import msgspec
from msgspec.structs import replace

from dovetail import __version__
from dovetail.aggregated.question import Reply
from dovetail.core.json_text import decode_json
from dovetail.dashboard.copied_cluster import question_of
from dovetail.dashboard.past_process import ReadHistory
from dovetail.dashboard.sources import SourceAway, ViewSource
from dovetail.kube.api.client import Client
from dovetail.kube.api.config import ClusterConfig
from dovetail.kube.api.errors import KubeError
from dovetail.kube.api.resources import QUEUES
from dovetail.kube.objects.views import ViewDocument, ViewMeta
from dovetail.kube.queue_budgets import read_budgets
from dovetail.kube.reading.views import NoSuchObject, NotServed, NoView, ViewRequest, ask_view

REREAD_S = 300.0
MOST_WAITING = 16
TIME_S = 60.0
"""After so long a question is not waited for any more."""
_ADVICE = (
    "start the dashboard with --store FILE or --prometheus URL, or switch the history of the cluster on "
    "(spec.history.enabled of the GPUStack)"
)


def _period() -> str:
    return str(int(time.monotonic() / REREAD_S))


class NoHistory:
    """There is none."""

    name = "no history"

    def __init__(self) -> None:
        self.changed = asyncio.Event()

    async def moment(self, namespace: str) -> str:
        return ""

    async def ask(self, request: ViewRequest) -> ViewDocument:
        raise NoSuchObject(f"no history is read: {_ADVICE}")


class CollectorHistory:
    """The collector of the cluster, through the API server; `client` is open."""

    def __init__(self, config: ClusterConfig, client: Client) -> None:
        self.name = f"the history of {config.server}"
        self.changed = asyncio.Event()
        self._namespace = config.namespace
        self._client = client

    async def moment(self, namespace: str) -> str:
        return _period()

    async def ask(self, request: ViewRequest) -> ViewDocument:
        try:
            return await ask_view(self._client, replace(request, namespace=request.namespace or self._namespace))
        except NotServed as error:
            raise NoSuchObject(f"no history is read, as {error}: {_ADVICE}") from error
        except (NoView, KubeError) as error:
            raise SourceAway(str(error)) from error


class WithBudgets:
    """A source about the past, and the budgets of the queues of a cluster with what was used of them."""

    def __init__(self, past: ViewSource, config: ClusterConfig) -> None:
        self.name, self.changed = past.name, past.changed
        self._past, self._config = past, config

    async def moment(self, namespace: str) -> str:
        return _period()

    async def ask(self, request: ViewRequest) -> ViewDocument:
        if request.resource != QUEUES:
            return await self._past.ask(request)
        if request.alone:
            raise NoSuchObject("budgets are shown to users that may list queues of the cluster")
        try:
            found = await read_budgets(self._config, time.time_ns() // 1_000_000)
        except KubeError as error:
            raise SourceAway(str(error)) from error
        return ViewDocument(
            QUEUES.api_version, QUEUES.kind, ViewMeta("", ""), found.now_ms, 0, __version__,
            msgspec.Raw(msgspec.json.encode(found)),
        )  # fmt: skip


class OwnHistory:
    """A history that this machine reads."""

    def __init__(self, history: ReadHistory) -> None:
        self.name = history.name
        self.changed = asyncio.Event()
        self._history = history
        self._process: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()
        self._waiting = 0

    async def moment(self, namespace: str) -> str:
        return _period()

    async def ask(self, request: ViewRequest) -> ViewDocument:
        if self._waiting >= MOST_WAITING:
            raise SourceAway(f"{MOST_WAITING} questions about the history wait already: try again later")
        self._waiting += 1
        try:
            async with self._turn:
                reply = await self._reply(request)
        finally:
            self._waiting -= 1
        if reply.status == 200:
            return decode_json(reply.body, ViewDocument)
        message = reply.body.decode()
        raise SourceAway(message) if reply.status >= 500 else NoSuchObject(message)

    async def aclose(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is None:
            return
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()

    async def _reply(self, request: ViewRequest) -> Reply:
        """Raises SourceAway. A process whose reply was not read to its end is of no more use."""
        whole = False
        try:
            async with asyncio.timeout(TIME_S):
                process = self._process or await self._start()
                assert process.stdin is not None and process.stdout is not None
                process.stdin.write(msgspec.json.encode(question_of(request)) + b"\n")
                await process.stdin.drain()
                status, length = map(int, (await process.stdout.readline()).split())
                reply = Reply(status, await process.stdout.readexactly(length))
                whole = True
                return reply
        except TimeoutError as error:
            raise SourceAway(f"it is not worked out within {TIME_S:g} s: ask for a shorter period") from error
        except (OSError, ValueError, asyncio.IncompleteReadError) as error:
            raise SourceAway(
                "its process ended before it answered; the cause is in the log of the dashboard"
            ) from error
        finally:
            if not whole:
                await self.aclose()

    async def _start(self) -> asyncio.subprocess.Process:
        """Raises OSError."""
        command = (sys.executable, "-P", "-m", "dovetail.dashboard.past_process")
        pipe = asyncio.subprocess.PIPE
        # A session of its own: Ctrl-C is for us, and we end it.
        self._process = await asyncio.create_subprocess_exec(
            *command, stdin=pipe, stdout=pipe, start_new_session=True
        )  # fmt: skip
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(self._history) + b"\n")
        return self._process
