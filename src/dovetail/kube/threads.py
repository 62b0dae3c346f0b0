# SPDX-License-Identifier: Apache-2.0
"""Work in a thread that nothing overtakes: a caller that is cancelled waits for it first.

A thread cannot be cancelled. Where its caller goes on before it, the caller's cleanup closes what the thread uses, and
the lock that kept other work away is free while the work goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
log = logging.getLogger(__name__)


async def run_to_end(work: Callable[[], T]) -> T:
    """What `work` returns in a thread. Raises what it raises, and CancelledError only once it has ended, however often
    the caller is cancelled meanwhile."""
    # Not asyncio.to_thread: the end of the event loop would cancel such a task itself.
    doing = asyncio.get_running_loop().run_in_executor(None, work)
    try:
        return await asyncio.shield(doing)
    except asyncio.CancelledError:
        while not doing.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([doing])
        if (error := doing.exception()) is not None:
            log.warning("work that its caller did not wait for has failed: %s", error)
        raise
