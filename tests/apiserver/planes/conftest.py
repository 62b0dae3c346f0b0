# SPDX-License-Identifier: Apache-2.0
"""A host with planes, and clients of them."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import pytest

from dovetail.apiserver.planes.host import HostOptions, PlaneHost
from tests.contract.api import Api

Client = Callable[..., Awaitable[Api]]


@pytest.fixture
async def host(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[PlaneHost]:
    """A host; `pytest.mark.parametrize("host", [HostOptions(...)], indirect=True)` sets its options."""
    host = PlaneHost(tmp_path / "planes", getattr(request, "param", HostOptions()))
    await host.start()
    yield host
    await host.stop()


@pytest.fixture
async def client(host: PlaneHost) -> AsyncIterator[Client]:
    """Makes a plane if needed, and a client of it with a token of its own, or with the one that is passed."""
    async with AsyncExitStack() as stack:

        async def made(name: str = "one", namespace: str = "team", token: str | None = None) -> Api:
            await host.create(namespace, name)
            token = await host.issue_token(namespace, name) if token is None else token
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            session = await stack.enter_async_context(aiohttp.ClientSession(headers=headers))
            return Api(session, "default", host.url_of(namespace, name))

        yield made
