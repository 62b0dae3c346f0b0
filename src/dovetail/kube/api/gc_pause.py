# SPDX-License-Identifier: Apache-2.0
"""A rest of the garbage collector while many objects are read: it would walk the growing heap again and again."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_pauses: list[bool] = []


@contextmanager
def gc_paused(*, kept: bool = False) -> Iterator[None]:
    """No garbage collection inside; nests, also across tasks. `kept`: what is there at the end is left out of all later
    collections. The first of them, and the one at the end of the process, would walk over all of it; that is for a
    command whose process ends then."""
    _pauses.append(gc.isenabled())
    gc.disable()
    try:
        yield
    finally:
        if kept:
            gc.freeze()
        # Only the first pause knows what to go back to, and it is the last to leave the list.
        if _pauses.pop() and not _pauses:
            gc.enable()
