# SPDX-License-Identifier: Apache-2.0
"""The lines of `top` at the widths of terminals, and names that could break them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from dovetail.cli.top.lines import Line, bar, gpu_lines, group_lines, memory, printable, style_of
from dovetail.kube.reading import gpu_samples as names
from dovetail.views.top_rows import GpuRow
from tests.views.test_top import BUSY, IDLE, answer, device, node

LONG = "gpu-pool-a3-mega-0123456789-westeurope-4b7f"


def text(line: Line) -> str:
    return "".join(part for part, _ in line)


def rows(name: str = "n1", pod: str = "train-0") -> tuple[GpuRow, ...]:
    values = BUSY | {
        names.POWER: 612.3,
        names.TEMPERATURE: 64.0,
        names.MEMORY_USED: 70_000.0,
        names.MEMORY_FREE: 11_000,
    }
    return answer(node(device(name, 0, pod, values=values, queue="research"), device(name, 1))).gpus


@pytest.mark.parametrize("width", [40, 80, 120, 200])
def test_lines_fit_the_terminal(width: int) -> None:
    found = rows(LONG, f"{LONG}-training-0")
    table = gpu_lines(found, width)
    lines = [text(table.heading), *(text(table.line(row)) for row in found)]
    assert all(cell_len(line) <= width for line in lines)
    assert {"NODE", "GPU", "POD", "USE", "CLASS"} <= set(lines[0].split())


def test_a_wide_terminal_shows_everything() -> None:
    table = gpu_lines(rows(), 200)
    assert text(table.line(rows()[0])).split() == [
        "n1", "0", "default/train-0", "train", "@research", "████▍", "74%", "90", "70", "40", "68/79G", "612W", "64C",
        "tensor-heavy",
    ]  # fmt: skip


def test_a_narrow_terminal_leaves_out_what_matters_least() -> None:
    headings = [column.heading for column, _ in gpu_lines(rows(), 80).columns]
    assert "USE" in headings and "CLASS" in headings and "TEMP" not in headings


def test_without_a_width_no_name_is_cut() -> None:
    table = gpu_lines(rows(LONG, f"{LONG}-0"), None)
    assert f"default/{LONG}-0" in text(table.line(rows(LONG, f"{LONG}-0")[0]))


def test_colours_show_states() -> None:
    found = answer(
        node(
            device("n1", 0, "a-0"),
            device("n1", 1, "b-0", values=IDLE),
            device("n1", 2),
            device("n1", 3, "c-0", state="quarantined"),
        )
    ).gpus
    assert [style_of(row) for row in found] == ["green", "yellow", "dim", "red"]


def test_a_gpu_that_is_used_and_held_by_no_pod_is_not_dim() -> None:
    (row,) = answer(node(device("n1", 0, values=BUSY))).gpus
    assert (style_of(row), row.bottleneck) == ("yellow", "tensor-heavy")


@given(st.text(max_size=400))
def test_no_name_reaches_the_terminal_with_control_characters(name: str) -> None:
    shown = printable(name)
    assert shown.isprintable()
    assert len(shown) <= 10 * 256


@given(st.text(st.characters(blacklist_categories=("Cs",)), max_size=60), st.integers(30, 200))
def test_any_pod_name_fits_any_width(name: str, width: int) -> None:
    found = rows("n1", name or "x")
    table = gpu_lines(found, width)
    assert all(cell_len(text(table.line(row))) <= width for row in found)


def test_markup_in_names_is_text() -> None:
    table = gpu_lines(rows("n1", "[bold]x[/bold]\x1b[31m"), None)
    line = text(table.line(rows("n1", "[bold]x[/bold]\x1b[31m")[0]))
    assert "default/[bold]x[/bold]\\x1b[31m" in line


@pytest.mark.parametrize("by", ["node", "job", "team"])
@pytest.mark.parametrize("width", [40, 80, 120, 200, None])
def test_groups_fit_too(by: str, width: int | None) -> None:
    found = answer(node(device(LONG, 0, f"{LONG}-0", queue="q"), device(LONG, 1)), by=by)
    table = group_lines(found.groups, found.by, width)
    lines = [text(table.line(group)) for group in found.groups]
    assert lines and all(width is None or cell_len(line) <= width for line in lines)


@pytest.mark.parametrize(("value", "drawn"), [(0.0, "         0%"), (50.0, "███     50%"), (100.0, "██████ 100%")])
def test_bars(value: float, drawn: str) -> None:
    assert bar(value) == drawn


def test_memory_of_many_gpus_is_in_terabytes() -> None:
    assert (memory(40_960, 81_920), memory(20 << 20, 40 << 20), memory(None, None)) == ("40/80G", "20/40T", "-")
