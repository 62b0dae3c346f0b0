# SPDX-License-Identifier: Apache-2.0
"""Headroom for instances of all kinds, and lent to all kinds of jobs: shares of a GPU, MIG profiles, devices by claim,
volumes, gangs over hours."""

from __future__ import annotations

import random

import pytest
from msgspec.structs import replace

from dovetail.core import events as ev
from dovetail.core.dra.types import Claim, Device, DeviceClass, Slice
from dovetail.core.model import CPU, GPU, MEMORY, PODS, Node, Pod, Request, Work
from dovetail.core.reasons import Reason
from tests.breadth import seeds
from tests.core.dra.device_worlds import ask, claim
from tests.core.headroom.test_rooms import SOON_MS, headroom, lender, serving, world
from tests.core.preemption.lives import GIB, HOUR_MS, MINUTE_MS, SECOND_MS, World, gang, node, pod, queue

WHOLE, SMALL = "nvidia.com/mig-3g.40gb", "nvidia.com/mig-1g.10gb"


def _asking(one: Pod, *resources: tuple[str, int], milli: int = 0) -> Pod:
    return replace(one, request=Request(resources or ((CPU, 100),), gpu_milli=milli))


def _cluster(*nodes: Node, guaranteed: float = 8) -> World:
    made = World(*nodes, grace_ms=None)
    made.apply_events(queue("web", guaranteed), queue("lab"))
    return made


def test_shares_of_a_gpu_are_kept_and_lent() -> None:
    here = _cluster(Node("n0", ((CPU, 64_000), (GPU, 1), (PODS, 99)), gpu_memory_mib=1000))
    here.submit(_asking(serving("llama", instances=2), milli=300))
    here.live(SECOND_MS)
    assert [len(room.places) for room in here.state.headrooms.rooms.values()] == [2]
    # 700 of 1000 are left, of which 600 are kept: 100 are free for whoever takes long.
    here.submit(*(_asking(lender(f"slow{i}", grace_ms=30_000), milli=100) for i in range(3)))
    here.live(MINUTE_MS)
    assert len([name for name in here.running if name.startswith("slow")]) == 1
    here.submit(*(_asking(lender(f"soon{i}"), milli=100) for i in range(9)))
    here.live(MINUTE_MS)
    assert len([name for name in here.running if name.startswith("soon")]) == 6
    here.submit(_asking(serving("llama2", instances=2), milli=300))
    here.live(SOON_MS)
    assert "llama2" in here.running
    assert len(here.gave_way) == 3


def test_mig_instances_are_kept_and_lent() -> None:
    amounts = ((CPU, 64_000), (WHOLE, 2), (SMALL, 1), (PODS, 99))
    here = _cluster(Node("m0", amounts), Node("m1", amounts))
    here.submit(_asking(serving("llama", instances=2), (WHOLE, 1)))
    here.live(SECOND_MS)
    assert [len(room.places) for room in here.state.headrooms.rooms.values()] == [2]
    slow = [_asking(lender(f"slow{i}", grace_ms=30_000), (WHOLE, 1)) for i in range(3)]
    here.submit(*slow, *(_asking(lender(f"small{i}", grace_ms=30_000), (SMALL, 1)) for i in range(2)))
    here.live(MINUTE_MS)
    # Instances of another profile are not in its way.
    assert {"small0", "small1"} <= here.running.keys()
    assert len([name for name in here.running if name.startswith("slow")]) == 1
    here.submit(*(_asking(lender(f"soon{i}"), (WHOLE, 1)) for i in range(2)))
    here.live(MINUTE_MS)
    assert {"soon0", "soon1"} <= here.running.keys()
    here.submit(_asking(serving("llama2", instances=2), (WHOLE, 1)))
    here.live(SOON_MS)
    assert "llama2" in here.running
    assert len(here.gave_way) == 1


def _claiming(name: str, grace_ms: int) -> list[ev.Event]:
    """A job with a claim of its own for one GPU."""
    made = Claim(f"{name}-uid", "ns", f"{name}-gpu", claim(ask(1)), owner_pod=name)
    job = replace(lender(name, grace_ms=grace_ms), request=Request(((CPU, 100),)), device_claims=(made.key,), owner="")
    return [ev.ClaimChanged(made), ev.PodChanged(job)]


