# SPDX-License-Identifier: Apache-2.0
"""Kubelets that rejected pods, and how long pods of the same owner stay away.

Rules: per owner, node and reason the first rejection keeps the owner's pods away for a minute, the second for ten, and
the third until the node changes: a controller that makes a new pod for each one that failed fails three at most there.
The owners are remembered whose pods were rejected last.
"""

from __future__ import annotations

from collections.abc import Iterator

from dovetail.core.cluster.rejection import Rejection

FOR_EVER_MS = 2**62
MOST_OWNERS = 1024
_BACKOFFS_MS = (60_000, 600_000, FOR_EVER_MS)


class Rejections:
    def __init__(self) -> None:
        self._of_owner: dict[str, dict[tuple[str, str], Rejection]] = {}

    def __bool__(self) -> bool:
        return bool(self._of_owner)

    def __iter__(self) -> Iterator[Rejection]:
        return (rejection for of_owner in self._of_owner.values() for rejection in of_owner.values())

    def add(self, owner: str, node: str, reason: str, now_ms: int) -> None:
        before = self._of_owner.get(owner, {}).get((node, reason))
        count = 1 if before is None else before.count + 1
        backoff_ms = _BACKOFFS_MS[min(count, len(_BACKOFFS_MS)) - 1]
        self.put(Rejection(owner, node, reason, count, min(FOR_EVER_MS, now_ms + backoff_ms)))

    def put(self, rejection: Rejection) -> None:
        of_owner = self._of_owner.pop(rejection.owner, {})
        of_owner[rejection.node, rejection.reason] = rejection
        self._of_owner[rejection.owner] = of_owner
        if len(self._of_owner) > MOST_OWNERS:
            del self._of_owner[next(iter(self._of_owner))]

    def nodes(self, owner: str, now_ms: int) -> dict[str, str]:
        """The nodes that pods of the owner stay away from, each with the reason."""
        of_owner = self._of_owner.get(owner)
        if of_owner is None:
            return {}
        return {one.node: one.reason for one in of_owner.values() if one.until_ms > now_ms}

    def forget_node(self, node: str) -> bool:
        """The node is another one now, or gone. Whether there was something to forget."""
        found = [rejection for rejection in self if rejection.node == node]
        for rejection in found:
            del self._of_owner[rejection.owner][node, rejection.reason]
            if not self._of_owner[rejection.owner]:
                del self._of_owner[rejection.owner]
        return bool(found)
