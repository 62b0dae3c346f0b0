# SPDX-License-Identifier: Apache-2.0
"""Share of served requests for MIG instances on GPUs that are partitioned on demand, by policy.

    python benchmarks/mig_packing.py [--geometry A100-80GB] [--cards 32] [--seeds 10] [--loads 0.8 ...]

An instance is created at any placement that the card's profile table allows beside the running instances. It is
destroyed when its request ends, as with partitionable devices (DRA). Every policy serves each request that fits
anywhere; the others are refused and do not come again. Mixes are shares of the plain profiles, from the smallest to the
largest.

`load`: requests with exponential interarrival and run times. The load is the requested share of all cards; a request
counts the scarcer of its compute and memory slices. The cards start idle: 4 mean run times are warm-up, 12 are
measured. `fill`: no request ends, and requests come until they add up to 130 % of the cards; the table also has the
requested share at the first refusal.

`small` compares with the exact optimum: 2 cards, 12 requests at a load of 1.2. The optimum knows all requests in
advance and may refuse requests that fit. Dynamic programming over the states of both cards finds it.

Policies: the first card with room and its lowest placement (`first-fit`); the card with the least room and its lowest
placement (`best-fit`); the placement that increases the fragmentation of the card least (`mfi`, the idea of arXiv
2511.18906: the slices of each partly occupied placement, of profiles for which the free slices would suffice); the card
with the least room and there the placement that the scheduler prefers (`best-fit+`); the scheduler's policy, the card
and placement of least worth (`dovetail`, `core.devices.mig.worth`). The first card wins ties.
"""

from __future__ import annotations

import argparse
import heapq
import json
import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import accumulate, product

from msgspec import Struct
from msgspec.structs import asdict

from dovetail.core.devices.mig.geometry import Geometry, bits_of
from dovetail.core.devices.mig.instances import equal_weights, starts_of, states
from dovetail.core.devices.mig.products import of_product
from dovetail.core.devices.mig.slices import slices, taken

MIXES = {
    "uniform": (1, 1, 1, 1, 1, 1),
    "small": (30, 25, 20, 10, 10, 5),
    "big": (5, 10, 10, 20, 25, 30),
    "bimodal": (30, 15, 5, 5, 15, 30),
}
STREAMS = ["load", "fill", "small"]
LOADS = (0.8, 0.9, 1.0, 1.1, 1.2, 1.3)
WARM, MEASURED = 4.0, 12.0
"""Length of the warm-up and of the measurement, in mean run times."""
FILLED = 1.3
SMALL_CARDS, SMALL_REQUESTS, SMALL_LOAD = 2, 12, 1.2

Key = tuple[int, ...]
Policy = Callable[[int, int], tuple[Key, int]]
"""(state of a card, state after) -> the keys to minimize: over the cards, and over the placements on a card."""


class Asked(Struct, frozen=True):
    """A request for the profile with that number, and its start and end in mean run times."""

    profile: int
    begin: float
    end: float


class Row(Struct, frozen=True):
    """`accepted_percent` is the share of served requests, and of their slices. `first_refusal_percent` is the requested
    share of all cards at the first refusal; 0 if not measured."""

    stream: str
    mix: str
    load: float
    policy: str
    seed: int
    accepted_percent: float
    slices_percent: float
    first_refusal_percent: float = 0


def plain_profiles(geometry: Geometry) -> list[int]:
    """The profiles without media extensions or graphics, from the smallest to the largest."""
    found = [i for i, own in enumerate(geometry.profiles) if not set("+-") & set(own.name)]
    return sorted(found, key=lambda i: (share(geometry, i), geometry.profiles[i].memory_slices))


@cache
def share(geometry: Geometry, profile: int) -> int:
    """The share of a card that a request takes, in thousandths."""
    return slices(geometry, [geometry.profiles[profile]]).milli


