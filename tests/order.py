# SPDX-License-Identifier: Apache-2.0
"""The order of the files of tests where processes share them (`tests.distribution`), and what a process keeps for some.

Rules
- A file has the rank of the first of MARKS that it names. A process that has used a plane gets no file of a lower rank
  after one of a higher. So what only files up to some rank use ends at the first test of a later one: a plane takes 4 %
  of a core while nobody asks it anything, a node with its plane 10 %.
- From the first test without a plane on, a process yields to others (nice): planes and nodes have clocks, and on a slow
  machine their probes and leases time out while tests compute.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache

from tests.paths import ROOT

NODE, PLANE, DEPLOYED, SLOW = MARKS = ("pytest.mark.node", "pytest.mark.plane", "deployed_plane", "pytest.mark.slow")
"""What files have that come early, the earliest first."""

_YIELDING = 5
"""The nice value of a process that runs tests without a plane: it gets a third of the share of one with a plane."""
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


def needs_node(file: str) -> bool:
    return rank(file) == MARKS.index(NODE)


def needs_plane(file: str) -> bool:
    """Whether tests of this file use a control plane, with a node or without."""
    return rank(file) <= MARKS.index(DEPLOYED)


@contextmanager
def kept_up_to(mark: str) -> Iterator[ExitStack]:
    """For a fixture of the session: what it enters here ends after the files of this mark, or with the session."""
    with ExitStack() as stack:
        _kept.append((mark, stack))
        yield stack


def begin(file: str) -> None:
    """Prepare this process for the next file: end what no test of this file or of a later one uses, and yield to
    others if it needs no plane."""
    for mark, stack in _kept:
        if rank(file) > MARKS.index(mark):
            stack.close()
    if not needs_plane(file) and os.nice(0) < _YIELDING:
        os.nice(_YIELDING - os.nice(0))
