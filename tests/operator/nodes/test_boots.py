# SPDX-License-Identifier: Apache-2.0
"""A node that reboots in a loop is known by its last boots, which change with a boot alone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from dovetail.kube.objects.topology import NodeBoots
from dovetail.operator.nodes.boots import boots_now, reboots_in_a_loop

START = datetime(2026, 11, 26, 12, tzinfo=UTC)
MINUTES = st.lists(st.integers(1, 90), max_size=8)


def test_without_a_boot_nothing_is_known_and_the_first_is_no_reboot() -> None:
    assert boots_now(None, "", START) is None
    assert boots_now(None, "a", START) == NodeBoots("a")
    assert boots_now(NodeBoots("a"), "", START) == NodeBoots("a")


@given(MINUTES, st.integers(0, 120))
def test_three_within_an_hour_are_a_loop_until_half_an_hour_is_calm(pauses: list[int], later: int) -> None:
    """Against all boots, counted one by one."""
    boots, at, all_of_them = boots_now(None, "0", START), START, list[datetime]()
    for number, pause in enumerate(pauses, 1):
        at += timedelta(minutes=pause)
        assert boots_now(boots, str(number - 1), at) is boots
        boots = boots_now(boots, str(number), at)
        all_of_them.append(at)
    now = at + timedelta(minutes=later)
    hour, calm = timedelta(hours=1), timedelta(minutes=30)
    last = all_of_them[-1:]
    loop = bool(last) and now - last[0] < calm and sum(last[0] - one <= hour for one in all_of_them) >= 3
    assert reboots_in_a_loop(boots, round(now.timestamp() * 1000)) is loop
