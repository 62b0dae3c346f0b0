# SPDX-License-Identifier: Apache-2.0
"""Several observers of the calls of the core: whichever is due to begin again, all keep a state that is equal."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from dovetail.core.checkpoint import Checkpoint, take
from dovetail.core.decisions import Hold
from dovetail.core.reasons import Reason, Refusal, When
from dovetail.recording.calls import CoreCall, CoreCalls
from dovetail.recording.format import CHECKPOINT, RecordedLine
from dovetail.recording.stream import StreamedCopy, begun, called, renewed
from tests.recording.histories import POLICY, Recorded, live, only_replay


class _Stream:
    """An observer that repeats the calls from their bytes, and is due at times of its own."""

    def __init__(self, seed: int, due: float) -> None:
        self._dice = random.Random(seed)
        self._due = due
        self._began = False
        self.copy = StreamedCopy()
        self.begun = 0
        self.failed = ""

    @property
    def due(self) -> bool:
        return not self._began or self._dice.random() < self._due

    def begin(self, checkpoint: Checkpoint) -> None:
        again = self._began and self._dice.random() < 0.5
        self._began = True
        self.begun += 1
        self.copy.take(renewed() if again else begun(POLICY, checkpoint))

    def cannot_begin(self, why: str) -> None:
        self.failed = why

    def observe(self, call: CoreCall) -> None:
        self.copy.take(called(call))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_a_copy_that_repeats_the_calls_stays_equal_and_so_does_the_recording(tmp_path: Path, seed: int) -> None:
    stream = _Stream(seed, 0.1)
    recorded = Recorded(tmp_path)
    recorded.calls = CoreCalls([recorded.recorder, stream])
    live(recorded, seed)
    recorded.close()
    assert stream.begun > 1 and not recorded.stopped
    assert stream.copy.state is not recorded.state
    assert stream.copy.state.steps == recorded.state.steps > 0
    assert CHECKPOINT.encode(take(stream.copy.state)) == CHECKPOINT.encode(take(recorded.state))
    assert only_replay(tmp_path).verdict == "equal"


def test_a_copy_that_decides_something_else_is_not_used(tmp_path: Path) -> None:
    stream = _Stream(1, 0.0)
    recorded = Recorded(tmp_path)
    recorded.calls = CoreCalls([stream])
    live(recorded, 1, steps=10)
    recorded.close()
    call = CoreCall(
        RecordedLine(recorded.state.now_ms, recorded.state.steps + 1),
        [Hold("g", (), Refusal(Reason.NO_NODES, When.NOT_YET), 1)],
    )
    with pytest.raises(ValueError, match="decided"):
        stream.copy.take(called(call))
