# SPDX-License-Identifier: Apache-2.0
"""A model's side of the tools, without a transport: calls on the virtual clock of a broker in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from dovetail.core.bargaining.types import Plane as PlaneRecord
from dovetail.plane import AgentRequest, FakeBroker, Option, Plane
from dovetail.plane.fake import FaultScript
from dovetail.plane.mcp.answers import ToolAnswer
from dovetail.plane.mcp.session import AgentSession
from dovetail.plane.mcp.tools import call

MINUTE = 60_000
SECOND = 1_000


class Model:
    """Calls tools by name, and keeps all answers."""

    def __init__(self, broker: FakeBroker, session: AgentSession) -> None:
        self.broker = broker
        self.session = session

    async def call(self, tool: str, **arguments: Any) -> ToolAnswer:
        return await self.broker.run(call(self.session, tool, arguments))

    async def works(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """The content of an answer that is no error."""
        found = await self.call(tool, **arguments)
        assert not found.failed, found.text
        return found.content

    async def fails(self, tool: str, **arguments: Any) -> dict[str, str]:
        """The error."""
        found = await self.call(tool, **arguments)
        assert found.failed, found.text
        error: Any = found.content["error"]
        assert set(error) == {"code", "what", "field", "next"} and error["what"] and error["next"]
        assert error["code"] in found.text and error["next"] in found.text
        return dict(error)

    async def granted(self, **option: Any) -> str:
        """The id of a lease of one option."""
        asked = await self.works("ask", options=[option], firm=True)
        assert asked["state"] == "held", asked
        return str(asked["request"])


@asynccontextmanager
async def model(
    gpus: int = 8,
    *,
    planes: Sequence[PlaneRecord] = (),
    grace_ms: int = MINUTE,
    changed: Callable[[], None] = lambda: None,
    faults: FaultScript | None = None,
) -> AsyncIterator[Model]:
    """A model with the plane team/a on a node n0."""
    broker = FakeBroker({"n0": gpus}, planes=planes, grace_ms=grace_ms, faults=faults)
    async with Plane(broker, "team/a") as plane, AgentSession(plane, changed, broker.clock) as session:
        await broker.advance(100)
        yield Model(broker, session)


@asynccontextmanager
async def occupied(broker: FakeBroker, gpus: int, minutes: float) -> AsyncIterator[None]:
    """Another agent holds so many GPUs while the block runs, for so long at most."""
    async with Plane(broker, "other/o") as other:
        await broker.run(other.negotiate(AgentRequest(options=(Option(gpus=gpus, minutes=minutes),), firm=True)))
        yield
