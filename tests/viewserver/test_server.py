# SPDX-License-Identifier: Apache-2.0
"""The server with real TLS, the stream and the forked processes: which client gets an answer, and bounds."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

import aiohttp
import msgspec
import pytest

from dovetail.aggregated import serving
from dovetail.aggregated.certificate import ServingCertificate
from dovetail.aggregated.forked import ProcessEnded, TooSlow
from dovetail.aggregated.front_proxy import FrontProxy
from dovetail.aggregated.priority import GENERATION
from dovetail.aggregated.question import BadQuestion, Question, Reply
from dovetail.aggregated.serving import AggregatedServer
from dovetail.core import events as ev
from dovetail.core.checkpoint import restore, take
from dovetail.core.cycle import step
from dovetail.core.policy import unhurried
from dovetail.core.state import State
from dovetail.kube.objects.views import MOST_BODY_BYTES, WHAT_IFS
from dovetail.recording.calls import CoreCall
from dovetail.recording.format import RecordedLine
from dovetail.recording.stream import begun, called
from dovetail.views.whatif_types import DrainNodes, Submit, WhatIfQuestion
from dovetail.viewserver import generation, whatifs
from dovetail.viewserver import generations as generations_module
from dovetail.viewserver.answers import API
from dovetail.viewserver.following import Following
from dovetail.viewserver.generations import Generations
from dovetail.viewserver.server import ViewServer
from dovetail.viewserver.whatifs import WhatIfs
from tests.patience import PATIENCE_S
from tests.views.queued import NOW, pod
from tests.viewserver.worlds import MARKER, OWN, OWN_PODS, state
from tools.controlplane.credentials import Authority

HOST = "dovetail-views.test.svc"
PROXY, OTHER = Authority("proxy"), Authority("users")
ALICE = {"X-Remote-User": "alice"}


class _Served:
    """A server on loopback, and the state that its stream comes from."""

    def __init__(self, port: int, pem: str, folder: Path, world: State, reader: asyncio.StreamReader) -> None:
        self.port = port
        self._pem = pem
        self._folder = folder
        self.world = world
        self._reader = reader

    def tls(self, authority: Authority | None, name: str = "front-proxy-client") -> ssl.SSLContext:
        context = ssl.create_default_context(cadata=self._pem)
        if authority is not None:
            pair = authority.client(name)
            file = self._folder / f"{name}.pem"
            file.write_bytes(pair.certificate_pem + pair.key_pem)
            context.load_cert_chain(file)
        return context

    async def ask(
        self, path: str, headers: dict[str, str] = ALICE, authority: Authority | None = PROXY,
        name: str = "front-proxy-client", method: str = "GET", body: bytes = b"",
    ) -> tuple[int, Any]:  # fmt: skip
        async with aiohttp.ClientSession() as session:
            url = f"https://127.0.0.1:{self.port}{API.path}{path}"
            options: dict[str, Any] = {
                "ssl": self.tls(authority, name),
                "server_hostname": HOST,
                "headers": headers,
            } | ({"data": body} if body else {})
            async with session.request(method, url, **options) as response:
                return response.status, json.loads(await response.read() or b"null")

    def step(self, *events: ev.Event) -> None:
        number = self.world.steps + 1
        decisions = step(self.world, events, NOW)
        self._reader.feed_data(called(CoreCall(RecordedLine(NOW, number, events=events), decisions)))


@asynccontextmanager
async def served(folder: Path, generations: Any = None, what_ifs: Any = None) -> AsyncIterator[_Served]:
    """`generations` and `what_ifs` in place of real ones."""
    # As the scheduler's: it does not try all at once.
    world = state(3)
    world.policy = unhurried(world.policy)
    checkpoint = take(world)
    reader = asyncio.StreamReader()
    reader.feed_data(begun(world.policy, checkpoint))
    following = Following(reader, "dovetail")
    made = Generations(following, "dovetail")
    front_proxy = FrontProxy(PROXY.pem.decode(), ("front-proxy-client",))
    certificate = ServingCertificate(HOST)
    server = ViewServer(generations or made, what_ifs or WhatIfs(following, "dovetail"), front_proxy)
    port = await server.listen("127.0.0.1:0", certificate.context(front_proxy.ca_pem))
    tasks = [asyncio.create_task(one) for one in (following.run(), made.run())]
    try:
        yield _Served(port, certificate.pem, folder, restore(world.policy, checkpoint), reader)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


class Unasked(AggregatedServer):
    async def ask(self, *_: object) -> NoReturn:
        raise AssertionError


async def test_no_thread_is_started_to_look_a_host_up() -> None:
    """A process with several threads must not fork."""
    before = _threads()
    tls = ServingCertificate(HOST).context(PROXY.pem.decode())
    for host in ("localhost", "127.0.0.1"):
        server = Unasked(API, FrontProxy(PROXY.pem.decode()))
        assert await server.listen(f"{host}:0", tls)
    assert _threads() == before


async def test_only_the_front_proxy_gets_answers(tmp_path: Path) -> None:
    async with asyncio.timeout(2 * PATIENCE_S), served(tmp_path) as server:
        path = f"/namespaces/{OWN}/waitingjobs"
        status, document = await server.ask(path)
        assert (status, document["kind"], document["metadata"]["namespace"]) == (200, "WaitingJobs", OWN)
        assert MARKER not in json.dumps(document) and document["answer"]["elsewhere"]
        assert MARKER in json.dumps((await server.ask("/waitingjobs"))[1])
        assert (await server.ask(path, authority=None))[0] == 401
        assert (await server.ask(path, name="someone-else"))[0] == 401
        assert (await server.ask(path, headers={}))[0] == 401
        assert (await server.ask(path, method="POST"))[0] == 405
        assert (await server.ask(path, method="PUT"))[0] == 405
        assert (await server.ask(f"/namespaces/{OWN}/whatifs"))[0] == 405
        assert (await server.ask("/pods"))[0] == 404
        with pytest.raises(aiohttp.ClientError):
            await server.ask(path, authority=OTHER)
        assert (await server.ask(""))[1]["kind"] == "APIResourceList"


@pytest.mark.slow
async def test_a_pod_that_is_on_its_way_here_is_found(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        path = f"/namespaces/{OWN}/explanations/brand-new"
        assert (await server.ask(path))[0] == 404
        asked = asyncio.create_task(server.ask(path))
        # The answer of the newest generation is there, and the question waits.
        await asyncio.sleep(generations_module.ON_ITS_WAY_S / 4)
        server.step(ev.PodChanged(pod("brand-new", 1, namespace=OWN)))
        status, found = await asked
        assert (status, found["answer"]["job"]["pod"]) == (200, f"{OWN}/brand-new")


async def test_a_pod_that_came_a_moment_ago_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generations_module, "LONGEST_PAUSE_S", 0.5)
    async with asyncio.timeout(2 * PATIENCE_S), served(tmp_path) as server:
        assert (await server.ask(f"/namespaces/{OWN}/explanations/{OWN_PODS[0]}"))[0] == 200
        server.step(ev.PodChanged(pod("late", 1, namespace=OWN)))
        await asyncio.sleep(0.05)
        status, document = await server.ask(f"/namespaces/{OWN}/explanations/late")
        assert (status, document["step"]) == (200, server.world.steps)
        status, missing = await server.ask(f"/namespaces/{OWN}/explanations/never")
        assert (status, missing["reason"], missing["details"]) == (404, "NotFound", {"kind": "views.dovetail.dev"})


class _Scripted:
    """Generations that answer as the test wants."""

    def __init__(self, ask: Callable[[Question], Any]) -> None:
        self._ask = ask
        self.asked: asyncio.Queue[Question] = asyncio.Queue()

    async def ask(self, question: Question, within_s: float) -> Reply:
        self.asked.put_nowait(question)
        return await self._ask(question)  # type: ignore[no-any-return]


async def test_a_user_has_so_many_requests_under_way_and_all_have_so_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "MOST_OF_A_USER", 2)
    monkeypatch.setattr(serving, "MOST_REQUESTS", 3)
    go_on = asyncio.Event()

    async def waits(_: Question) -> Reply:
        await go_on.wait()
        return Reply(200, b"{}")

    scripted = _Scripted(waits)
    async with asyncio.timeout(PATIENCE_S), served(tmp_path, scripted) as server:
        first = [asyncio.create_task(server.ask("/waitingjobs")) for _ in range(2)]
        for _ in first:
            await scripted.asked.get()
        status, refused = await server.ask("/waitingjobs")
        assert (status, refused["reason"]) == (429, "TooManyRequests")
        other = asyncio.create_task(server.ask("/waitingjobs", {"X-Remote-User": "bob"}))
        await scripted.asked.get()
        assert (await server.ask("/waitingjobs", {"X-Remote-User": "carol"}))[0] == 429
        go_on.set()
        assert [status for status, _ in await asyncio.gather(*first, other)] == [200, 200, 200]
        assert (await server.ask("/waitingjobs"))[0] == 200


async def test_a_user_whose_question_took_too_long_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def too_slow(_: Question) -> Reply:
        raise TooSlow("it takes longer than 10 s")

    async with asyncio.timeout(PATIENCE_S), served(tmp_path, _Scripted(too_slow)) as server:
        assert [(await server.ask("/capacities"))[0] for _ in range(2)] == [504, 429]
        monkeypatch.setattr(serving, "PENALTY_S", 0.0)
        assert [(await server.ask("/capacities", {"X-Remote-User": "bob"}))[0] for _ in range(2)] == [504, 504]


async def test_an_answer_that_is_too_large_and_one_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "MOST_REPLY_BYTES", 4)

    async def answers(question: Question) -> Reply:
        if question.resource == "capacities":
            raise ValueError("a bug")
        return Reply(200, b"[1,2,3]")

    async with asyncio.timeout(PATIENCE_S), served(tmp_path, _Scripted(answers)) as server:
        status, refused = await server.ask("/waitingjobs")
        assert (status, "larger than" in refused["message"]) == (500, True)
        status, failed = await server.ask("/capacities")
        assert (status, "bug" in failed["message"]) == (500, False)


@pytest.mark.slow
async def test_a_generation_that_is_killed_is_replaced(tmp_path: Path) -> None:
    async with asyncio.timeout(2 * PATIENCE_S), served(tmp_path) as server:
        reader = asyncio.StreamReader()
        reader.feed_data(begun(server.world.policy, take(server.world)))
        following = Following(reader, "dovetail")
        generations = Generations(following, "dovetail")
        tasks = [asyncio.create_task(one) for one in (following.run(), generations.run())]
        question = Question("queueshares")
        assert (await generations.ask(question, PATIENCE_S)).status == 200
        killed = generations._newest
        assert killed is not None
        # The scheduler comes first.
        assert os.getpriority(os.PRIO_PROCESS, killed._pid) == max(GENERATION, os.getpriority(os.PRIO_PROCESS, 0))
        assert os.sched_getscheduler(killed._pid) == os.SCHED_BATCH
        killed.end()
        with pytest.raises(ProcessEnded):
            await killed.ask(question, 1.0)
        assert (await generations.ask(question, PATIENCE_S)).status == 200
        assert generations._newest is not killed
        # One that takes too long ends, and only it.
        newest = generations._newest
        assert newest is not None
        with pytest.raises(TooSlow):
            await newest.ask(Question("capacities"), 0.0)
        assert newest.ended and (await generations.ask(question, PATIENCE_S)).status == 200
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.slow
async def test_what_was_asked_of_one_generation_is_known_to_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generations_module, "LONGEST_PAUSE_S", 0.2)
    monkeypatch.setattr(generations_module, "SHORTEST_PAUSE_S", 0.2)
    async with asyncio.timeout(2 * PATIENCE_S):
        reader = asyncio.StreamReader()
        world = state(3)
        reader.feed_data(begun(world.policy, take(world)))
        following = Following(reader, "dovetail")
        generations = Generations(following, "dovetail")
        tasks = [asyncio.create_task(one) for one in (following.run(), generations.run())]
        question = Question("queueshares", OWN)
        await generations.ask(question, PATIENCE_S)
        first = generations._newest
        reader.feed_data(called(CoreCall(RecordedLine(NOW, applied=(ev.PodChanged(pod("late", 1)),)), [])))
        assert first is not None
        newest = await generations._newer_than(first.frames)
        assert newest.replies[question].done() and not newest.asked
        # What nobody asks any more is not asked on and on.
        reader.feed_data(called(CoreCall(RecordedLine(NOW, applied=(ev.PodRemoved("ns/late"),)), [])))
        assert not (await generations._newer_than(newest.frames)).replies
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


DRAIN = WhatIfQuestion(DrainNodes(("n0",)))
SUBMIT = WhatIfQuestion(
    Submit(
        (
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": "new"},
                "spec": {"containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]},
            },
        )
    )
)


@pytest.mark.slow
async def test_a_what_if_is_worked_out_by_a_process_of_its_own(tmp_path: Path) -> None:
    async with asyncio.timeout(3 * PATIENCE_S), served(tmp_path) as server:
        path = f"/namespaces/{OWN}/whatifs"
        before = take(server.world)
        status, drained = await server.ask(path, method="POST", body=msgspec.json.encode(DRAIN))
        assert (status, drained["kind"], drained["metadata"]["namespace"]) == (200, "WhatIf", OWN)
        assert MARKER not in json.dumps(drained)
        assert MARKER in json.dumps((await server.ask("/whatifs", method="POST", body=msgspec.json.encode(DRAIN)))[1])
        _, submitted = await server.ask(path, method="POST", body=msgspec.json.encode(SUBMIT))
        assert f"{OWN}/new" in [one["job"] for one in submitted["answer"]["jobs"]]
        assert take(server.world) == before
        assert (await server.ask(path, method="POST", body=b"{"))[0] == 400
        assert (await server.ask(path, method="POST", body=b'{"change": {"type": "none"}}'))[0] == 400
        other = msgspec.json.encode(SUBMIT).replace(b'"name":"new"', b'"name":"new","namespace":"elsewhere"')
        status, refused = await server.ask(path, method="POST", body=other)
        assert (status, "not pod elsewhere/new" in refused["message"]) == (403, True)
        status, refused = await server.ask(path, method="POST", body=b" " * (MOST_BODY_BYTES + 1))
        assert (status, "longer than 2 MiB" in refused["message"]) == (413, True)


def _question() -> Question:
    return Question(WHAT_IFS.plural, OWN, body=msgspec.json.encode(DRAIN).decode())


class _Slow:
    """In place of a process that is forked: it answers when it is let go on, or never."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.running = self.most = self.ended = 0
        self.fails: Exception | None = None

    async def fork(self, *_: object, **__: object) -> _Slow:
        self.running += 1
        self.most = max(self.most, self.running)
        return self

    async def prepared(self, _: float) -> None:
        """It is at once."""

    async def ask(self, question: Question, within_s: float) -> Reply:
        if self.fails is not None:
            raise self.fails
        await self.go_on.wait()
        return Reply(200, b"{}")

    def end(self) -> None:
        self.running -= 1
        self.ended += 1


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> _Slow:
    process = _Slow()
    monkeypatch.setattr(whatifs, "Generation", process)
    return process


