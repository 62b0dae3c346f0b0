# SPDX-License-Identifier: Apache-2.0
"""The process that serves endpoints and carries their pods, in step with the AgentControlPlanes of a cluster."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import ssl
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from dovetail.agentplanes.certificates import CertificateFiles, keep_fresh
from dovetail.agentplanes.credentials import SECRET, EndpointAddress, write_secret
from dovetail.agentplanes.facts import CarryLimits
from dovetail.agentplanes.serving import ServeOptions, run, wanted_planes
from dovetail.apiserver.objects import Object
from dovetail.apiserver.planes.host import PlaneHost
from dovetail.apiserver.planes.registry import PlaneName
from dovetail.kube.api.client import Client
from dovetail.kube.api.config import ClusterConfig
from dovetail.kube.objects.leases import AgentControlPlane, AgentControlPlaneSpec, LeaseMeta
from dovetail.plane.fake import FakeBroker
from dovetail.playground import Playground
from tests.agentplanes.on_cluster import new_address
from tests.agentplanes.world import NAME, NAMESPACE, job
from tests.apiserver.planes.certificates import self_signed
from tests.contract.api import Api
from tests.paths import ROOT
from tests.scheduler.scripted import until

PLANES = "agentcontrolplanes.dovetail.dev"
POD = {
    "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "mine"},
    "spec": {"containers": [{"name": "main", "image": "registry.example/none"}]},
}  # fmt: skip


@pytest.fixture
async def cluster() -> AsyncIterator[Playground]:
    playground = Playground(start_delay_s=0.0, stop_delay_s=0.0)
    await playground.start()
    playground.put(yaml.safe_load((ROOT / "deploy/crds/agentcontrolplane.yaml").read_text()))
    for namespace in (NAMESPACE, "agent-other"):
        playground.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    yield playground
    await playground.stop()


def put_plane(cluster: Playground, namespace: str = NAMESPACE, backend: str = "api") -> None:
    cluster.put({
        "apiVersion": "dovetail.dev/v1alpha1", "kind": "AgentControlPlane",
        "metadata": {"name": NAME, "namespace": namespace}, "spec": {"queue": "agents", "backend": backend},
    })  # fmt: skip


@contextlib.asynccontextmanager
async def serving(cluster: Playground, folder: Path, **options: Any) -> AsyncIterator[FakeBroker]:
    """The process, while the context lasts."""
    broker = FakeBroker({"node-0": 4})
    made = ServeOptions(folder=folder, address=new_address(), listen="", **options)
    task = asyncio.create_task(run(ClusterConfig(cluster.url), made, lambda _: broker))
    try:
        yield broker
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def secret(cluster: Playground, namespace: str = NAMESPACE) -> Object:
    """What the agent finds in its namespace; {} where there is none."""
    found = cluster.store.get("secrets", namespace, SECRET)
    return {key: base64.b64decode(value).decode() for key, value in (found or {}).get("data", {}).items()}


@contextlib.asynccontextmanager
async def agent(cluster: Playground, namespace: str = NAMESPACE) -> AsyncIterator[Api]:
    """A client with the kubeconfig of the Secret."""
    await until(lambda: bool(secret(cluster, namespace)))
    config = yaml.safe_load(secret(cluster, namespace)["kubeconfig"])
    token = config["users"][0]["user"]["token"]
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {token}"}) as session:
        yield Api(session, "default", config["clusters"][0]["cluster"]["server"])


async def test_an_agent_finds_its_endpoint_and_its_pods_run_on_the_host(cluster: Playground, tmp_path: Path) -> None:
    put_plane(cluster)
    put_plane(cluster, "agent-other", backend="namespace")
    async with serving(cluster, tmp_path), agent(cluster) as api:
        jobs = api.path("jobs", version="batch/v1")
        assert (await api.post(jobs, job("prepare", 0, None))).status == 201
        await until(lambda: len(cluster.store.list("pods")) == 1)
        (pod,) = cluster.store.list("pods")
        assert pod["metadata"]["namespace"] == NAMESPACE
        assert not secret(cluster, "agent-other")


async def test_of_two_agents_none_sees_the_other(cluster: Playground, tmp_path: Path) -> None:
    put_plane(cluster)
    put_plane(cluster, "agent-other")
    async with serving(cluster, tmp_path), agent(cluster) as one, agent(cluster, "agent-other") as two:
        assert (await one.post(one.path("pods"), POD)).status == 201
        await until(lambda: len(cluster.store.list("pods")) == 1)
        assert (await two.get(two.path("pods"))).body["items"] == []
        assert secret(cluster)["token"] != secret(cluster, "agent-other")["token"]
        headers = {"Authorization": f"Bearer {secret(cluster)['token']}"}
        other = f"{secret(cluster, 'agent-other')['server']}/api/v1/pods"
        async with aiohttp.ClientSession(headers=headers) as session, session.get(other) as reply:
            assert reply.status == 403


async def test_another_process_goes_on_and_the_token_stays_good(cluster: Playground, tmp_path: Path) -> None:
    put_plane(cluster)
    async with serving(cluster, tmp_path), agent(cluster) as api:
        await api.post(api.path("pods"), POD)
        await until(lambda: len(cluster.store.list("pods")) == 1)
        (before,), token = cluster.store.list("pods"), secret(cluster)["token"]
        server = secret(cluster)["server"]
    async with serving(cluster, tmp_path):
        await until(lambda: secret(cluster)["server"] != server)
        async with agent(cluster) as api:
            assert (await api.get(api.path("pods"))).names == ["mine"]
            # The address is another one here, so the Secret was written again.
            assert secret(cluster)["token"] != token
            (after,) = cluster.store.list("pods")
            assert after["metadata"]["uid"] == before["metadata"]["uid"]


async def test_a_deleted_plane_takes_its_pods_along_and_its_successor_finds_nothing(
    cluster: Playground, tmp_path: Path
) -> None:
    put_plane(cluster)
    async with serving(cluster, tmp_path):
        async with agent(cluster) as api:
            await api.post(api.path("pods"), POD)
            await until(lambda: len(cluster.store.list("pods")) == 1)
        cluster.delete(PLANES, NAMESPACE, NAME)
        await until(lambda: not cluster.store.list("pods"))
        await until(lambda: not secret(cluster))
        put_plane(cluster)
        async with agent(cluster) as api:
            assert (await api.get(api.path("pods"))).names == []


async def test_a_plane_that_was_replaced_meanwhile_finds_nothing(cluster: Playground, tmp_path: Path) -> None:
    put_plane(cluster)
    async with serving(cluster, tmp_path), agent(cluster) as api:
        await api.post(api.path("pods"), POD)
        await until(lambda: len(cluster.store.list("pods")) == 1)
    cluster.delete(PLANES, NAMESPACE, NAME)
    put_plane(cluster)
    async with serving(cluster, tmp_path):
        await until(lambda: not cluster.store.list("pods"))
        async with agent(cluster) as api:
            assert (await api.get(api.path("pods"))).names == []


async def test_a_plane_that_is_gone_meanwhile_is_removed(cluster: Playground, tmp_path: Path) -> None:
    put_plane(cluster)
    async with serving(cluster, tmp_path), agent(cluster) as api:
        await api.post(api.path("pods"), POD)
        await until(lambda: len(cluster.store.list("pods")) == 1)
    cluster.delete(PLANES, NAMESPACE, NAME)
    async with serving(cluster, tmp_path):
        await until(lambda: not cluster.store.list("pods"))
        await until(lambda: not list(tmp_path.glob("[0-9a-f]*.sqlite")))


async def test_the_secret_is_made_again_where_its_token_is_not_good(cluster: Playground, tmp_path: Path) -> None:
    planes, name = PlaneHost(tmp_path), PlaneName(NAMESPACE, NAME)
    await planes.start()
    await planes.create(*_parts(name), "uid")
    address = EndpointAddress("https://planes.example", "PEM")
    async with Client(ClusterConfig(cluster.url)) as client:
        assert await write_secret(client, planes, name, "uid", address)
        first = secret(cluster)
        assert first["server"] == f"https://planes.example/planes/{NAMESPACE}/{NAME}" and first["ca.crt"] == "PEM"
        assert planes.owns(*_parts(name), first["token"])
        assert not await write_secret(client, planes, name, "uid", address)
        await planes.revoke_tokens(*_parts(name))
        assert await write_secret(client, planes, name, "uid", address)
        cluster.delete("secrets", NAMESPACE, SECRET)
        assert await write_secret(client, planes, name, "uid", address)
        assert not planes.owns(*_parts(name), first["token"])
        moved = EndpointAddress("https://elsewhere.example", "PEM")
        assert await write_secret(client, planes, name, "uid", moved)
        assert secret(cluster)["server"].startswith("https://elsewhere.example/")
    await planes.stop()


def _parts(name: PlaneName) -> tuple[str, str]:
    return name.namespace, name.name


def _plane(name: str, day: int, backend: str = "api", **spec: str) -> tuple[tuple[str, str], AgentControlPlane]:
    created = datetime(2026, 1, day, tzinfo=UTC)
    meta = LeaseMeta(name=name, namespace="team", uid=f"uid-{name}", creation_timestamp=created)
    return ("team", name), AgentControlPlane(meta, AgentControlPlaneSpec(backend=backend, **spec))


def test_of_a_namespace_the_oldest_plane_is_served() -> None:
    options = ServeOptions(folder=Path())
    known = dict([_plane("b", 1), _plane("a", 2)])
    assert wanted_planes(known, options).keys() == {PlaneName("team", "b")}
    assert wanted_planes(dict([_plane("b", 1, "namespace"), _plane("a", 2)]), options) == {}
    assert wanted_planes(known, ServeOptions(folder=Path(), plane="team/a")) == {}


def test_grace_and_heartbeat_are_those_of_the_plane() -> None:
    limits = CarryLimits(pods=3)
    options = ServeOptions(folder=Path(), limits=limits)
    (plane,) = wanted_planes(dict([_plane("a", 1, grace="30s", heartbeat="5s")]), options).values()
    assert (plane.target.most_grace_s, plane.heartbeat_ms, plane.limits) == (30, 5000, limits)
    (plane,) = wanted_planes(dict([_plane("a", 1, grace="never", heartbeat="0s")]), options).values()
    assert (plane.target.most_grace_s, plane.heartbeat_ms) == (120, 10_000)


async def test_a_certificate_that_is_replaced_is_in_force_at_once(tmp_path: Path) -> None:
    self_signed(tmp_path)
    pair = tmp_path / "pair.pem"
    files = CertificateFiles(pair, pair)
    context = files.context()
    server = await asyncio.start_server(lambda _, w: w.close(), "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]

    async def shown() -> str:
        return await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", port))

    task = asyncio.create_task(keep_fresh(files, context, 0.01))
    first = await shown()
    pair.write_text("no certificate")
    await asyncio.sleep(0.05)
    assert await shown() == first
    _, pem = self_signed(tmp_path)
    for _ in range(500):
        if await shown() != first:
            break
        await asyncio.sleep(0.01)
    assert ssl.PEM_cert_to_DER_cert(await shown()) == ssl.PEM_cert_to_DER_cert(pem.decode())
    task.cancel()
    server.close()
