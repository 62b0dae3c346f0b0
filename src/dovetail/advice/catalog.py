# SPDX-License-Identifier: Apache-2.0
"""Models that come with Dovetail: the sizes of their layers, with where they are from, under which licence the model
is, and when it was published. Only such facts of the published config.json are kept, and only those that are read."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from typing import Any

import msgspec
from msgspec import Struct

_NEAR = 3


class CatalogEntry(Struct, frozen=True):
    """`source` is the repository on Hugging Face, `licence` that of the model, `date` the month of its publication."""

    name: str
    source: str
    licence: str
    date: str
    config: dict[str, Any]


@cache
def entries() -> tuple[CatalogEntry, ...]:
    return msgspec.json.decode((files(__package__) / "models.json").read_bytes(), type=tuple[CatalogEntry, ...])


def find(name: str) -> CatalogEntry | None:
    """By its name or its repository; case does not matter."""
    wanted = name.casefold()
    return next((one for one in entries() if wanted in (one.name, one.source.casefold())), None)


def near(name: str) -> Sequence[str]:
    """Names that look like this one."""
    short = name.rpartition("/")[2].casefold()
    names = [one.name for one in entries()]
    return (
        get_close_matches(short, names, _NEAR) or [one for one in names if short and one.startswith(short[:4])][:_NEAR]
    )
