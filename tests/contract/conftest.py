# SPDX-License-Identifier: Apache-2.0
"""One API, four servers: the playground in memory and on a SQLite file, the control plane of a software agent, and a
real kube-apiserver with its controllers.

Every test that takes `api` runs on all, in a namespace of its own; on an agent's plane those of `AGENT` alone, as it
serves fewer kinds. Nodes that pods are bound to do not exist, so that
no kubelet, simulated or not, takes part.
"""

import base64
import contextlib
import ssl
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
import yaml

from dovetail.apiserver.planes.host import HostOptions, PlaneHost
from dovetail.apiserver.planes.limits import PlaneLimits
from dovetail.playground import Playground
from tests.contract.api import Api

AGENT = {"test_apply", "test_lists", "test_objects", "test_pods", "test_watches"}
"""Modules whose tests run on an agent's plane, but for those of UNSERVED."""
UNSERVED = {
    "test_elements_of_lists_with_keys_have_owners": "Deployments",
    "test_a_missing_resource_of_a_served_group_is_a_status": "the group apps",
    "test_versions_of_a_group_show_the_same_object": "scheduling.k8s.io/v1alpha3",
    "test_priority_comes_from_the_class": "PriorityClasses",
}
"""Tests of what an agent's plane does not serve."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leaves out what an agent's plane does not serve."""
    items[:] = [item for item in items if not _unserved(item)]


def _unserved(item: pytest.Item) -> bool:
    name = getattr(item, "originalname", "")
    on_agent = "[agent" in item.name and item.path.parent == Path(__file__).parent
    return on_agent and (item.path.stem not in AGENT or name in UNSERVED)


@pytest.fixture(params=["playground", "sqlite", "agent", pytest.param("plane", marks=pytest.mark.plane)])
def server(request: pytest.FixtureRequest) -> str:
    """Which server the test runs on."""
    return request.param


@pytest.fixture
async def api(server: str, request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Api]:
    namespace = f"contract-{uuid.uuid4().hex[:12]}"
    async with contextlib.AsyncExitStack() as stack:
        connector: aiohttp.TCPConnector | None = None
        prefix, headers = "", {}
        if server == "agent":
            host = PlaneHost(tmp_path / "planes", HostOptions(limits=PlaneLimits(burst=10_000)))
            url = await host.start()
            stack.push_async_callback(host.stop)
            await host.create("team", "one")
            prefix = host.url_of("team", "one").removeprefix(url)
            headers = {"Authorization": f"Bearer {await host.issue_token('team', 'one')}"}
        elif server != "plane":
            file = tmp_path / "store.sqlite" if server == "sqlite" else None
            playground = Playground(bookmark_interval_s=0.2, file=file)
            url = await playground.start()
            stack.push_async_callback(playground.stop)
        else:
            plane = request.getfixturevalue("plane")
            url, connector = plane.url, aiohttp.TCPConnector(ssl=_admin(plane.kubeconfig, tmp_path))
        session = await stack.enter_async_context(aiohttp.ClientSession(url, connector=connector, headers=headers))
        api = Api(session, namespace, prefix)
        await api.create_namespace(namespace)
        if server == "plane":
            await _service_account(api)
        yield api


async def _service_account(api: Api) -> None:
    """Waits for what a real server wants before it takes pods."""
    async with api.watch(api.path("serviceaccounts"), fieldSelector="metadata.name=default") as events:
        await events.next()


def _admin(kubeconfig: Path, scratch: Path) -> ssl.SSLContext:
    config = yaml.safe_load(kubeconfig.read_text())
    authority = base64.b64decode(config["clusters"][0]["cluster"]["certificate-authority-data"]).decode()
    context = ssl.create_default_context(cadata=authority)
    user, pair = config["users"][0]["user"], scratch / "admin.pem"
    pair.write_bytes(b"".join(base64.b64decode(user[f"client-{part}-data"]) for part in ("certificate", "key")))
    context.load_cert_chain(pair)
    return context
