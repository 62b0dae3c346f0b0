# SPDX-License-Identifier: Apache-2.0
"""Types that are read from files are not in compiled modules, where mypyc leaves nothing of the types of fields."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args, get_type_hints

import msgspec

from dovetail.__native__ import COMPILED
from dovetail.core.checkpoint import Checkpoint
from dovetail.core.decisions import Decision
from dovetail.core.events import Event
from dovetail.core.mark_types import FairShareDivision, NextMark, QueuePlace
from dovetail.core.policy import Policy


def _read(hint: Any, known: set[type]) -> Iterator[type]:
    """The classes of which values of this type may be."""
    for one in get_args(hint):
        yield from _read(one, known)
    if isinstance(hint, type) and hint.__module__.startswith("dovetail.") and hint not in known:
        known.add(hint)
        yield hint
        for field in get_type_hints(hint).values() if issubclass(hint, msgspec.Struct) else ():
            yield from _read(field, known)


def test_what_is_read_from_files_is_not_of_compiled_modules() -> None:
    read = set(_read(tuple[Checkpoint, Event, Decision, Policy], set()))
    assert {FairShareDivision, NextMark, QueuePlace} < read
    compiled = {f"dovetail.{name}" for name in COMPILED}
    assert not {one for one in read if one.__module__ in compiled and issubclass(one, msgspec.Struct)}