def _what_ifs() -> WhatIfs:
    following = Following(asyncio.StreamReader(), "dovetail")
    following.begun.set()
    return WhatIfs(following, "dovetail")


async def _refused(asked: Any) -> str:
    with pytest.raises(BadQuestion) as raised:
        await asked
    return f"{raised.value.status} {raised.value}"


async def test_one_what_if_is_worked_out_at_a_time_and_a_user_has_one(slow: _Slow) -> None:
    found = _what_ifs()
    async with asyncio.timeout(PATIENCE_S):
        waiting = [asyncio.create_task(found.ask(user, _question())) for user in ("alice", "bob")]
        await asyncio.sleep(0)
        assert "429 a prediction of this user is under way" in await _refused(found.ask("alice", _question()))
        slow.go_on.set()
        assert [one.status for one in await asyncio.gather(*waiting)] == [200, 200]
    assert (slow.most, slow.running, slow.ended) == (1, 0, 2)


async def test_a_user_has_so_many_what_ifs_in_a_minute_and_so_many_wait(
    slow: _Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whatifs, "A_MINUTE", 2)
    monkeypatch.setattr(whatifs, "MOST_WAITING", 2)
    found = _what_ifs()
    async with asyncio.timeout(PATIENCE_S):
        slow.go_on.set()
        for _ in range(2):
            await found.ask("alice", _question())
        assert "429 this user has asked 2 predictions in a minute" in await _refused(found.ask("alice", _question()))
        slow.go_on.clear()
        waiting = [asyncio.create_task(found.ask(user, _question())) for user in ("bob", "carol")]
        await asyncio.sleep(0)
        assert "429 too many predictions wait" in await _refused(found.ask("dave", _question()))
        slow.go_on.set()
        await asyncio.gather(*waiting)


