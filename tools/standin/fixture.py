# SPDX-License-Identifier: Apache-2.0
"""A pytest fixture for a stand-in machine: `from tools.standin.fixture import standin` in a conftest."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tools.standin import Standin, StandinUnavailable, loaded

MakeStandin = Callable[[str | Mapping[str, Any]], Standin]


@pytest.fixture
def standin(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MakeStandin]:
    """`standin(host)` creates a machine, and NVIDIA's Python binding uses the newest one in this process.

    Without a C compiler the test is skipped with a message. The files of CPUs in /sys belong to all tests of this
    process: one that changes them does that in a copy."""
    cpus = tmp_path_factory.getbasetemp() / "cpus"
    with ExitStack() as stack:
        made: list[Standin] = []

        def make(host: str | Mapping[str, Any]) -> Standin:
            try:
                made.append(Standin(tmp_path / f"machine-{len(made)}", host, cpus=cpus))
            except StandinUnavailable as error:
                pytest.skip(str(error))
            return stack.enter_context(loaded(made[-1]))

        yield make
