# SPDX-License-Identifier: Apache-2.0
"""One API, three servers: the playground in memory, the playground on a SQLite file, and a real kube-apiserver with its
controllers.

Every test that takes `api` runs on all, in a namespace of its own. Nodes that pods are bound to do not exist, so that
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

from dovetail.playground import Playground
from tests.contract.api import Api


@pytest.fixture(params=["playground", "sqlite", pytest.param("plane", marks=pytest.mark.plane)])
def server(request: pytest.FixtureRequest) -> str:
    """Which server the test runs on."""
    return request.param


@pytest.fixture
async def api(server: str, request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Api]:
    namespace = f"contract-{uuid.uuid4().hex[:12]}"
    async with contextlib.AsyncExitStack() as stack:
        connector: aiohttp.TCPConnector | None = None
        if server != "plane":
            file = tmp_path / "store.sqlite" if server == "sqlite" else None
            playground = Playground(bookmark_interval_s=0.2, file=file)
            url = await playground.start()
            stack.push_async_callback(playground.stop)
        else:
            plane = request.getfixturevalue("plane")
            url, connector = plane.url, aiohttp.TCPConnector(ssl=_admin(plane.kubeconfig, tmp_path))
        session = await stack.enter_async_context(aiohttp.ClientSession(url, connector=connector))
        api = Api(session, namespace)
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
