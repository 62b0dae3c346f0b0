# SPDX-License-Identifier: Apache-2.0
"""The order of the files of tests where processes share them (`tests.distribution`), and what a process keeps for some.

Rules: a file has the rank of the first of MARKS that it names, and a process gets no file of a lower rank after one of
a higher. So what only files up to some rank use ends at the first test of a later one: a plane takes 4 % of a core
while nobody asks it anything, a node with its plane 10 %.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache

from tests.paths import ROOT

NODE, PLANE, DEPLOYED, SLOW = MARKS = ("pytest.mark.node", "pytest.mark.plane", "deployed_plane", "pytest.mark.slow")
"""What files have that come early, the earliest first."""

_kept: list[tuple[str, ExitStack]] = []


@cache
def rank(file: str) -> int:
    text = (ROOT / file).read_text()
    if file.startswith("tests/contract/"):
        # Its mark is in its conftest.py.
        return MARKS.index(PLANE)
    if NODE not in text and (file.startswith("tests/live/") or DEPLOYED in text):
        return MARKS.index(DEPLOYED)
    return next((rank for rank, mark in enumerate(MARKS) if mark in text), len(MARKS))


@contextmanager
def kept_up_to(mark: str) -> Iterator[ExitStack]:
    """For a fixture of the session: what it enters here ends after the files of this mark, or with the session."""
    with ExitStack() as stack:
        _kept.append((mark, stack))
        yield stack


def end_what_is_over(file: str) -> None:
    """End what no test of this file or of a later one uses."""
    for mark, stack in _kept:
        if rank(file) > MARKS.index(mark):
            stack.close()
