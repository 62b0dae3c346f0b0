# SPDX-License-Identifier: Apache-2.0
"""Texts that go into objects: the API server counts them in bytes of UTF-8, and refuses what is too long."""

from __future__ import annotations

NOTE_BYTES = 1024
"""Longest note that events.k8s.io/v1 accepts (pkg/apis/core/validation/events.go counts bytes)."""
MESSAGE_BYTES = 4096
"""Of a condition, where we could write as much as we like: more is nothing that anybody reads. `dovetail why` prints it
all. The definitions of Queue and GPUNode take as much: a status that is refused would lose a queue's history."""
_ELLIPSIS = " ..."


def clipped(text: str, most_bytes: int) -> str:
    """The text, or as much of its beginning as fits with an ellipsis into so many bytes; no character is cut."""
    if len(text) * 4 <= most_bytes:
        return text
    data = text.encode()
    if len(data) <= most_bytes:
        return text
    return data[: most_bytes - len(_ELLIPSIS)].decode(errors="ignore") + _ELLIPSIS