def policies(geometry: Geometry) -> dict[str, Policy]:
    worth = starts_of(geometry, equal_weights(geometry)).worth

    @cache
    def used(state: int) -> int:
        return taken(geometry, state).milli

    @cache
    def fragmentation(state: int) -> int:
        """The slices of partly occupied placements, of profiles for which the free slices would suffice."""
        busy = 0
        for profile, start in geometry.members(state):
            busy |= (1 << geometry.profiles[profile].memory_slices) - 1 << start
        plain = [geometry.profiles[i] for i in plain_profiles(geometry)]
        free = geometry.memory_slices - busy.bit_count()
        return sum(
            one.memory_slices
            for one in plain
            for start in one.starts
            if one.memory_slices <= free and busy >> start & (1 << one.memory_slices) - 1
        )

    def lowest(before: int, after: int) -> int:
        [added] = geometry.members(after & ~before)
        return added.start

    def own(before: int, after: int) -> int:
        return worth(before) - worth(after)

    return {
        "first-fit": lambda before, after: ((), lowest(before, after)),
        "best-fit": lambda before, after: ((-used(before),), lowest(before, after)),
        "mfi": lambda before, after: ((fragmentation(after) - fragmentation(before),), lowest(before, after)),
        "best-fit+": lambda before, after: ((-used(before),), own(before, after)),
        "dovetail": lambda before, after: ((own(before, after), -used(before)), 0),
    }


class Cards:
    """Equal cards, grouped by their state."""

    def __init__(self, geometry: Geometry, policy: Policy, count: int) -> None:
        self._known, self._policy = states(geometry), policy
        self._of_card = [0] * count
        self._cards: dict[int, list[int]] = {0: list(range(count))}
        """The cards of each state, as a heap."""
        self._best = cache(self._best_of)

    def _best_of(self, state: int, profile: int) -> tuple[tuple[Key, int], int] | None:
        """The best placement on a card of that state."""
        following = self._known.allowed(state) & self._known.of_profile[profile]
        return min(((self._policy(state, state | bit), bit) for bit in bits_of(following)), default=None)

    def place(self, profile: int) -> tuple[int, int] | None:
        """The card and placement of a request; None if it does not fit."""
        found = [
            (best[0][0], cards[0], best[1], state)
            for state, cards in self._cards.items()
            if (best := self._best(state, profile)) is not None
        ]
        if not found:
            return None
        _, card, bit, state = min(found)
        self._move(card, state | bit)
        return card, bit

    def give_back(self, card: int, bit: int) -> None:
        self._move(card, self._of_card[card] & ~bit)

    def _move(self, card: int, state: int) -> None:
        cards = self._cards[self._of_card[card]]
        cards.remove(card)
        heapq.heapify(cards)
        if not cards:
            del self._cards[self._of_card[card]]
        self._of_card[card] = state
        heapq.heappush(self._cards.setdefault(state, []), card)


def stream(geometry: Geometry, mix: Sequence[int], load: float, cards: int, seed: int) -> Iterator[Asked]:
    """An infinite stream of requests."""
    chance, profiles = random.Random(seed), plain_profiles(geometry)
    mean = sum(w * share(geometry, i) for w, i in zip(mix, profiles, strict=True)) / 1000 / sum(mix)
    weights, now = list(accumulate(mix)), 0.0
    while True:
        now += chance.expovariate(load * cards / mean)
        [profile] = chance.choices(profiles, cum_weights=weights)
        yield Asked(profile, now, now + chance.expovariate(1))


def served(geometry: Geometry, policy: Policy, cards: int, requests: Sequence[Asked]) -> list[bool]:
    """Whether each of the requests is served."""
    known, running, answers = Cards(geometry, policy, cards), list[tuple[float, int, int]](), []
    for asked in requests:
        while running and running[0][0] <= asked.begin:
            known.give_back(*heapq.heappop(running)[1:])
        place = known.place(asked.profile)
        if place is not None:
            heapq.heappush(running, (asked.end, *place))
        answers.append(place is not None)
    return answers


