# SPDX-License-Identifier: Apache-2.0
"""What a share takes of a device, by the policies of its capacities."""

from __future__ import annotations

from uuid import UUID

import pytest

from dovetail.core.dra.capacity import CapacityError, draw_of
from dovetail.core.dra.types import Capacity, Device, RequestPolicy
from tests.core.dra.device_worlds import DRIVER, ask, claim, device, pool, world

FREE = RequestPolicy(2000)
STEPS = RequestPolicy(2000, least_milli=1000, most_milli=7000, step_milli=2000)
RANGE = RequestPolicy(2000, least_milli=1000, most_milli=7000)
VALID = RequestPolicy(2000, valid_milli=(1000, 2000, 4000))


def memory(policy: RequestPolicy | None, milli: int = 8000, written: str = "memory") -> Device:
    return device("d", capacity=((f"{DRIVER}/memory", Capacity(milli, policy, written)),))


@pytest.mark.parametrize(
    ("policy", "asked", "taken"),
    [
        (None, None, 8000),
        (None, 3000, 3000),
        (None, 9000, None),
        (FREE, None, 2000),
        (FREE, 3001, 3001),
        (STEPS, None, 2000),
        (STEPS, 1, 1000),
        (STEPS, 1000, 1000),
        (STEPS, 1001, 3000),
        (STEPS, 7000, 7000),
        (STEPS, 7001, None),
        (RANGE, 500, 1000),
        (RANGE, 4321, 4321),
        (RANGE, 7001, None),
        (VALID, None, 2000),
        (VALID, 1, 1000),
        (VALID, 2001, 4000),
        (VALID, 4001, None),
    ],
)
def test_what_is_asked_for_is_rounded_up_to_what_is_valid(
    policy: RequestPolicy | None, asked: int | None, taken: int | None
) -> None:
    amounts = () if asked is None else (("memory", asked),)
    assert draw_of(memory(policy), DRIVER, amounts) == (None if taken is None else (taken,))


def test_a_capacity_that_the_device_has_not_is_not_for_it() -> None:
    assert draw_of(memory(None), DRIVER, (("cores", 1),)) is None


def test_capacities_go_by_the_name_that_the_slice_writes() -> None:
    assert draw_of(memory(None), DRIVER, ((f"{DRIVER}/memory", 1),)) is None
    assert draw_of(memory(None, written=""), DRIVER, ((f"{DRIVER}/memory", 1),)) == (1,)
    assert draw_of(memory(None, written=""), DRIVER, (("memory", 1),)) == (1,)


def test_amounts_beyond_64_bits_end_the_allocation() -> None:
    huge = 2**63 - 1
    endless = RequestPolicy(1, least_milli=1, step_milli=2)
    with pytest.raises(CapacityError, match="represented"):
        draw_of(memory(endless, huge), DRIVER, (("memory", huge + 1),))
    coarse = RequestPolicy(1000, least_milli=1000, step_milli=3000, most_milli=1000 * huge)
    assert draw_of(memory(coarse, 1000 * huge), DRIVER, (("memory", 2000 * 2**60),)) == (1000 * (2**61 + 2),)


def test_shares_are_taken_until_one_of_the_capacities_is_used_up() -> None:
    capacity = (
        (f"{DRIVER}/cores", Capacity(100_000, RequestPolicy(40_000), "cores")),
        (f"{DRIVER}/memory", Capacity(8000, FREE, "memory")),
    )
    made = world(pool("n1", device("d", shareable=True, capacity=capacity)))
    spec = claim(ask(1))
    first, second = (made.hold("n1", made.pod(spec))[0].allocation.grants[0] for _ in range(2))
    assert first.consumed == second.consumed == (("cores", 40_000), ("memory", 2000))
    assert {UUID(first.share).version, UUID(second.share).version} == {8}
    assert first.share != second.share
    assert not made.fits("n1", spec)
    assert made.fits("n1", claim(ask(1, amounts=(("cores", 20_000), ("memory", 4000)))))
    assert not made.fits("n1", claim(ask(1, amounts=(("cores", 20_001),))))


def test_a_device_that_was_shareable_is_not_whole_while_others_have_shares_of_it() -> None:
    shared = device("d", shareable=True, capacity=((f"{DRIVER}/memory", Capacity(8000, FREE)),))
    made = world(pool("n1", shared))
    made.hold("n1", made.pod(claim(ask(1))))
    made.claims.put_slice(pool("n1", memory(None)))
    assert not made.fits("n1", claim(ask(1)))
    assert made.fits("n1", claim(ask(1, amounts=(("memory", 6000),))))


def test_a_device_that_is_not_shareable_is_taken_whole_whatever_is_asked_of_it() -> None:
    made = world(pool("n1", memory(FREE)))
    grant = made.hold("n1", made.pod(claim(ask(1, amounts=(("memory", 1000),)))))[0].allocation.grants[0]
    assert (grant.share, grant.consumed) == ("", ())
    assert not made.fits("n1", claim(ask(1)))
