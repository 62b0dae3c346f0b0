# SPDX-License-Identifier: Apache-2.0
"""The film of a day: what it shows at each time is what was, however it is divided into parts."""

from __future__ import annotations

import gzip
import random
from bisect import bisect_right

import msgspec
import pytest

from dovetail.dashboard import grid_film
from dovetail.dashboard.day_line import DayLine, DayPoint
from dovetail.dashboard.grid_film import FilmFull, FilmNode, FilmPart, GridFilm


def shown_at(film: GridFilm, at_ms: int) -> dict[FilmNode, str]:
    """As a page makes it: of one part alone."""
    packed = film.part(max(0, bisect_right(film.starts_ms, at_ms) - 1))
    assert packed is not None
    part = msgspec.json.decode(gzip.decompress(packed), type=FilmPart)
    cells = dict(enumerate(part.cells))
    cells |= {number: one for after_ms, number, one in part.changes if part.start_ms + after_ms <= at_ms}
    return {film.nodes[number]: one for number, one in cells.items() if one}


@pytest.mark.parametrize("seed", range(6))
def test_each_time_is_as_it_was(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grid_film, "LEAST_CHANGES", 20)
    dice, film, there = random.Random(seed), GridFilm(), dict[str, tuple[FilmNode, str]]()
    times: list[tuple[int, dict[FilmNode, str]]] = []
    at_ms = 1_000
    for _ in range(400):
        name = f"n{dice.randrange(8)}"
        if dice.random() < 0.2:
            film.remove(at_ms, name)
            there.pop(name, None)
        else:
            node = FilmNode(name, (dice.choice(["r1", "r2"]),) if dice.random() < 0.1 else ("r1",), "H100")
            cells = "".join(dice.choice(".#%x") for _ in range(4))
            film.show(at_ms, node, cells)
            there[name] = node, cells
        times.append((at_ms, dict(there.values())))
        text = "".join(cells for _, cells in there.values())
        assert (film.gpus, film.used, film.free) == (
            len(text), text.count("#") + text.count("%"), text.count(".")
        )  # fmt: skip
        at_ms += dice.randrange(1, 50)
    film.close_part()
    assert len(film.starts_ms) > 10 and film.shown_names == there.keys()
    for at_ms, known in times:
        assert shown_at(film, at_ms) == known


def test_a_film_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grid_film, "LEAST_CHANGES", 2)
    monkeypatch.setattr(grid_film, "MOST_BYTES", 200)
    film = GridFilm()
    with pytest.raises(FilmFull, match="more than 0 MiB"):
        for number in range(20):
            film.show(number, FilmNode("a", (), ""), ".#"[number % 2])
    assert 0 < len(film.starts_ms) < 10 and film.part(len(film.starts_ms)) is None


def test_a_long_day_has_few_points_which_begin_and_end_as_it_did() -> None:
    line = DayLine()
    for number in range(20_000):
        line.add(DayPoint(1_000 * number, number % 7, 8, number % 3))
        line.mark(number, "evicted", "x" * 1000)
    assert 256 < len(line.points) <= 1024
    assert line.points[0].at_ms == 0 and line.points[-1].used == 19_999 % 7
    assert [one.at_ms for one in line.points] == sorted({one.at_ms for one in line.points})
    assert len(line.marks) == 1000 and line.marks_left_out == 19_000 and len(line.marks[0].text) < 320
