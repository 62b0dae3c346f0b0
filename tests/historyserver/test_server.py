# SPDX-License-Identifier: Apache-2.0
"""The server with real TLS and a process for each question: which client gets an answer, and bounds."""

from __future__ import annotations

import asyncio
import json
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import pytest

from dovetail.aggregated.certificate import ServingCertificate
from dovetail.aggregated.front_proxy import FrontProxy
from dovetail.cost.price_sources import PriceSources
from dovetail.historyserver import server as server_module
from dovetail.historyserver.server import API, HistoryServer
from tests.historyserver.worlds import HOURS, MARKER, OWN, START, write
from tests.patience import PATIENCE_S
from tools.controlplane.credentials import Authority

HOST = "dovetail-history.test.svc"
PROXY = Authority("proxy")
_WRITES = """
import sys, time
from pathlib import Path
from dovetail.history.records import HistoryBatch
from dovetail.history.sqlite.store import SqliteStore
store = SqliteStore(Path(sys.argv[1]))
print("begun", flush=True)
for second in range(5):
    time.sleep(0.05)
    store.write(HistoryBatch(int(sys.argv[2]) + second * 1000))
store.close()
"""


class _Served:
    """A server on loopback."""

    def __init__(self, port: int, pem: str, folder: Path) -> None:
        self._port, self._pem, self._folder = port, pem, folder

    async def ask(self, path: str, user: str = "alice", *, proxy: bool = True, method: str = "GET") -> tuple[int, Any]:
        context = ssl.create_default_context(cadata=self._pem)
        if proxy:
            pair = PROXY.client("front-proxy-client")
            file = self._folder / "client.pem"
            file.write_bytes(pair.certificate_pem + pair.key_pem)
            context.load_cert_chain(file)
        url = f"https://127.0.0.1:{self._port}{API.path}{path}"
        headers = {"X-Remote-User": user}
        async with (
            aiohttp.ClientSession() as session,
            session.request(method, url, ssl=context, server_hostname=HOST, headers=headers) as response,
        ):
            return response.status, json.loads(await response.read() or b"null")


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[_Served]:
    store = folder / "history.db"
    write(store, Random(7))
    front_proxy = FrontProxy(PROXY.pem.decode(), ("front-proxy-client",))
    certificate = ServingCertificate(HOST)
    server = HistoryServer(front_proxy, store, PriceSources(currency="USD"))
    port = await server.listen("127.0.0.1:0", certificate.context(front_proxy.ca_pem))
    async with asyncio.timeout(2 * PATIENCE_S):
        yield _Served(port, certificate.pem, folder)


async def test_only_the_front_proxy_gets_answers_and_a_namespace_its_own(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        status, document = await server.ask(f"/namespaces/{OWN}/costs")
        assert (status, document["kind"], document["metadata"]["namespace"]) == (200, "Cost", OWN)
        assert MARKER not in json.dumps(document)
        assert MARKER in json.dumps((await server.ask("/costs"))[1])
        assert (await server.ask("/costs", proxy=False))[0] == 401
        assert (await server.ask("/costs", user=""))[0] == 401
        assert (await server.ask("/costs", method="POST"))[0] == 405
        assert (await server.ask("/costs?by=job"))[0] == 400
        assert (await server.ask("/costs/x"))[0] == 404
        assert (await server.ask("/costs?question=" + "x" * 5000))[0] == 400
        assert [one["name"] for one in (await server.ask(""))[1]["resources"]] == list(API.resources)


async def test_the_collector_writes_while_it_is_asked(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        # A process of its own, as the collector is: nothing of SQLite may be open where a process is forked.
        command = (sys.executable, "-c", _WRITES, str(tmp_path / "history.db"), str(START + HOURS * 3_600_000))
        collector = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        assert collector.stdout is not None and await collector.stdout.readline() == b"begun\n"
        asked = [asyncio.create_task(server.ask("/costs", user)) for user in ("alice", "bob", "carol")]
        assert [status for status, _ in await asyncio.gather(*asked)] == [200] * 3
        assert await collector.wait() == 0
        _, document = await server.ask("/pastjobs")
        assert document["answer"]["known"]["end_ms"] == START + HOURS * 3_600_000 + 4000


async def test_a_user_has_one_question_under_way_and_so_many_in_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "A_MINUTE", 3)
    async with served(tmp_path) as server:
        found = await asyncio.gather(*(server.ask("/costs") for _ in range(2)))
        assert sorted(status for status, _ in found) == [200, 429]
        assert [(await server.ask("/costs"))[0] for _ in range(3)] == [200, 200, 429]
        assert (await server.ask("/costs", "bob"))[0] == 200


async def test_a_question_that_takes_too_much_memory_ends_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with served(tmp_path) as server:
        monkeypatch.setattr(server_module, "MOST_BYTES", 1 << 12)
        status, failed = await server.ask("/costs")
        assert status in (503, 504) and failed["kind"] == "Status"
        monkeypatch.setattr(server_module, "MOST_BYTES", 1 << 30)
        assert (await server.ask("/costs", "bob"))[0] == 200
