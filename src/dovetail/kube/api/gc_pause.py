# SPDX-License-Identifier: Apache-2.0
"""A rest of the garbage collector while many objects are read: it would walk the growing heap again and again."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_pauses: list[bool] = []


@contextmanager
def gc_paused() -> Iterator[None]:
    """No garbage collection inside; nests, also across tasks."""
    _pauses.append(gc.isenabled())
    gc.disable()
    try:
        yield
    finally:
        # Only the first pause knows what to go back to, and it is the last to leave the list.
        if _pauses.pop() and not _pauses:
            gc.enable()
