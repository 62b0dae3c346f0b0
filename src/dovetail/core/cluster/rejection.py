# SPDX-License-Identifier: Apache-2.0
"""That a kubelet rejected pods, as it is in checkpoints (`rejections` is what follows from it)."""

from __future__ import annotations

from msgspec import Struct


class Rejection(Struct, frozen=True):
    """How often the node rejected pods of the owner for the reason, and until when they stay away."""

    owner: str
    node: str
    reason: str
    count: int
    until_ms: int
