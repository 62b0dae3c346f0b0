# SPDX-License-Identifier: Apache-2.0
"""What one object costs does not grow with how many others of its kind a tenant has made, nor with their length."""

from __future__ import annotations

from random import Random

import msgspec
import pytest

from dovetail.core.bounded_cache import Remembered, same
from dovetail.core.model import GPU
from dovetail.core.queues.accounts import USERS_KEPT
from dovetail.core.queues.attained import JOBS_KEPT, Attained
from dovetail.core.queues.queue_order import QueueOrder
from dovetail.core.queues.shares import Shares
from dovetail.core.queues.types import Queue
from dovetail.core.state import State
from dovetail.kube.api import resources as kinds
from dovetail.kube.api.decoding import Reader, WatchEvent
from dovetail.kube.api.reflector import Change
from dovetail.kube.objects.base import ObjectMeta
from dovetail.kube.objects.pods import Container, Pod, PodSpec, PodStatus
from dovetail.kube.translate import pods
from dovetail.kube.translate.known import KnownPod
from dovetail.kube.translate.translator import Translator


def pod(name: str, version: str = "1", phase: str = "", **annotations: str) -> Pod:
    meta = ObjectMeta(name, "tenant", f"uid-{name}", version, annotations=annotations)
    return Pod(meta, PodSpec(containers=(Container("main"),), scheduler_name="dovetail"), PodStatus(phase=phase))


GANG = {"dovetail.dev/gang": "big", "dovetail.dev/gang-min": "9999"}


def test_one_more_pod_of_a_gang_does_not_look_at_the_others(monkeypatch) -> None:
    feed, looked = Translator(), [0]
    feed.pods([Change("added", pod(f"p{n}", **GANG)) for n in range(300)])
    add = KnownPod.add

    def counted(self, declared):
        looked[0] += 1
        return add(self, declared)

    monkeypatch.setattr(KnownPod, "add", counted)
    assert feed.pods([Change("added", pod("late", **GANG))])
    assert feed.pods([Change("modified", pod("late", **{**GANG, "dovetail.dev/max-runtime": "1h"}))])
    assert looked[0] <= 4


def test_contradicting_pods_get_a_problem_however_many_they_are() -> None:
    feed = Translator()
    many = [Change("added", pod(f"p{n}", **{**GANG, "dovetail.dev/gang-min": str(1 + n)})) for n in range(500)]
    gang = [event.gang for event in feed.pods(many) if hasattr(event, "gang")][-1]
    assert "must have the same value" in gang.problem.rule
    gone = [Change("deleted", change.object) for change in many[1:]]
    gang = [event.gang for event in feed.pods(gone) if hasattr(event, "gang")][-1]
    assert (gang.problem, gang.min_count) == (None, 1)


def test_of_changes_that_come_together_the_last_is_examined(monkeypatch) -> None:
    feed, read = Translator(), []
    feed.pods([Change("added", pod("a"))])
    whole = pods.pod
    monkeypatch.setattr(pods, "pod", lambda obj, *more: read.append(obj) or whole(obj, *more))
    storm = [Change("modified", pod("a", str(n), **{"dovetail.dev/max-runtime": f"{n + 1}m"})) for n in range(100)]
    (event,) = feed.pods(storm)
    assert len(read) == 1 and event.pod.work.max_runtime_ms == 100 * 60_000
    read.clear()
    events = feed.pods([*storm, Change("modified", pod("a", "200", "Succeeded"))])
    assert [type(event).__name__ for event in events][-1] == "PodRemoved" and len(read) == 1


def test_what_counts_is_found_among_many_amounts() -> None:
    limits = {f"nvidia.com/mig-9g.{n}gb": 1 for n in range(60_000)} | {"cpu": "2", GPU: 4, "memory": "1Gi"}
    document = {
        "metadata": {"name": "a", "namespace": "tenant", "uid": "a"},
        "spec": {"nodeName": "n", "containers": [{"name": "main", "resources": {"limits": limits}}]},
    }
    line = msgspec.json.encode({"type": "ADDED", "object": document})
    assert len(line) > 1_000_000
    event = Reader(kinds.PODS, Pod).line(line)
    assert isinstance(event, WatchEvent)
    found = event.object.spec.containers[0].resources.limits
    assert (found["cpu"], found[GPU], found["memory"]) == ("2", 4, "1Gi")
    assert len(found) <= 64 + 5


def test_what_is_remembered_has_a_bound_in_bytes_and_keeps_what_is_asked_for() -> None:
    made = []
    kept = Remembered(64, lambda *key: made.append(key) or key)
    for n in range(5_000):
        kept("often")
        kept("x" * 1_000 + str(n))
    assert made.count(("often",)) == 1
    assert len(kept) < 80
    assert len(Remembered(64, same)("y" * 100_000)) == 100_000


def shares_of(queue: str) -> Shares:
    shares = State().shares
    shares.put_queue(Queue(queue, by_user=True, created_ms=1))
    return shares


def test_users_that_are_made_up_are_forgotten_and_those_that_used_most_are_not() -> None:
    shares = shares_of("q")
    accounts = shares.accounts
    accounts.change("q", "ada", 8_000)
    for n in range(5_000):
        accounts.change("q", f"made-up-{n}", 1)
        shares.advance(1_000 * (n + 1))
        accounts.change("q", f"made-up-{n}", -1)
    shares.advance(6_000_000)
    accounts.change("q", "ada", -8_000)
    shares.advance(6_001_000)
    users = dict(accounts.users("q", 6_001_000))
    assert len(users) <= 2 * USERS_KEPT + 1
    assert max(users, key=users.get) == "ada"
    (snapshot,) = [one for one in shares.queue_snapshots(6_001_000, {}) if one.name == "q"]
    assert len(snapshot.users) == USERS_KEPT and "ada" in dict(snapshot.users)
    assert accounts.user_ratio("q", "never-seen") == 0 < accounts.user_ratio("q", "ada")


def test_charged_users_are_kept_however_many_they_are() -> None:
    shares = shares_of("q")
    for n in range(3 * USERS_KEPT):
        shares.accounts.change("q", f"u{n}", 1)
    shares.advance(1_000)
    assert len(shares.accounts.users("q", 1_000)) == 3 * USERS_KEPT


def test_jobs_that_are_over_are_forgotten_where_others_had_more() -> None:
    attained = Attained()
    for n in range(5_000):
        attained.put(f"p{n}", "q", f"job-{n}", 1_000, 0)
        attained.end(f"p{n}", 1_000 + n)
        attained.tidy(1_000 + n)
    past = attained.past("q", 10_000)
    assert len(past) <= 2 * JOBS_KEPT and past[0][0] == "job-4999"


@pytest.mark.slow
def test_the_next_user_is_the_one_that_used_least() -> None:
    shares, random = shares_of("q"), Random(7)
    order, now_ms = QueueOrder(shares, State().workloads, State().requests), 0
    own: dict[tuple[str, str], str] = {}
    for _ in range(3_000):
        line = ("q", f"u{random.randrange(40)}")
        match random.randrange(4):
            case 0:
                own[line] = "root"
                order.moved(line)
            case 1:
                own.pop(line, None)
                order.moved(line)
            case 2:
                shares.accounts.change("q", line[1], random.randrange(1, 5) * 1_000)
                order.changed(line)
            case _:
                now_ms += 500
                shares.advance(now_ms)
                order.renew()
        if own:
            least = min(own, key=lambda one: (shares.accounts.user_ratio(*one), one[1]))
            assert order.first({"q": own}) == least
