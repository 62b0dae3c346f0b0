# SPDX-License-Identifier: Apache-2.0
"""The process that answers an API: started, and again when it has ended.

Rules
- The process that starts it does not depend on it: whatever happens to it is logged, counted, and followed by a new
  start. It ends with that process: its standard input is a socket of it.
- It is started again where the API server's own certificates change.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from logging import Logger

import msgspec
from msgspec import Struct
from prometheus_client import Counter, Gauge

from dovetail.aggregated.front_proxy import FrontProxy, Listening
from dovetail.aggregated.registration import ApiObjects, address_of, authentication, register
from dovetail.core.json_text import JsonError, decode_json
from dovetail.kube.api.client import Client
from dovetail.kube.api.errors import ApiError

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0
_STEADY_S = 300.0
_UP_S = 30.0
_EVERY_S = 30.0
_SOON_S = 1.0
_LEADING_S = 0.2
_MOST_LINE_BYTES = 1 << 20


class AnsweredApi(Struct, frozen=True):
    """An API that a process with the `module` answers: `what` that is, in the plural, where it is registered, and where
    it is counted and logged how that goes. `options` are passed to the process, besides where it listens."""

    module: str
    what: str
    registration: ApiObjects
    up: Gauge
    ends: Counter
    log: Logger
    options: Mapping[str, object] = {}


class Starter:
    """What the process that starts it has to do with it, and whether it may run: nothing, and always."""

    def decides(self) -> bool:
        return True

    _process: socket.socket | None = None

    async def connect(self, process: socket.socket, cut_off: Callable[[str], object]) -> None:
        """It listens: send it what it needs, and keep the socket. `cut_off` ends it, from any thread, with the
        reason."""
        self._process = process

    def disconnect(self) -> None:
        """It has ended, or is about to."""
        process, self._process = self._process, None
        if process is not None:
            process.close()


class _Again(Exception):
    """The process has to be started again; the message is why."""


class AnsweringProcess:
    """`listen` is HOST:PORT."""

    def __init__(self, client: Client, api: AnsweredApi, listen: str, namespace: str, starter: Starter) -> None:
        self._client = client
        self._api = api
        self._listen = listen
        self._namespace = namespace
        self._starter = starter

    async def run(self) -> None:
        """Keep it running until cancelled. Raises no other error."""
        pause_s = _FIRST_PAUSE_S
        while True:
            if not self._starter.decides():
                await asyncio.sleep(_LEADING_S)
                continue
            began_s = time.monotonic()
            try:
                await self._serve()
            except Exception as error:
                # A bug here must not end this process either.
                self._api.ends.inc()
                self._api.log.warning(
                    "%s are not answered: %s; trying again in %g s",
                    self._api.what,
                    str(error) or type(error).__name__,
                    pause_s,
                )
            finally:
                self._api.up.set(0)
                self._starter.disconnect()
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
                sys.executable, "-m", self._api.module,
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
            self._api.log.info(
                "%s are answered at %s port %d by process %d", self._api.what, address, listening.port, process.pid
            )
            self._api.up.set(1)
            registered, wait_s = True, _EVERY_S
            while True:
                try:
                    if await authentication(self._client) != known:
                        raise _Again("the certificates of the API server have changed")
                    if self._starter.decides():
                        before, registered = (
                            registered,
                            await register(
                                self._client,
                                self._api.registration,
                                self._namespace,
                                address,
                                listening.port,
                                listening.ca_pem,
                            ),
                        )
                        # The operator registers it soon after it has seen the address.
                        wait_s = _EVERY_S if registered else min(_EVERY_S, _SOON_S if before else 2 * wait_s)
                        if before and not registered:
                            self._api.log.info(
                                "APIService %s is not there yet; waiting for the operator",
                                self._api.registration.api_service,
                            )
                except ApiError as error:
                    wait_s = _EVERY_S
                    self._api.log.warning(
                        "%s may not be found: %s; trying again in %g s", self._api.what, error, _EVERY_S
                    )
                await asyncio.wait((ended, cut), timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
                if cut.done():
                    raise _Again(f"the process was cut off: {cut.result()}")
                if ended.done():
                    raise _Again(f"the process ended with status {ended.result()}")
        finally:
            self._starter.disconnect()
            # All of its group, as it forks; and it, if it has made none yet.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            with suppress(ProcessLookupError):
                process.kill()
            await asyncio.shield(ended)

    async def _begin(
        self, process: asyncio.subprocess.Process, ours: socket.socket, known: FrontProxy,
        cut: asyncio.Future[str],
    ) -> Listening:  # fmt: skip
        """Pass the options, and connect it once it listens."""
        options = {
            "listen": self._listen,
            "host": f"{self._api.registration.service}.{self._namespace}.svc",
            "front_proxy": known,
            **self._api.options,
        }
        ours.sendall(msgspec.json.encode(options) + b"\n")
        assert process.stdout is not None
        async with asyncio.timeout(_UP_S):
            line = await process.stdout.readline()
        if not line:
            raise _Again("the process ended at its start; its messages are above")
        try:
            listening = decode_json(line, Listening)
        except JsonError as error:
            raise _Again(f"the first line of the process cannot be read: {error}") from error
        loop = asyncio.get_running_loop()

        def note(why: str) -> None:
            if not cut.done():
                cut.set_result(why)

        def cut_off(why: str) -> None:
            with suppress(RuntimeError):  # at the end of this process
                loop.call_soon_threadsafe(note, why)

        await self._starter.connect(ours, cut_off)
        return listening
