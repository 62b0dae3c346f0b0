# SPDX-License-Identifier: Apache-2.0
"""What became of advice."""

from __future__ import annotations

from dovetail.advice.sizing.follow_up import KEPT_MS, AdviceRecord, earlier, recorded
from dovetail.advice.sizing.market import HourPrice, InstanceOffer, Market
from dovetail.advice.sizing.seen import JobSeen
from dovetail.history.records import GpuSpan
from tests.advice.sizing.jobs import BUSY, H100, HOURS, device, gpus, job

SMALL = job(device([(60, HOURS)]), kind="Deployment", name="serve")
FULL = job(device([(600, HOURS)], BUSY), kind="Deployment", name="serve")
NOW_MS = 10**12
MARKET = Market(offers=lambda span: [
    InstanceOffer(name, 1, 64_000, 65_536, HourPrice(micro, "USD", "2026-11-01"))
    for name, micro in (("large", 3_000_000), ("small", 1_000_000))
])  # fmt: skip


def _followed(since: JobSeen | None) -> str:
    record = recorded(AdviceRecord(), [SMALL], NOW_MS)
    (found,) = earlier(record, NOW_MS + 1, lambda advised_ms, jobs: [since] if since is not None else [])
    return found.followed


def test_each_outcome() -> None:
    assert _followed(SMALL) == "unchanged"
    assert _followed(FULL) == "cleared"
    assert _followed(None) == "gone"
    assert _followed(job(device([(60, 12)]), kind="Deployment", name="serve")) == "too early"
    assert _followed(job(device([(60, 48)]), kind="Deployment", name="serve")) == "too early"
    assert _followed(job(*gpus(2, [(60, HOURS)]), kind="Deployment", name="serve")) == "changed"


def test_a_move_to_spot_or_another_machine_clears_the_advice() -> None:
    """The GPUs are the same before and after."""

    def at(instance_type: str, spot: bool = False) -> JobSeen:
        place = GpuSpan("g0", "n", 0, 1, H100, "healthy", 0, instance_type=instance_type, spot=spot)
        return job(
            device([(700, HOURS)], BUSY, place=place), spot=spot, spot_models={H100}, name="serve", market=MARKET,
            pod={"cpu_milli": 1000, "memory_mib": 1024, "checkpoint_interval_ms": 600_000},
        )  # fmt: skip

    record = recorded(AdviceRecord(), [at("large")], NOW_MS)
    assert [one.rule for one in record.advice] == ["instance", "spot"]
    for since, expected in (
        (at("large"), ["unchanged", "unchanged"]), (at("small"), ["cleared", "unchanged"]),
        (at("large", spot=True), ["cleared", "cleared"]),
    ):  # fmt: skip
        found = earlier(record, NOW_MS + 1, lambda advised_ms, jobs, since=since: [since])  # type: ignore[misc]
        assert [one.followed for one in found] == expected


def test_a_record_keeps_the_first_time_and_forgets_old_advice() -> None:
    first = recorded(AdviceRecord(), [SMALL, FULL], NOW_MS)
    assert [(one.rule, one.advised_ms) for one in first.advice] == [("mig", NOW_MS)]
    again = recorded(first, [SMALL], NOW_MS + 2 * KEPT_MS)
    assert again == first
    assert recorded(first, [], NOW_MS + KEPT_MS - 1) == first
    assert recorded(first, [], NOW_MS + KEPT_MS).advice == ()
    # What is advised at this moment has no past yet.
    assert earlier(first, NOW_MS, lambda advised_ms, jobs: [SMALL]) == ()
