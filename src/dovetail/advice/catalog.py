# SPDX-License-Identifier: Apache-2.0
"""The built-in models: the sizes of their layers, with source, licence and date of publication. Of each published
config.json, only the fields that Dovetail reads are kept."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from typing import Any

from msgspec import Struct

from dovetail.core.json_text import decode_json

_NEAR = 3


class CatalogEntry(Struct, frozen=True):
    """`source` is the repository on Hugging Face, `licence` the licence of the model, `date` its month of
    publication."""

    name: str
    source: str
    licence: str
    date: str
    config: dict[str, Any]


@cache
def entries() -> tuple[CatalogEntry, ...]:
    return decode_json((files(__package__) / "models.json").read_bytes(), tuple[CatalogEntry, ...])


def find(name: str) -> CatalogEntry | None:
    """The entry of this name or repository, in any case."""
    wanted = name.casefold()
    return next((one for one in entries() if wanted in (one.name, one.source.casefold())), None)


def near(name: str) -> Sequence[str]:
    """Names that are similar to this one."""
    short = name.rpartition("/")[2].casefold()
    names = [one.name for one in entries()]
    return (
        get_close_matches(short, names, _NEAR) or [one for one in names if short and one.startswith(short[:4])][:_NEAR]
    )
