# SPDX-License-Identifier: Apache-2.0
"""What was noted while an object was read, and no decision reads."""

from __future__ import annotations

from msgspec import Struct


class ReadNotes(Struct, frozen=True):
    """Of one object. `origin` is, for a node, the kind of the object that describes its GPUs: `labels` where these do,
    "" where nothing does. `findings` are sentences about values that are not used, or differ between two objects."""

    origin: str = ""
    findings: tuple[str, ...] = ()
