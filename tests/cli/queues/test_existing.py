# SPDX-License-Identifier: Apache-2.0
"""Which queue above one is named as the one that stops it: the same for the commands and for the core."""

from __future__ import annotations

import itertools

import pytest

from dovetail.cli.queues.existing import above
from dovetail.core.queues.types import Queue, Stop
from dovetail.kube.queue_changes import QueueView


@pytest.mark.parametrize(
    ("higher", "top", "named"),
    [
        ("", "", ""),
        ("Hold", "", "higher"),
        ("", "Hold", "top"),
        ("Hold", "Hold", "higher"),
        ("Hold", "HoldAndDrain", "top"),
    ],
)
def test_of_two_stopped_queues_above_the_drained_one_is_named(higher: Stop, top: Stop, named: str) -> None:
    queues = [Queue("top", stop=top), Queue("higher", parent="top", stop=higher), Queue("own", parent="higher")]
    for order in itertools.permutations(queues):
        assert above({one.name: QueueView(one, (), 0, None) for one in order}, "own") == named


def test_queues_above_each_other_and_one_that_is_missing() -> None:
    queues = [Queue("a", parent="b"), Queue("b", parent="a"), Queue("c", parent="gone")]
    found = {one.name: QueueView(one, (), 0, None) for one in queues}
    assert [above(found, name) for name in found] == ["", "", ""]
