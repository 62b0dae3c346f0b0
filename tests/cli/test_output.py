# SPDX-License-Identifier: Apache-2.0
"""How times, GPUs, starts and amounts are written for people."""

from __future__ import annotations

import pytest
from rich.progress import Progress

from dovetail.cli import output
from dovetail.cli.output import ago, gpus, indices, looking_ahead, span, start
from dovetail.core.reasons import Expected, Sure
from dovetail.views.amounts import AmountError, changed, listed

SECOND, MINUTE, HOUR, DAY = 1000, 60_000, 3_600_000, 86_400_000


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0 s"), (999, "0 s"), (30 * SECOND, "30 s"), (90 * SECOND, "1 min 30 s"), (HOUR + 59 * SECOND, "1 h"),
        (3 * HOUR + 5 * MINUTE, "3 h 5 min"), (2 * DAY + 4 * HOUR + MINUTE, "2 d 4 h"),
    ],
)  # fmt: skip
def test_times_have_their_two_largest_units(ms: int, text: str) -> None:
    assert span(ms) == text


@pytest.mark.parametrize(
    ("expected", "text"),
    [
        (None, "-"),
        (Expected(Sure.UNKNOWN), "not known"),
        (Expected(Sure.KNOWN, 5), "now"),
        (Expected(Sure.KNOWN, 10 + HOUR), "in 1 h"),
        (Expected(Sure.LEARNED, 10 + HOUR), "in about 1 h"),
        (Expected(Sure.KNOWN, 10 + 1), "any moment"),
    ],
)
def test_expected_starts_have_a_certainty(expected: Expected | None, text: str) -> None:
    assert start(expected, 10) == text


def test_since_when_is_not_always_known() -> None:
    assert (ago(0, 10), ago(10, 10 + MINUTE), ago(20, 10)) == ("?", "1 min", "0 s")


def test_gpus_and_their_indices() -> None:
    assert (gpus(8000), gpus(500), gpus(0)) == ("8", "0.5", "0")
    assert (indices((0, 1, 2, 3, 6)), indices((5,)), indices(())) == ("0-3,6", "5", "")


def test_amounts_are_read_and_written() -> None:
    amounts = changed(
        (("gpu", 1000), ("memory", 1)), ("gpu=0.5", "memory=2Ti", "gpu/H100=8", "gpu-memory=80Gi", "cpu=4")
    )
    assert dict(amounts) == {"cpu": 4000, "gpu": 500, "gpu/H100": 8000, "gpu-memory": 81920, "memory": 2**41}
    assert listed(amounts) == "0.5 gpu, 80Gi gpu-memory, 8 gpu/H100, 4 cpu, 2Ti memory"
    assert changed(amounts, ("gpu=none", "gpu/H100=none", "gpu-memory=none", "cpu=none", "memory=none")) == ()
    assert listed(()) == "nothing"


@pytest.mark.parametrize("text", ["gpu", "gpu=-1", "gpu/=1", "disk=1", "cpu=lots", "memory="])
def test_an_invalid_amount_is_reported(text: str) -> None:
    with pytest.raises(AmountError):
        changed((), (text,))


def test_progress_is_shown_of_what_takes_longer_than_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, begun = [0.0], list[float]()
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr(output.time, "monotonic", lambda: now_s[0])
    monkeypatch.setattr(Progress, "start", lambda _: begun.append(now_s[0]))
    with looking_ahead() as show:
        for now_s[0] in (0.0, 0.5, 1.0):
            show(1, 9)
        assert not begun
        now_s[0] = 1.1
        show(2, 9)
        assert begun == [1.1]
