# SPDX-License-Identifier: Apache-2.0
"""The content of a queue's status, and that what is written is what is read again."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.core.model import Problem
from dovetail.core.queues.status import QueueSnapshot
from dovetail.core.queues.types import Usage
from dovetail.core.reasons import Expected, Sure
from dovetail.kube.objects.queues import Queue, QueueSpec
from dovetail.kube.translate import queue_amounts, queues
from dovetail.kube.translate.queue_documents import queue_status

NOW_MS = 1_767_312_000_250
HOUR_MS = 3_600_000


def snapshot(**changed: Any) -> QueueSnapshot:
    known: dict[str, Any] = {
        "name": "research", "parent": "labs", "leaf": True, "allocated": (("cpu", 1500), ("gpu", 8500)),
        "guarantee": (("gpu", 8000),), "limit": (), "due": (("gpu", 9000),), "borrowed": (("gpu", 500),),
        "pending": (("gpu", 64_000), ("gpu/NVIDIA-H100", 64_000)), "pending_jobs": 8, "used": 10**15,
        "share_ppm": 250_001, "weight_ppm": 500_000, "credit": -3 * 1000 * HOUR_MS // 2, "rate_milli": 8500,
        "days": ((20_454, 7), (20_455, 9)), "users": (("ada", 5),),
            "jobs": (("ml/train", 6),), "as_of_ms": NOW_MS, "problem": None, "warning": "",
        "head": "job",
    }  # fmt: skip
    return QueueSnapshot(**known | changed)


def status(before: Queue | None = None, now_ms: int = NOW_MS, **changed: Any) -> dict[str, Any]:
    return queue_status(snapshot(**changed), now_ms, None, before)


def test_amounts_are_quantities_and_times_have_milliseconds() -> None:
    found = status()
    assert found["allocated"] == {"cpu": "1500m", "gpu": "8.5"}
    assert (found["guaranteed"], found["borrowed"], found["due"]) == ({"gpu": "8"}, {"gpu": "0.5"}, {"gpu": "9"})
    assert found["pending"] == {"gpu": "64", "models": {"NVIDIA-H100": "64"}}
    assert found["pendingJobs"] == 8
    assert found["usage"] == {
        "asOf": "2026-01-02T00:00:00.250Z", "used": "1000000000000000", "rate": "8500", "share": "0.250001",
        "credit": "-1.500", "days": [{"day": "2026-01-01", "used": "7"}, {"day": "2026-01-02", "used": "9"}],
        "users": [{"name": "ada", "used": "5"}], "jobs": [{"name": "ml/train", "used": "6"}],
    }  # fmt: skip
    assert "head" not in found


def test_the_head_has_its_expected_start_where_it_is_known() -> None:
    known = queue_status(snapshot(), NOW_MS, ("ml/a", "RoomReserved", Expected(Sure.LEARNED, NOW_MS)))
    assert known["head"] == {
        "name": "ml/a", "reason": "RoomReserved", "sure": "Learned", "expectedStart": "2026-01-02T00:00:00.250Z",
    }  # fmt: skip
    unknown = queue_status(snapshot(), NOW_MS, ("ml/a", "QueueLimit", Expected(Sure.UNKNOWN, 0, "why")))
    assert unknown["head"] == {"name": "ml/a", "reason": "QueueLimit", "sure": "Unknown"}
    assert queue_status(snapshot(), NOW_MS, ("ml/a", "x", None))["head"] == {"name": "ml/a", "reason": "x"}


def ready(found: dict[str, Any]) -> tuple[str, str, str, str]:
    (one,) = found["conditions"]
    assert one["type"] == "Ready"
    return one["status"], one["reason"], one["message"], one["lastTransitionTime"]


def test_a_queue_is_ready_since_it_last_became_so() -> None:
    began = "2026-01-02T00:00:00.250Z"
    first = status()
    assert ready(first) == ("True", "Usable", "", began)
    before, later_ms = Queue(status=first), NOW_MS + 60_000
    assert ready(status(before, later_ms, warning="it guarantees too much")) == (
        "True", "Usable", "it guarantees too much", began,
    )  # fmt: skip
    problem = Problem("spec.parent", "labs", "is no queue")
    assert ready(status(before, later_ms, problem=problem)) == (
        "False", "Invalid", "spec.parent: 'labs': is no queue", "2026-01-02T00:01:00.250Z",
    )  # fmt: skip


def test_a_damaged_status_is_replaced() -> None:
    assert ready(status(Queue(status={"conditions": "lost"})))[0] == "True"


whole = st.integers(0, 10**30)
named = st.dictionaries(st.text(min_size=1), whole)
amounts = st.dictionaries(
    st.sampled_from(["cpu", "memory", "gpu", "gpu-slices", "gpu-memory", "gpu/A100", "gpu/NVIDIA-H100-80GB"]),
    st.integers(0, 2**41),
).map(lambda found: tuple(sorted(found.items())))


@given(whole, st.integers(0, 10**9), st.dictionaries(st.integers(0, 40_000), whole),
       named, named, st.integers(0, 4 * 10**12))  # fmt: skip
@pytest.mark.slow
def test_the_usage_that_is_written_is_the_usage_that_is_read(
    used: int, rate: int, days: dict[int, int], users: dict[str, int], jobs: dict[str, int], as_of_ms: int
) -> None:
    by_name = (tuple(sorted(found.items())) for found in (users, jobs))
    usage = Usage(as_of_ms, used, rate, tuple(sorted(days.items())), *by_name)
    reported = snapshot(
        used=used, rate_milli=rate, days=usage.days, users=usage.users, jobs=usage.jobs, as_of_ms=as_of_ms
    )
    text = msgspec.json.encode({"status": queue_status(reported, as_of_ms, None)})
    assert queues.read_usage(msgspec.json.decode(text, type=Queue)) == (usage, ())


@given(amounts)
def test_amounts_that_are_written_are_the_amounts_that_are_read(found: tuple[tuple[str, int], ...]) -> None:
    obj = Queue(spec=QueueSpec(limit=queue_amounts.amounts_document(found)))
    assert (queues.queue(obj).limit, queues.queue(obj).problem) == (found, None)


def test_the_next_guarantee_of_the_calendar_is_there_with_its_time() -> None:
    found = status(next_guarantee=(1_767_340_800_000, (("gpu", 500), ("gpu/A", 1000))))
    assert found["calendar"] == {
        "changesAt": "2026-01-02T08:00:00.000Z",
        "guarantee": {"gpu": "0.5", "models": {"A": "1"}},
    }
    assert "calendar" not in status()
