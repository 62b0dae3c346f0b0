# SPDX-License-Identifier: Apache-2.0
"""The server-sent events of a viewer: which of its pages have changed, and which are not answered.

Rules
- An event names pages and their versions; the viewer reads them then, packed once for all. So a slow viewer has at most
  one event before it, whatever happens in the cluster.
- The id of an event is that of the board and the newest version. A viewer that comes back with it hears of what it
  has missed, and one that comes back to another board of all its pages.
- A user has MOST_OF_A_TOKEN streams of MOST_TOPICS pages, and there are MOST_STREAMS of all.
- A sign of life each ALIVE_S has the time of this machine: a viewer knows the age of what it shows whatever its own
  clock is. Before each the right to see is checked again; `refused` ends the stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress

import msgspec
from msgspec import Struct
from sse_starlette import ServerSentEvent

from dovetail.dashboard.board import PageBoard, Topic, Unanswered, Viewer
from dovetail.kube.api.reviews import Refusal

ALIVE_S = 5.0
MOST_TOPICS = 8
MOST_STREAMS = 512
MOST_OF_A_TOKEN = 32


class _News(Struct, frozen=True, rename="camel"):
    """By path the versions of the pages that have changed, and why and since when others are not answered."""

    now_ms: int
    source: str
    changed: dict[str, int]
    silent: dict[str, Unanswered]


async def events_of(
    board: PageBoard, topics: frozenset[Topic], last_id: str, may: Callable[[], Awaitable[Refusal | None]],
    user: str = "",
) -> AsyncGenerator[ServerSentEvent, None]:  # fmt: skip
    """The events for a viewer of this user, until the viewer goes, may not see the pages any more, or the board is
    closed."""
    of, _, number = last_id.rpartition("-")
    version = int(number) if of == board.id and number.isdecimal() and len(number) < 16 else 0
    viewer = Viewer(topics, user)
    board.add(viewer)
    try:
        while not board.closed:
            viewer.heard.clear()
            found = board.changed_since(topics, version)
            version = max((one for _, one in found), default=version)
            changed = {topic.path: one for topic, one in found}
            news = _News(board.clock_ms(), board.source.name, changed, board.silences(topics))
            yield ServerSentEvent(msgspec.json.encode(news).decode(), event="news", id=f"{board.id}-{version}")
            with suppress(TimeoutError):
                async with asyncio.timeout(ALIVE_S):
                    await viewer.heard.wait()
                    continue
            refused = await may()
            if refused is not None:
                yield ServerSentEvent(refused[1], event="refused")
                return
    finally:
        board.remove(viewer)
