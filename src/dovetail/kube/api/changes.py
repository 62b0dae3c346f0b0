# SPDX-License-Identifier: Apache-2.0
"""One difference of a collection, whether a watch shows it or a file has the object. Needs no connection."""

from typing import Generic, Literal, TypeVar

from msgspec import Struct

T = TypeVar("T")


class Change(Struct, Generic[T], frozen=True):
    """One difference. For "deleted", `object` is the last state: as the server sent it, or where nobody was watching
    then, what was kept."""

    kind: Literal["added", "modified", "deleted"]
    object: T


def whole(object: T) -> T:
    """Everything of it is kept."""
    return object
