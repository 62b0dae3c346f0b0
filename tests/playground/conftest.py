# SPDX-License-Identifier: Apache-2.0
"""A playground of its own for each test, and a client for it."""

from collections.abc import AsyncIterator

import aiohttp
import pytest

from dovetail.playground import Playground
from tests.contract.api import Api


@pytest.fixture
async def playground() -> AsyncIterator[Playground]:
    playground = Playground(history=50, bookmark_interval_s=0.05, start_delay_s=0.01, stop_delay_s=0.01)
    await playground.start()
    yield playground
    await playground.stop()


@pytest.fixture
async def api(playground: Playground) -> AsyncIterator[Api]:
    async with aiohttp.ClientSession(playground.url) as session:
        yield Api(session, "default")