def percents(geometry: Geometry, requests: Sequence[Asked], answers: Sequence[bool]) -> tuple[float, float]:
    """The percentage of served requests, and of their slices."""
    sizes = [share(geometry, asked.profile) for asked in requests]
    had = sum(size for size, answer in zip(sizes, answers, strict=True) if answer)
    return 100 * sum(answers) / len(answers), 100 * had / sum(sizes)


def under_load(geometry: Geometry, mix: str, load: float, cards: int, seed: int) -> list[Row]:
    requests = []
    for asked in stream(geometry, MIXES[mix], load, cards, seed):
        if asked.begin >= WARM + MEASURED:
            break
        requests.append(asked)
    late = next(i for i, asked in enumerate(requests) if asked.begin >= WARM)
    rows = []
    for name, policy in policies(geometry).items():
        answers = served(geometry, policy, cards, requests)
        rows.append(Row("load", mix, load, name, seed, *percents(geometry, requests[late:], answers[late:])))
    return rows


def filled(geometry: Geometry, mix: str, cards: int, seed: int) -> list[Row]:
    requests, demand = list[Asked](), 0
    for asked in stream(geometry, MIXES[mix], 1, cards, seed):
        demand += share(geometry, asked.profile)
        if demand > 1000 * FILLED * cards:
            break
        requests.append(Asked(asked.profile, asked.begin, float("inf")))
    rows = []
    for name, policy in policies(geometry).items():
        answers = served(geometry, policy, cards, requests)
        first = answers.index(False) + 1 if False in answers else len(answers)
        until = sum(share(geometry, asked.profile) for asked in requests[:first]) / 10 / cards
        rows.append(Row("fill", mix, FILLED, name, seed, *percents(geometry, requests, answers), until))
    return rows


def most(geometry: Geometry, cards: int, requests: Sequence[Asked], values: Sequence[int], at_least: int) -> int:
    """The largest sum of values of requests that can all be served, with full knowledge. `at_least` is a sum that is
    known to be feasible. The result is exact: dynamic programming keeps the best sum of each state of the cards after
    each request, and drops states that cannot reach `at_least` even if all later requests were served."""
    known = states(geometry)
    coming = [sum(values[i:]) for i in range(len(values) + 1)]
    best: dict[tuple[tuple[tuple[int, float], ...], ...], int] = {((),) * cards: 0}
    for i, asked in enumerate(requests):
        reached: dict[tuple[tuple[tuple[int, float], ...], ...], int] = {}
        for held, value in best.items():
            now = tuple(sorted(tuple(one for one in card if one[1] > asked.begin) for card in held))
            if value + coming[i + 1] >= at_least:
                reached[now] = max(value, reached.get(now, 0))
            for number, card in enumerate(now):
                if number and card == now[number - 1]:
                    continue
                state = sum(bit for bit, _ in card)
                for bit in bits_of(known.allowed(state) & known.of_profile[asked.profile]):
                    own = tuple(sorted((*card, (bit, asked.end))))
                    then = tuple(sorted((*now[:number], own, *now[number + 1 :])))
                    reached[then] = max(value + values[i], reached.get(then, 0))
        best = {held: value for held, value in reached.items() if value + coming[i + 1] >= at_least}
    return max(best.values())


def small(geometry: Geometry, mix: str, seed: int) -> list[Row]:
    requests = [
        asked
        for asked, _ in zip(
            stream(geometry, MIXES[mix], SMALL_LOAD, SMALL_CARDS, seed), range(SMALL_REQUESTS), strict=False
        )
    ]
    sizes = [share(geometry, asked.profile) for asked in requests]
    rows, had = [], []
    for name, policy in policies(geometry).items():
        answers = served(geometry, policy, SMALL_CARDS, requests)
        had.append((sum(answers), sum(size for size, answer in zip(sizes, answers, strict=True) if answer)))
        rows.append(Row("small", mix, SMALL_LOAD, name, seed, *percents(geometry, requests, answers)))
    counts, milli = (max(each) for each in zip(*had, strict=True))
    exact = (
        100 * most(geometry, SMALL_CARDS, requests, [1] * len(requests), counts) / len(requests),
        100 * most(geometry, SMALL_CARDS, requests, sizes, milli) / sum(sizes),
    )
    return [*rows, Row("small", mix, SMALL_LOAD, "exact", seed, *exact)]


