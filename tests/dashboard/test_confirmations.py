# SPDX-License-Identifier: Apache-2.0
"""Confirmations: good for one action of one user for a time, on every replica that the user asks."""

from __future__ import annotations

import pytest

from dovetail.dashboard.confirmations import VALID_MS, Confirmations

NOW_MS = 1_800_000_000_000


def test_another_replica_takes_it_for_the_same_action_of_the_same_user_and_for_nothing_else() -> None:
    one, other = Confirmations(), Confirmations()
    text, until_ms = one.made(b"drain a", "Bearer ada", NOW_MS)
    assert until_ms == NOW_MS + VALID_MS
    assert other.good(text, b"drain a", "Bearer ada", NOW_MS) and one.good(text, b"drain a", "Bearer ada", until_ms)
    assert not one.good(text, b"drain b", "Bearer ada", NOW_MS)
    assert not one.good(text, b"drain a", "Bearer bob", NOW_MS)
    assert not one.good(text, b"drain a", "Bearer ada", until_ms + 1)
    assert not one.good(text, b"drain a", "Bearer ada", NOW_MS - 1), "a longer time was written into it"


def test_without_tokens_it_is_of_this_process_alone() -> None:
    one, other = Confirmations(), Confirmations()
    text, _ = one.made(b"drain a", "", NOW_MS)
    assert one.good(text, b"drain a", "", NOW_MS) and not other.good(text, b"drain a", "", NOW_MS)


@pytest.mark.parametrize(
    "text", ["", "-", "1-", "x", f"{NOW_MS}-", f"{NOW_MS}-\xe9", "9" * 40 + "-ab", "-1-ab", "²-ab"]
)
def test_anything_else_is_none(text: str) -> None:
    assert not Confirmations().good(text, b"drain a", "Bearer ada", NOW_MS)
