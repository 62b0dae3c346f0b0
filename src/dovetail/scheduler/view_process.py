# SPDX-License-Identifier: Apache-2.0
"""The process that answers views: started while this one leads, and again when it has ended.

Rules
- The scheduler does not depend on it: whatever happens to it is logged, counted, and followed by a new start.
- It ends with this process: its standard input is the stream of calls.
- It is started again where the API server's own certificates change.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

import msgspec

from dovetail.core.json_text import JsonError, decode_json
from dovetail.kube.api.client import Client
from dovetail.kube.api.errors import ApiError
from dovetail.scheduler import metrics
from dovetail.scheduler.view_feed import ViewFeed
from dovetail.scheduler.view_registration import (
    API_SERVICE,
    SERVICE,
    ProxyAuthentication,
    address_of,
    authentication,
    register,
)

MODULE = "dovetail.viewserver"
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0
_STEADY_S = 300.0
_UP_S = 30.0
_EVERY_S = 30.0
_SOON_S = 1.0
_LEADING_S = 0.2
_MOST_LINE_BYTES = 1 << 20


class _Listening(msgspec.Struct):
    port: int
    ca_pem: str


class _Again(Exception):
    """The process has to be started again; the message is why."""


class ViewProcess:
    """`listen` is HOST:PORT. `decides` is whether this process leads and knows the cluster; `wake` makes the main loop
    pass. `report` sends all objects that views show."""

    def __init__(
        self, client: Client, feed: ViewFeed, listen: str, *, namespace: str, scheduler_name: str,
        decides: Callable[[], bool], wake: Callable[[], object], report: Callable[[], Awaitable[None]],
    ) -> None:  # fmt: skip
        self._client = client
        self._feed = feed
        self._listen = listen
        self._namespace = namespace
        self._scheduler_name = scheduler_name
        self._decides = decides
        self._wake = wake
        self._report = report

    async def run(self) -> None:
        """Keep it running until cancelled. Raises no other error."""
        pause_s = _FIRST_PAUSE_S
        while True:
            if not self._decides():
                await asyncio.sleep(_LEADING_S)
                continue
            began_s = time.monotonic()
            try:
                await self._serve()
            except Exception as error:
                # A bug here must not end the scheduler either.
                metrics.VIEW_SERVER_ENDS.inc()
                metrics.log.warning(
                    "views are not answered: %s; trying again in %g s", str(error) or type(error).__name__, pause_s
                )
            finally:
                metrics.VIEW_SERVER_UP.set(0)
                self._feed.disconnect()
            await asyncio.sleep(pause_s)
            steady = time.monotonic() - began_s > _STEADY_S
            pause_s = _FIRST_PAUSE_S if steady else min(_LONGEST_PAUSE_S, 2 * pause_s)

    async def _serve(self) -> None:
        """Start the process, and go on until it has to be started again, which is an exception."""
        known = await authentication(self._client)
        address = address_of(self._listen, self._client.config.server)
        ours, theirs = socket.socketpair()
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", MODULE,
                # In this session: outside of containers Linux divides the cores between sessions (autogroups), and the
                # priority of a process counts only within its own. It makes a process group of what it forks.
                stdin=theirs.fileno(), stdout=asyncio.subprocess.PIPE, limit=_MOST_LINE_BYTES,
                # One thread each: a process with others must not fork.
                env=os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
            )  # fmt: skip
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        cut: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        ended = asyncio.ensure_future(process.wait())
        try:
            try:
                listening = await self._begin(process, ours, known, cut)
            except BaseException:
                ours.close()
                raise
            metrics.log.info("views are answered at %s port %d by process %d", address, listening.port, process.pid)
            metrics.VIEW_SERVER_UP.set(1)
            registered, wait_s = True, _EVERY_S
            while True:
                try:
                    if await authentication(self._client) != known:
                        raise _Again("the certificates of the API server have changed")
                    if self._decides():
                        before, registered = (
                            registered,
                            await register(self._client, self._namespace, address, listening.port, listening.ca_pem),
                        )
                        # The operator registers it soon after it has seen the address.
                        wait_s = _EVERY_S if registered else min(_EVERY_S, _SOON_S if before else 2 * wait_s)
                        if before and not registered:
                            metrics.log.info("APIService %s is not there yet; waiting for the operator", API_SERVICE)
                except ApiError as error:
                    wait_s = _EVERY_S
                    metrics.log.warning("views may not be found: %s; trying again in %g s", error, _EVERY_S)
                await asyncio.wait((ended, cut), timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
                if cut.done():
                    raise _Again(f"the process was cut off: {cut.result()}")
                if ended.done():
                    raise _Again(f"the process ended with status {ended.result()}")
        finally:
            self._feed.disconnect()
            # All of its group, as it forks; and it, if it has made none yet.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            with suppress(ProcessLookupError):
                process.kill()
            await asyncio.shield(ended)

    async def _begin(
        self, process: asyncio.subprocess.Process, ours: socket.socket, known: ProxyAuthentication,
        cut: asyncio.Future[str],
    ) -> _Listening:  # fmt: skip
        """Pass the options, and connect the feed once it listens."""
        options = {
            "listen": self._listen,
            "host": f"{SERVICE}.{self._namespace}.svc",
            "scheduler_name": self._scheduler_name,
            "front_proxy": known,
        }
        ours.sendall(msgspec.json.encode(options) + b"\n")
        assert process.stdout is not None
        async with asyncio.timeout(_UP_S):
            line = await process.stdout.readline()
        if not line:
            raise _Again("the process ended at its start; its messages are above")
        try:
            listening = decode_json(line, _Listening)
        except JsonError as error:
            raise _Again(f"the first line of the process cannot be read: {error}") from error
        loop = asyncio.get_running_loop()

        def note(why: str) -> None:
            if not cut.done():
                cut.set_result(why)

        def cut_off(why: str) -> None:
            with suppress(RuntimeError):  # at the end of this process
                loop.call_soon_threadsafe(note, why)

        self._feed.connect(ours, cut_off)
        await self._report()
        self._feed.want_checkpoint()
        self._wake()
        return listening
