# SPDX-License-Identifier: Apache-2.0
"""The curves of the core's cost: each point is measured, drawn and printed."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import growth


@pytest.mark.parametrize(("curve", "x"), [("nodes", 64), ("shapes", 1), ("waiting", 40), ("gang", 2)])
@pytest.mark.slow
def test_a_point_of_each_curve_is_measured(monkeypatch: pytest.MonkeyPatch, curve: str, x: int) -> None:
    monkeypatch.setattr(growth, "NODES", 64)
    monkeypatch.setattr(growth, "PODS", 50)
    assert growth.CURVES[curve].measure(0, x) > 0


@pytest.mark.slow
def test_the_curves_are_drawn(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [{"curve": name, "x": x, "y": x} for name in growth.CURVES for x in (1, 10)]
    growth.plot(rows, str(tmp_path / "curves.png"))
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
