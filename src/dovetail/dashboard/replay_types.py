# SPDX-License-Identifier: Apache-2.0
"""What the page about a recorded day gets."""

from __future__ import annotations

from msgspec import Struct

from dovetail.dashboard.day_line import DayMark, DayPoint
from dovetail.dashboard.grid_film import FilmNode


class DayView(Struct, frozen=True, rename="camel"):
    """A day as far as it is read: `read_permille` of its bytes, `whole` if no more comes. `problem` is why it is not
    shown to its end. `parts` are the times (epoch ms) at which the parts of its film begin, `nodes` the number of its
    nodes. `marks_left_out` further marks are not there."""

    name: str
    start_ms: int
    end_ms: int
    whole: bool
    read_permille: int
    problem: str
    nodes: int
    parts: list[int]
    line: list[DayPoint]
    marks: list[DayMark]
    marks_left_out: int


class FilmNodes(Struct, frozen=True):
    """The nodes of the film, by number."""

    nodes: list[FilmNode]