def table(rows: Sequence[Row]) -> None:
    names = list(dict.fromkeys(row.policy for row in rows))
    print(f"| stream | mix | load | {' | '.join(names)} |\n|---|---|---:|{'---:|' * len(names)}")
    for case in dict.fromkeys((row.stream, row.mix, row.load) for row in rows):
        cells = []
        for name in names:
            mine = [row for row in rows if (row.stream, row.mix, row.load, row.policy) == (*case, name)]
            if not mine:
                cells.append("")
                continue
            cell = f"{_mean(r.accepted_percent for r in mine):.2f} / {_mean(r.slices_percent for r in mine):.2f}"
            if case[0] == "fill":
                cell += f" / {_mean(r.first_refusal_percent for r in mine):.1f}"
            cells.append(cell)
        print(f"| {case[0]} | {case[1]} | {case[2]} | {' | '.join(cells)} |")


def gains(rows: Sequence[Row]) -> None:
    """Print the difference between the scheduler's policy and each other one on the same requests."""
    mine = {(r.stream, r.mix, r.load, r.seed): r for r in rows if r.policy == "dovetail"}
    for kind in dict.fromkeys(row.stream for row in rows):
        for name in dict.fromkeys(row.policy for row in rows):
            pairs = [(mine[r.stream, r.mix, r.load, r.seed], r) for r in rows if (r.stream, r.policy) == (kind, name)]
            if name == "dovetail" or not pairs:
                continue
            for what in ("accepted_percent", "slices_percent"):
                more = [getattr(own, what) - getattr(other, what) for own, other in pairs]
                error = statistics.stdev(more) / len(more) ** 0.5 if len(more) > 1 else 0
                print(f"{kind}, dovetail less {name}, {what}: {_mean(more):+.2f} +- {error:.2f} (standard error)")


def _mean(values: Sequence[float] | Iterator[float]) -> float:
    return statistics.mean(values)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--geometry", default="A100-80GB", help="key or product with six plain profiles")
    parser.add_argument("--cards", type=int, default=32)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--loads", nargs="*", type=float, default=LOADS)
    parser.add_argument("--mixes", nargs="+", choices=list(MIXES), default=list(MIXES))
    parser.add_argument("--streams", nargs="+", choices=STREAMS, default=STREAMS)
    parser.add_argument("-o", "--output", choices=["table", "json"], default="table")
    args = parser.parse_args()
    geometry = of_product(args.geometry)
    if geometry is None or len(plain_profiles(geometry)) != len(MIXES["uniform"]):
        parser.error(
            f"--geometry {args.geometry}: must be a product with six plain profiles, as A100-80GB or H100-80GB"
        )
    seeds, rows = range(args.seeds), list[Row]()
    for mix in args.mixes:
        if "load" in args.streams:
            for load, seed in product(args.loads, seeds):
                rows += under_load(geometry, mix, load, args.cards, seed)
        if "fill" in args.streams:
            for seed in seeds:
                rows += filled(geometry, mix, args.cards, seed)
        if "small" in args.streams:
            for seed in seeds:
                rows += small(geometry, mix, seed)
    rows.sort(key=lambda row: (STREAMS.index(row.stream), args.mixes.index(row.mix), row.load))
    if args.output == "json":
        print(json.dumps([asdict(row) for row in rows], indent=1))
        return
    print(
        f"{geometry.key}, {args.cards} cards, {args.seeds} seeds: % of the requests / of the slices that are served\n"
    )
    table(rows)
    print()
    gains(rows)


if __name__ == "__main__":
    main()
