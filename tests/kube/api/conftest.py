# SPDX-License-Identifier: Apache-2.0
"""A client aimed at a collection of pods, both in this process."""

from collections.abc import AsyncIterator

import pytest

from dovetail.kube.api.client import Client
from dovetail.kube.api.config import ClusterConfig
from tests.kube.api.fake_server import Collection, serve


@pytest.fixture
async def collection() -> Collection:
    return Collection()


@pytest.fixture
async def client(collection: Collection) -> AsyncIterator[Client]:
    async with serve(collection.handle) as url, Client(ClusterConfig(url), jitter=lambda: 0.0) as client:
        yield client
