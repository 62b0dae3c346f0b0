# SPDX-License-Identifier: Apache-2.0
"""The official SDK's server around one agent's session.

Rules
- One server is one agent: all its connections see the same requests and leases.
- What a model must hear comes in the next answer in any case. Clients that listen are notified at once: the resource
  RESOURCE is updated, by `subscriptions/listen` (2026-07-28) and by `resources/subscribe` (before).
- Arguments are checked by `arguments`, so that each error is an answer that the model can read.
Source: Model Context Protocol, revisions 2025-11-25 and 2026-07-28.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import mcp_types as types
from mcp import MCPError
from mcp.server import Server, ServerRequestContext
from mcp.server.session import ServerSession
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ResourceUpdated

from dovetail import __version__
from dovetail.plane.agent_plane import AgentPlane
from dovetail.plane.mcp.answers import ToolAnswer
from dovetail.plane.mcp.quoting import clean
from dovetail.plane.mcp.session import AgentSession
from dovetail.plane.mcp.tools import INSTRUCTIONS, TOOLS, call, leases_now

RESOURCE = "dovetail://leases"
MOST_LISTENERS = 64
_Context = ServerRequestContext[Any, Any]


class AgentServer:
    """The tools of a plane, for the transports of the SDK (`sdk`). Use it as `async with`, inside that of the plane."""

    def __init__(self, plane: AgentPlane) -> None:
        self.session = AgentSession(plane, self._changed)
        self._bus = InMemorySubscriptionBus()
        self._subscribed: dict[str, ServerSession] = {}
        """By connection."""
        self._notifying: set[asyncio.Task[None]] = set()
        self.sdk: Server[Any] = Server(
            "dovetail",
            version=__version__,
            title="Dovetail: leases of GPUs",
            instructions=INSTRUCTIONS,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            on_list_resources=self._list_resources,
            on_read_resource=self._read_resource,
            on_subscribe_resource=self._subscribe,
            on_unsubscribe_resource=self._unsubscribe,
            on_subscriptions_listen=ListenHandler(
                self._bus, max_subscriptions=MOST_LISTENERS, max_buffered_events=MOST_LISTENERS
            ),
        )

    async def __aenter__(self) -> AgentServer:
        await self.session.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self.session.__aexit__(*error)
        for task in self._notifying:
            task.cancel()

    async def _list_tools(
        self, context: _Context, params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        return types.ListToolsResult(
            tools=[
                types.Tool(
                    name=tool.name,
                    title=tool.title,
                    description=tool.description,
                    input_schema=tool.schema,
                    annotations=types.ToolAnnotations(
                        read_only_hint=tool.reads,
                        destructive_hint=tool.name in ("give_back", "withdraw"),
                        idempotent_hint=tool.repeatable,
                        open_world_hint=False,
                    ),
                )
                for tool in TOOLS.values()
            ]
        )

    async def _call_tool(self, context: _Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        return _result(await call(self.session, params.name, params.arguments or {}))

    async def _list_resources(
        self, context: _Context, params: types.PaginatedRequestParams | None
    ) -> types.ListResourcesResult:
        about = "What is held, and what must be done now. Updated when a lease is revoked, ends soon, or is over."
        resource = types.Resource(
            uri=RESOURCE, name="leases", title="Leases", description=about, mime_type="application/json"
        )
        return types.ListResourcesResult(resources=[resource])

    async def _read_resource(
        self, context: _Context, params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        _require(params.uri)
        text = json.dumps(leases_now(self.session).content, ensure_ascii=False)
        contents = types.TextResourceContents(uri=RESOURCE, mime_type="application/json", text=text)
        return types.ReadResourceResult(contents=[contents])

    async def _subscribe(self, context: _Context, params: types.SubscribeRequestParams) -> types.EmptyResult:
        _require(params.uri)
        self._subscribed.pop(_connection(context), None)
        if len(self._subscribed) >= MOST_LISTENERS:
            # A connection that has ended is not reported: the oldest makes room.
            del self._subscribed[next(iter(self._subscribed))]
        self._subscribed[_connection(context)] = context.session
        return types.EmptyResult()

    async def _unsubscribe(self, context: _Context, params: types.UnsubscribeRequestParams) -> types.EmptyResult:
        _require(params.uri)
        self._subscribed.pop(_connection(context), None)
        return types.EmptyResult()

    def _changed(self) -> None:
        task = asyncio.create_task(self._notify())
        self._notifying.add(task)
        task.add_done_callback(self._notifying.discard)

    async def _notify(self) -> None:
        await self._bus.publish(ResourceUpdated(RESOURCE))
        sends = [session.send_resource_updated(RESOURCE) for session in self._subscribed.values()]
        await asyncio.gather(*sends, return_exceptions=True)


def _result(answer: ToolAnswer) -> types.CallToolResult:
    text = types.TextContent(type="text", text=answer.text)
    return types.CallToolResult(content=[text], structured_content=answer.content, is_error=answer.failed)


def _connection(context: _Context) -> str:
    """The session of HTTP; "" on stdio, which has one connection."""
    headers = getattr(context.request, "headers", None)
    return headers.get("mcp-session-id", "") if headers is not None else ""


def _require(uri: str) -> None:
    if uri != RESOURCE:
        raise MCPError(types.INVALID_PARAMS, f"no resource {json.dumps(clean(uri))}; there is {RESOURCE}")
