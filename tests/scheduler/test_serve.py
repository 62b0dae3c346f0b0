# SPDX-License-Identifier: Apache-2.0
"""How the scheduler begins and ends: which replica gets the lease, what a stop leaves behind, and its messages."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from dovetail.core.policy import Policy
from dovetail.kube.api.config import ClusterConfig
from dovetail.kube.api.lease import SCHEDULER_NAME
from dovetail.kube.translate.quarantine_budget import QUARANTINE_BUDGET, with_budget
from dovetail.playground import Playground
from dovetail.playground.faults import Fault
from dovetail.scheduler.serve import LEASE_NAMESPACE, LeadershipLost, SchedulerOptions, run
from tests.forked import Forked
from tests.patience import PATIENCE_S
from tests.scheduler.scripted import until

LEASE = ("leases.coordination.k8s.io", LEASE_NAMESPACE, "dovetail-scheduler")
AMOUNTS = {"cpu": "64", "memory": "512Gi", "pods": "1000", "nvidia.com/gpu": "60"}


def put_node(playground: Playground, name: str) -> None:
    status = {"allocatable": AMOUNTS, "capacity": AMOUNTS, "conditions": [{"type": "Ready", "status": "True"}]}
    playground.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": status})


def put_pods(playground: Playground, count: int, first: int = 0) -> None:
    limits = {"cpu": "1m", "memory": "1Mi", "nvidia.com/gpu": "1"}
    for number in range(first, first + count):
        containers = [{"name": "m", "image": "i", "resources": {"limits": limits}}]
        spec = {"schedulerName": "dovetail", "containers": containers}
        meta = {"name": f"p{number}", "namespace": "default"}
        playground.put({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})


def bound(playground: Playground) -> Counter[str]:
    """How many pods each node has."""
    pods = playground.store.list("pods")
    return Counter(pod["spec"]["nodeName"] for pod in pods if pod["spec"].get("nodeName"))


def holder(playground: Playground) -> str:
    """The holder of the lease; "" for none."""
    lease = playground.store.get(*LEASE)
    return str(lease["spec"].get("holderIdentity") or "") if lease else ""


async def test_the_lease_has_what_commands_need_to_know_of_the_scheduler(playground: Playground) -> None:
    async with scheduler(playground, scheduler_name="other", policy=with_budget(Policy(), "7%")):
        await until(lambda: bool(holder(playground)))
    lease = playground.store.get(*LEASE)
    assert lease is not None
    assert lease["metadata"]["annotations"] == {SCHEDULER_NAME: "other", QUARANTINE_BUDGET: "7%"}


def steal_lease(playground: Playground) -> None:
    lease = playground.store.get(*LEASE)
    assert lease is not None
    kind = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
    playground.put({**lease, **kind, "spec": lease["spec"] | {"holderIdentity": "thief"}})


@pytest.fixture
async def playground() -> AsyncIterator[Playground]:
    playground = Playground(start_delay_s=60.0)
    await playground.start()
    playground.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": LEASE_NAMESPACE}})
    yield playground
    await playground.stop()


@asynccontextmanager
async def scheduler(playground: Playground, **options: Any) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(run(ClusterConfig(playground.url), SchedulerOptions(**{"listen": "", **options})))
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_replica_that_cannot_read_the_cluster_leaves_the_lease_to_one_that_can(playground: Playground) -> None:
    put_node(playground, "a")
    put_pods(playground, 1)
    playground.faults.add(Fault("answer", "WATCH", "pods", status=403, times=10_000))
    async with scheduler(playground, identity="blind") as blind:
        await asyncio.sleep(0.5)
        assert not blind.done()
        assert holder(playground) == ""
        playground.faults.clear()
        async with scheduler(playground, identity="sees"):
            await until(lambda: bound(playground) == {"a": 1})
            assert holder(playground)


@pytest.mark.slow
async def test_a_stop_with_binds_under_way_gives_the_lease_back_and_doubles_nothing(playground: Playground) -> None:
    put_node(playground, "a")
    put_node(playground, "b")
    put_pods(playground, 120)
    playground.faults.add(Fault("delay", "POST", "pods/binding", times=100, delay_s=0.3))
    async with scheduler(playground, identity="one") as one:
        await until(lambda: holder(playground).startswith("one"))
        await until(lambda: bool(bound(playground)))
        one.cancel()
        await asyncio.wait([one], timeout=PATIENCE_S)
        assert one.cancelled()
        assert holder(playground) == ""
    async with scheduler(playground, identity="two"):
        await until(lambda: bound(playground).total() == 120)
    assert bound(playground) == {"a": 60, "b": 60}


@pytest.mark.slow
@pytest.mark.usefixtures("no_waits")
async def test_a_stolen_lease_ends_it_with_thousands_of_binds_in_the_queue(playground: Playground) -> None:
    for number in range(40):
        put_node(playground, f"n{number}")
    put_pods(playground, 2_000)
    playground.faults.add(Fault("delay", "POST", "pods/binding", times=100_000, delay_s=0.5))
    async with scheduler(playground, identity="one") as one:
        await until(lambda: bool(bound(playground)))
        steal_lease(playground)
        done, _ = await asyncio.wait([one], timeout=PATIENCE_S)
        assert done
        error = one.exception()
        assert isinstance(error, BaseExceptionGroup)
        assert error.subgroup(LeadershipLost) is not None
        # Requests that had reached the server still take effect; then nothing does.
        await asyncio.sleep(0.6)
        count = bound(playground).total()
        assert count < 2_000
        await asyncio.sleep(0.6)
        assert bound(playground).total() == count
        assert holder(playground) == "thief"


async def test_a_taken_port_ends_it_before_it_does_anything(playground: Playground) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(OSError, match="address already in use"):
            await run(ClusterConfig(playground.url), SchedulerOptions(listen=f"127.0.0.1:{taken.getsockname()[1]}"))


@pytest.mark.slow
@pytest.mark.usefixtures("no_waits")
async def test_an_api_server_that_is_away_at_the_start_is_waited_for(playground: Playground) -> None:
    """A start for each look would be 17 in a minute, and the kubelet would wait longer after each."""
    put_node(playground, "n")
    put_pods(playground, 1)
    await playground.faults.go_away()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    async with scheduler(playground, listen=f"127.0.0.1:{port}"):
        await until(lambda: _answers("127.0.0.1", port, socket.AF_INET))
        assert "200 OK" in await _get(port, "/healthz")
        assert "waiting for the API server at http" in await _get(port, "/readyz")
        await asyncio.sleep(3.0)
        await playground.faults.come_back()
        await until(lambda: bound(playground).total() == 1)


async def test_it_listens_at_the_configured_address(playground: Playground) -> None:
    with socket.socket(socket.AF_INET6) as free:
        free.bind(("::1", 0))
        port = free.getsockname()[1]
    async with scheduler(playground, listen=f"[::1]:{port}"):
        await until(lambda: _answers("::1", port))


def _answers(host: str, port: int, family: int = socket.AF_INET6) -> bool:
    with socket.socket(family) as client:
        return client.connect_ex((host, port)) == 0


async def _get(port: int, path: str) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    reply = await asyncio.wait_for(reader.read(), PATIENCE_S)
    writer.close()
    return reply.decode()


def _command(kubeconfig: Path) -> Forked:
    return Forked("scheduler", "--kubeconfig", str(kubeconfig), "--no-recording", "--listen", "")


async def _ended(process: Forked) -> tuple[int, list[str]]:
    """The exit code, and the lines on stderr that are no log lines."""
    code = await process.ended()
    return code, [line for line in process.stderr.splitlines() if " dovetail." not in line]


@pytest.mark.slow
async def test_sigterm_is_no_error_and_a_stolen_lease_is_one_clear_line(playground: Playground, tmp_path: Path) -> None:
    kubeconfig = playground.kubeconfig(tmp_path / "config")
    put_node(playground, "a")
    first = _command(kubeconfig)
    await until(lambda: bool(holder(playground)))
    first.send_signal(signal.SIGTERM)
    assert await _ended(first) == (0, [])
    assert holder(playground) == ""
    second = _command(kubeconfig)
    await until(lambda: bool(holder(playground)))
    steal_lease(playground)
    code, stated = await _ended(second)
    assert code == 1
    assert len(stated) == 1
    assert stated[0].startswith("Error: ")
    assert "the lease was lost" in stated[0]


async def test_a_server_that_cannot_be_used_is_one_clear_line(tmp_path: Path) -> None:
    server = hint = "ftp://example.org"
    kubeconfig = tmp_path / "config"
    clusters = [{"name": "c", "cluster": {"server": server}}]
    contexts = [{"name": "x", "context": {"cluster": "c", "user": "u"}}]
    document = {
        "clusters": clusters,
        "contexts": contexts,
        "users": [{"name": "u", "user": {}}],
        "current-context": "x",
    }
    kubeconfig.write_text(json.dumps({"apiVersion": "v1", "kind": "Config", **document}))
    code, stated = await _ended(_command(kubeconfig))
    assert code == 1
    assert len(stated) == 1
    assert stated[0].startswith("Error: ")
    assert hint in stated[0]
