# SPDX-License-Identifier: Apache-2.0
"""The few choices that a driver may make for the core."""

from __future__ import annotations

from msgspec import Struct, field
from msgspec.structs import replace

from dovetail.core.fabric import DEFAULT_FABRIC
from dovetail.core.placing.scores import Scoring, Tightest


class Policy(Struct, frozen=True):
    """`attempts_per_step` bounds the work of one step (gangs and lone pods tried, pods decided, and each pod that looks
    at other pods), so that the driver can begin to bind. `search_limit` bounds the domains tried for one gang. A
    half-started gang is released after `start_deadline_ms`, and one of which a pod failed for good after
    `broken_deadline_ms` (0: never; see `core.workloads.broken`). The refusal of a pending gang whose reason stays the
    same is reported again at most every `tell_again_ms`. `scoring` chooses among the nodes that fit.

    `history_milli` is k of the division of what no queue has guaranteed: how much past usage moves a queue's part, in
    thousandths (0: not at all). `reserve` holds a reservation for the first job that does not fit. `preempt` allows
    preemption and reclaim: at most `searches_per_step` searches for victims in a step, each with at most `probes` dry
    runs. A victim that is not gone after its grace period and `eviction_deadline_ms` fails the reservation.

    At most `moves_per_hour` pods are moved in an hour so that others fit (0: none), and those of a job again only after
    `move_again_ms` (see `preemption.consolidation`).

    At most `drains_per_hour` pods are evicted in an hour from nodes in maintenance (0: none; see
    `preemption.draining`).

    Of the GPU nodes that ask for quarantine at most `quarantine_milli` thousandths of all GPU nodes, but at least one,
    are quarantined at a time; or `quarantine_nodes` nodes, if that is not 0 (see `cluster.quarantines`).

    `remember_refusals` refuses a job as an equal one was refused, as long as that holds; False tries each.

    The devices of an offer to a software agent are held for `offer_ms`.

    `model_milli` weighs what GPU models are charged, by the value of nvidia.com/gpu.product (1000 where it is not
    there)."""

    fabric: tuple[str, ...] = DEFAULT_FABRIC
    attempts_per_step: int = 512
    search_limit: int = 512
    start_deadline_ms: int = 60_000
    broken_deadline_ms: int = 900_000
    tell_again_ms: int = 15_000
    scoring: Scoring = field(default_factory=Tightest)
    history_milli: int = 1000
    reserve: bool = True
    preempt: bool = True
    searches_per_step: int = 1
    probes: int = 64
    eviction_deadline_ms: int = 120_000
    remember_refusals: bool = True
    moves_per_hour: int = 0
    move_again_ms: int = 14_400_000
    drains_per_hour: int = 120
    model_milli: tuple[tuple[str, int], ...] = ()
    offer_ms: int = 15_000
    quarantine_milli: int = 100
    quarantine_nodes: int = 0


_SEARCHES = 64


def unhurried(policy: Policy) -> Policy:
    """The policy for queries: one step tries all workloads, makes many searches for victims, and works out every reason
    again."""
    return replace(policy, attempts_per_step=2**31, tell_again_ms=0, searches_per_step=_SEARCHES)
