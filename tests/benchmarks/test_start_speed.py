# SPDX-License-Identifier: Apache-2.0
"""The benchmark of the start measures every command, and real runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import start_speed
from dovetail.cli import cli


def test_every_command_is_measured_and_each_real_run_is_of_one() -> None:
    names = cli.list_commands(start_speed.click.Context(cli))
    found = start_speed.calls([], Path("config"))
    assert {f"{name} --help" for name in names} | {"--version", "agent run --help"} <= set(found)
    assert {words[0] for words in start_speed.REAL} < set(names)
    assert {f"{words} (answered)" for words in start_speed.ANSWERED} <= set(found)


@pytest.mark.slow
@pytest.mark.parametrize("words", start_speed.REAL, ids=lambda words: words[0])
def test_a_real_run_works(words: tuple[str, ...]) -> None:
    wall_ms, cpu_ms = start_speed.one_run((*start_speed.COMMAND, *words))
    assert cpu_ms > 0 and wall_ms > 0


def test_a_run_that_fails_is_not_measured() -> None:
    with pytest.raises(RuntimeError, match="why none -f ends with 2"):
        start_speed.one_run((*start_speed.COMMAND, "why", "none", "-f"))


@pytest.mark.slow
def test_the_table_has_medians_of_what_is_named() -> None:
    found = start_speed.measure(1, start_speed.calls(["monitoring"], Path("config")))
    helps = ["monitoring --help", "monitoring boards --help", "monitoring rules --help"]
    assert list(found) == [start_speed.NOTHING, *helps]
    assert all(found[start_speed.NOTHING][1] < found[call][1] for call in helps)