def test_jobs_with_devices_by_claim_use_headroom_and_return_it() -> None:
    """Headroom for CPU-bound instances beside devices by claim: whoever has a claim holds the node's CPU, too."""
    amounts = ((CPU, 1000), (MEMORY, 64 * GIB), (PODS, 99))
    gpus = Slice("s", "gpu.test", "n0", 1, 1, node="n0", devices=tuple(Device(f"gpu-{i}") for i in range(4)))
    here = _cluster(Node("n0", amounts))
    here.apply_events(
        ev.DeviceClassChanged(DeviceClass("gpu")), ev.SliceChanged(gpus),
        ev.QueueChanged(replace(here.state.shares.tree.written["web"], guarantee=(("cpu", 1000),))),
    )  # fmt: skip
    here.submit(_asking(serving("llama"), (CPU, 400)))
    here.live(SECOND_MS)
    assert len(headroom(here).places) == 1
    for i in range(4):
        here.apply_events(*_claiming(f"slow{i}", 30_000))
    here.live(MINUTE_MS)
    assert len([name for name in here.running if name.startswith("slow")]) == 2
    for i in range(4):
        here.apply_events(*_claiming(f"soon{i}", 1000))
    here.live(MINUTE_MS)
    lent = [name for name in here.running if name.startswith("soon")]
    assert len(lent) == 2, "as many as there are GPUs"
    here.submit(_asking(serving("llama2"), (CPU, 400)))
    here.live(SOON_MS)
    assert "llama2" in here.running
    assert here.state.cluster.check() == []


def test_instances_with_volumes_of_their_own_are_placed_where_gpus_are() -> None:
    """Volumes of instances to come do not exist yet, so they keep headroom from no node."""
    here = world(nodes=2)
    here.submit(serving("llama"))
    here.live(SECOND_MS)
    newest = here.state.workloads.pods["llama"]
    here.apply_events(ev.PodChanged(replace(newest, claims=("ns/cache-0",), own_volumes=("ns/cache-0",))))
    here.live(SECOND_MS)
    assert len(headroom(here).places) == 1


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(1))
def test_gangs_that_come_and_go_for_two_days_evict_no_more_than_they_need(seed: int) -> None:
    """Instances are gangs of two pods of 4 GPUs; jobs that end soon are made anew whenever they were evicted. Without a
    scale-up nothing is evicted, and headroom stays where it is once all has come to rest."""
    dice = random.Random(seed)
    here = World(*(node(f"n{i}", 8) for i in range(5)), grace_ms=None, period_ms=HOUR_MS)
    here.apply_events(queue("web", 32), queue("lab"))

    def instance(name: str) -> None:
        work = Work(headroom=1, headroom_within_ms=SOON_MS)
        here.apply_events(gang(name, 2))
        fields = {"queue": "web", "made_for": "LeaderWorkerSet/llama", "owner": "", "gang": name, "work": work}
        here.submit(*(pod(f"{name}-{i}", 4, **fields) for i in range(2)))

    instance("i0")
    here.live(SECOND_MS)
    here.submit(*(lender(f"batch{i}", dice.choice([1, 2])) for i in range(40)))
    here.live(MINUTE_MS)
    there, made, begin_ms = ["i0"], 1, here.now_ms
    by_hour: dict[int, int] = {}
    while here.now_ms - begin_ms < 48 * HOUR_MS:
        before, promised = len(here.gave_way), bool(headroom(here).places)
        asked = dice.random() < 0.5 and len(there) < 3
        if asked:
            there.append(f"i{made}")
            made += 1
            instance(there[-1])
            here.live(SOON_MS)
            assert not promised or {f"{there[-1]}-0", f"{there[-1]}-1"} <= here.running.keys(), "the promise"
        elif len(there) > 1:
            gone = there.pop()
            here.ends(f"{gone}-0", f"{gone}-1")
        here.live(MINUTE_MS)
        by_hour[here.now_ms // HOUR_MS] = by_hour.get(here.now_ms // HOUR_MS, 0) + asked
        assert len(here.gave_way) - before <= 8 * asked, "no more than the 8 GPUs of an instance"
        calm, places = len(here.gave_way), headroom(here).places
        here.live(dice.choice([10 * MINUTE_MS, HOUR_MS, 5 * HOUR_MS]))
        assert (len(here.gave_way), headroom(here).places) == (calm, places), "nothing moves by itself"
    evicted: dict[int, int] = {}
    for at_ms, _, names in here.evictions:
        evicted[at_ms // HOUR_MS] = evicted.get(at_ms // HOUR_MS, 0) + len(names)
    assert all(count <= 8 * sum(by_hour.get(hour + i, 0) for i in (0, 1)) for hour, count in evicted.items())
    assert made > 4


def test_a_refused_job_with_a_share_is_refused_for_headroom() -> None:
    here = _cluster(Node("n0", ((CPU, 64_000), (GPU, 1), (PODS, 99)), gpu_memory_mib=1000))
    here.submit(_asking(serving("llama"), milli=500))
    here.live(SECOND_MS)
    here.submit(_asking(lender("slow", grace_ms=30_000), milli=400))
    here.live(MINUTE_MS)
    assert here.refusals["slow"].reason is Reason.HEADROOM
