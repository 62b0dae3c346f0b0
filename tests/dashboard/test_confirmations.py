# SPDX-License-Identifier: Apache-2.0
"""Confirmations: good for one action of one user for a time, on every replica that the user asks."""

from __future__ import annotations

import pytest

from dovetail.dashboard.confirmations import VALID_MS, Confirmations

NOW_MS = 1_800_000_000_000


def test_another_replica_takes_it_for_the_same_action_of_the_same_user_and_for_nothing_else() -> None:
    one, other = Confirmations(), Confirmations()
    text, until_ms = one.made(b"drain a", "uid-1", "Bearer ada", NOW_MS)
    assert until_ms == NOW_MS + VALID_MS
    assert other.seen_by(text, b"drain a", "Bearer ada", NOW_MS) == "uid-1"
    assert one.seen_by(text, b"drain a", "Bearer ada", until_ms) == "uid-1"
    assert one.seen_by(text, b"drain b", "Bearer ada", NOW_MS) is None
    assert one.seen_by(text, b"drain a", "Bearer bob", NOW_MS) is None
    assert one.seen_by(text, b"drain a", "Bearer ada", until_ms + 1) is None
    assert one.seen_by(text, b"drain a", "Bearer ada", NOW_MS - 1) is None, "a longer time was written into it"


def test_without_tokens_it_is_of_this_process_alone() -> None:
    one, other = Confirmations(), Confirmations()
    text, _ = one.made(b"drain a", "", "", NOW_MS)
    assert one.seen_by(text, b"drain a", "", NOW_MS) == "" and other.seen_by(text, b"drain a", "", NOW_MS) is None


def test_what_the_dry_run_saw_cannot_be_changed() -> None:
    one = Confirmations()
    text, _ = one.made(b"drain a", "uid-1", "Bearer ada", NOW_MS)
    for other in (text[:-1] + "2", text.removesuffix("uid-1"), text.removesuffix("-uid-1")):
        assert one.seen_by(other, b"drain a", "Bearer ada", NOW_MS) is None
    moved, _ = one.made(b"b", "a", "Bearer ada", NOW_MS)
    assert one.seen_by(moved.removesuffix("a"), b"ab", "Bearer ada", NOW_MS) is None


@pytest.mark.parametrize(
    "text", ["", "-", "1-", "x", f"{NOW_MS}-", f"{NOW_MS}-\xe9", "9" * 40 + "-ab", "-1-ab", "²-ab"]
)
def test_anything_else_is_none(text: str) -> None:
    assert Confirmations().seen_by(text, b"drain a", "Bearer ada", NOW_MS) is None