async def test_a_what_if_that_takes_too_long_or_too_much_ends_alone(slow: _Slow) -> None:
    found = _what_ifs()
    async with asyncio.timeout(PATIENCE_S):
        slow.fails = TooSlow("it takes longer")
        assert "504 the prediction takes longer than 25 s" in await _refused(found.ask("alice", _question()))
        assert "429" in await _refused(found.ask("alice", _question()))
        slow.fails = ProcessEnded("no memory")
        assert "503 the process ended" in await _refused(found.ask("bob", _question()))
    assert (slow.running, slow.ended) == (0, 2)


async def test_the_memory_of_a_what_if_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generation, "MOST_ALONE_BYTES", -(1 << 20))
    begin, taken = generation._begin, list[bytes]()

    def without_a_heap(following: Following, ours: str, alone: bool, recording: Path | None) -> Any:
        """The product's, and then all that this process's heap has left, which no bound counts, is taken."""
        answer = begin(following, ours, alone, recording)
        with suppress(MemoryError):
            for _ in range(1024 if alone else 0):
                taken.append(bytes(1 << 20))
        return answer

    monkeypatch.setattr(generation, "_begin", without_a_heap)
    async with asyncio.timeout(2 * PATIENCE_S), served(tmp_path) as server:
        body = msgspec.json.encode({"change": {"type": "drain", "nodes": ["n" * 1_900_000]}})
        status, failed = await server.ask(f"/namespaces/{OWN}/whatifs", method="POST", body=body)
        assert (status, failed["reason"]) == (503, "ServiceUnavailable")
        assert (await server.ask(f"/namespaces/{OWN}/waitingjobs"))[0] == 200


async def test_the_longest_name_is_answered_as_any_other(tmp_path: Path) -> None:
    async with asyncio.timeout(2 * PATIENCE_S), served(tmp_path) as server:
        body = msgspec.json.encode({"change": {"type": "drain", "nodes": ["n" * 1_900_000]}})
        status, missing = await server.ask(f"/namespaces/{OWN}/whatifs", method="POST", body=body)
        assert (status, missing["reason"]) == (404, "NotFound")
