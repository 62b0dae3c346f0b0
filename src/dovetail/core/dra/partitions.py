# SPDX-License-Identifier: Apache-2.0
"""The loss of a partitioned GPU by each of its partitions, as drivers describe them: by counters.

Rules: partitions that consume the same counters are parts of one card, by any vendor. Partitions that consume equal
amounts, of whichever counters, serve the same requests. The share of a card that a partition takes is the largest of
its parts of the counters that all partitions of the card consume. All sets that the counters allow are computed once
for all equal cards. The result is empty for a node with a card of more than 20,000 sets, with a card without a common
counter, or with shared partitions: the losses of its cards could not be compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from msgspec import Struct

from dovetail.core.devices.mig.worth import worths

Uses = tuple[tuple[int, int], ...]
"""What a partition consumes: (index of the counter, amount)."""
_CARD_MILLI = 1000
_MOST_PARTITIONS = 62
_MOST_STATES = 20_000


class PartitionedGpu(Struct, frozen=True, eq=False):
    """`members` are the devices of a node that are its partitions, ascending; `worths` is by the set of those that are
    taken, as bits in that order."""

    members: tuple[int, ...]
    worths: dict[int, int]
    most: int
    """How much more an idle card is worth than the state that is worth least."""

    def loss(self, taken: int, device: int) -> int | None:
        """The loss of worth once the device is taken, too; None where the partitions cannot coexist."""
        state = sum(1 << i for i, member in enumerate(self.members) if taken >> member & 1)
        before, after = self.worths.get(state), self.worths.get(state | 1 << self.members.index(device))
        return None if before is None or after is None else before - after


def cards_of(uses: Sequence[Uses], counters: Sequence[int], shareable: int) -> dict[int, PartitionedGpu]:
    """The card of each partition of a node; empty where it is not determined. `uses` and `shareable` are by device,
    `counters` has the amount of each counter."""
    users: dict[int, list[int]] = {}
    for device, own in enumerate(uses):
        for counter, _ in own:
            users.setdefault(counter, []).append(device)
    cards: dict[int, PartitionedGpu] = {}
    seen: set[int] = set()
    for device, own in enumerate(uses):
        if not own or device in seen:
            continue
        found, todo = {device}, [device]
        while todo:
            for counter, _ in uses[todo.pop()]:
                todo += [other for other in users[counter] if other not in found]
                found.update(users[counter])
        seen |= found
        members = tuple(sorted(found))
        if len(members) > _MOST_PARTITIONS or any(shareable >> member & 1 for member in members):
            return {}
        number = {counter: i for i, counter in enumerate(sorted({c for member in members for c, _ in uses[member]}))}
        table = _worths(
            tuple(tuple((number[counter], amount) for counter, amount in uses[member]) for member in members),
            tuple(counters[counter] for counter in number),
        )
        if table is None:
            return {}
        cards.update(dict.fromkeys(members, PartitionedGpu(members, table, table[0] - min(table.values()))))
    return cards


@lru_cache(maxsize=64)
def _worths(partitions: tuple[Uses, ...], counters: tuple[int, ...]) -> dict[int, int] | None:
    common = set(range(len(counters))).intersection(*(dict(own) for own in partitions))
    if not common or not all(counters[counter] for counter in common):
        return None
    legal = _legal(partitions, counters)
    if legal is None:
        return None
    kinds: dict[tuple[int, ...], int] = {}
    for i, own in enumerate(partitions):
        amounts = tuple(sorted(amount for _, amount in own))
        kinds[amounts] = kinds.get(amounts, 0) | 1 << i
    firsts = [dict(partitions[(own & -own).bit_length() - 1]) for own in kinds.values()]
    shares = [max(min(_CARD_MILLI * own[i] // counters[i], _CARD_MILLI) for i in common) for own in firsts]
    return worths(legal, list(kinds.values()), shares, [1] * len(kinds))


def _legal(partitions: tuple[Uses, ...], counters: tuple[int, ...]) -> list[int] | None:
    """All sets of partitions that the counters allow; None: too many."""
    legal, todo = [0], [(0, 0, counters)]
    while todo:
        state, begin, left = todo.pop()
        for i in range(begin, len(partitions)):
            if all(left[counter] >= amount for counter, amount in partitions[i]):
                if len(legal) >= _MOST_STATES:
                    return None
                rest = list(left)
                for counter, amount in partitions[i]:
                    rest[counter] -= amount
                legal.append(state | 1 << i)
                todo.append((state | 1 << i, i + 1, tuple(rest)))
    return legal
