# SPDX-License-Identifier: Apache-2.0
"""The order in which the pages of several users are asked for."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from dovetail.dashboard.fair_turns import TURN_S, FairTurns


class Looks:
    """Turns on a clock that runs while pages are asked for: those of `slow` users take 0.2 s each, others 0.02 s."""

    def __init__(self, wanted: Mapping[str, Collection[str]]) -> None:
        self.wanted = wanted
        self.now_s = 0.0
        self.turns = FairTurns[str](lambda: self.now_s)

    def turn(self) -> list[str]:
        found = []
        for page in self.turns.turn(self.wanted):
            found.append(page)
            self.now_s += 0.2 if page.startswith("slow") else 0.02
        return found


SLOW = {f"slow-{user}": [f"slow-{user}-{number:02}" for number in range(32)] for user in "abc"}
QUICK = [f"page-{number}" for number in range(4)]


def test_the_pages_of_a_user_are_asked_for_in_each_turn_whatever_others_have_open() -> None:
    looks = Looks(SLOW | {"someone": QUICK})
    # Nothing is known of anybody yet.
    seen = looks.turn()
    for _ in range(60):
        began_s, found = looks.now_s, looks.turn()
        assert {*QUICK} <= {*found} and looks.turns.cut
        assert looks.now_s - began_s < TURN_S + 0.2
        seen += found
    windows = [page for page in seen if page.startswith("slow")]
    assert {*windows[:96]} == {page for pages in SLOW.values() for page in pages}, "none twice before all were once"


def test_a_user_that_has_more_open_gets_no_more_of_the_time() -> None:
    looks = Looks({"slow-a": SLOW["slow-a"], "slow-b": SLOW["slow-b"][:2]})
    seen = [page[:6] for _ in range(40) for page in looks.turn()]
    assert abs(seen.count("slow-a") - seen.count("slow-b")) <= 6


def test_a_page_of_several_users_is_asked_for_once_and_all_of_them_where_there_is_time() -> None:
    looks = Looks({"a": ["fleet", "queue"], "b": ["fleet", "jobs"], "c": []})
    assert sorted(looks.turn()) == ["fleet", "jobs", "queue"] and not looks.turns.cut
    looks.wanted = {}
    assert looks.turn() == []


def test_a_page_that_takes_longer_than_a_turn_is_asked_for() -> None:
    looks = Looks({"slow-a": ["slow-a-0", "slow-a-1"]})
    found = []
    for _ in range(4):
        for page in looks.turns.turn(looks.wanted):
            found.append(page)
            looks.now_s += 2 * TURN_S
    assert found == ["slow-a-0", "slow-a-1"] * 2
