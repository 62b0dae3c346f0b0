# SPDX-License-Identifier: Apache-2.0
"""The screen of `top`: what keys do, at the sizes of terminals."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from dovetail.cli.top.keys import keys_of
from dovetail.cli.top.lines import plain
from dovetail.cli.top.screen import Screen, started
from dovetail.kube.reading.gpu_exporters import NodeSamples
from dovetail.views.top_rows import TopReading, TopWindow
from tests.views.test_top import IDLE, device, node


def reading(*nodes: NodeSamples) -> TopReading:
    window = TopWindow()
    window.add(nodes)
    return window.reading(100.0, "test")


CLUSTER = reading(
    node(device("n1", 0, "train-0", queue="research"), device("n1", 1, "train-1", queue="research")),
    node(device("n2", 0, "notebook", values=IDLE), device("n2", 1)),
    node(name="n3", at_s=0.0, fault="no answer yet"),
)


def after(*keys: str, width: int = 120, height: int = 24, screen: Screen | None = None) -> list[str]:
    """The screen after these keys, each on what was shown before."""
    screen = screen or Screen()
    screen.frame(CLUSTER, width, height)
    for key in keys:
        assert screen.press(key)
        screen.frame(CLUSTER, width, height)
    return [plain(line).rstrip() for line in screen.frame(CLUSTER, width, height)]


def names(lines: list[str]) -> list[str]:
    """The first words of the lines of the list."""
    start = next(i for i, line in enumerate(lines) if line.startswith(("NODE", "JOB", "TEAM"))) + 1
    return [line.split()[0] for line in lines[start:-1] if line]


def test_gpus_are_listed_first_with_the_summary_and_faults() -> None:
    lines = after()
    assert lines[0] == "dovetail top gpus"
    assert lines[1].startswith("4 GPUs, 3 allocated, 2 computing, 1 allocated and idle")
    assert lines[2] == "node n3: no answer yet"
    assert names(lines) == ["n1", "n1", "n2", "n2"]
    assert lines[-1].startswith("q quit")


@pytest.mark.parametrize(
    ("key", "expected"),
    [("n", ["n1", "n2", "n3"]), ("j", ["default/notebook", "default/train"]), ("t", ["default", "research"])],
)
def test_views(key: str, expected: list[str]) -> None:
    assert names(after(key)) == expected
    by = {"n": "node", "j": "job", "t": "team"}[key]
    if by != "node":
        assert names(after(screen=started(Screen(), by))) == expected  # type: ignore[arg-type]


def test_a_job_opens_to_its_gpus_and_a_gpu_to_its_containers() -> None:
    assert names(after("j", "down", "enter")) == ["n1", "n1"]
    lines = after("j", "down", "enter", "down", "enter")
    assert lines[0].endswith("jobs > default/train > n1/GPU-n1-1")
    assert any("default/train-1 main" in line and "queue research" in line for line in lines)
    assert names(after("j", "down", "enter", "enter", "escape")) == ["n1", "n1"]
    back = Screen()
    after("j", "down", "enter", "escape", screen=back)
    assert back.selected == "default/train"


def test_a_filter_is_typed_kept_and_removed() -> None:
    assert after("/", "n", "o")[-1] == "filter: no_"
    assert names(after("/", *"note", "enter")) == ["n2"]
    assert names(after("/", *"notex", "backspace", "enter")) == ["n2"]
    assert names(after("/", *"note", "enter", "escape")) == ["n1", "n1", "n2", "n2"]
    assert "no GPU matches the filter" in after("/", *"nothing", "escape", "/", *"xyz", "enter")


def test_the_selected_line_is_followed_when_the_order_changes() -> None:
    screen = Screen()
    after("down", "down", "down", screen=screen)
    assert screen.selected == "n2/GPU-n2-1"
    after("s", screen=screen)
    assert (screen.order, screen.selected) == ("use", "n2/GPU-n2-1")


def test_help_pause_and_quit() -> None:
    assert after("?")[0] == "dovetail top: keys"
    assert after("?", "x")[0] == "dovetail top gpus"
    assert after(" ")[0].endswith("paused")
    assert not Screen().press("q")


def test_before_the_first_reading_and_after_a_failed_one() -> None:
    assert plain(Screen().frame(None, 80, 24)[0]) == "reading ..."
    screen = Screen(fault="it is gone")
    assert plain(screen.frame(None, 80, 24)[0]) == "it is gone"
    assert "it is gone" in after(screen=screen)


def test_without_exporters_the_next_step_is_shown() -> None:
    text = "\n".join(plain(line) for line in Screen().frame(reading(), 80, 24))
    assert "kubectl apply -k deploy/agent" in " ".join(text.split())


def test_the_list_scrolls_with_the_selection() -> None:
    many = reading(*(node(device(f"n{i:03}", 0)) for i in range(200)))
    screen = Screen()
    screen.frame(many, 80, 24)
    for key, shown in (("end", "n199"), ("up", "n199"), ("home", "n000"), ("page-down", "n017")):
        screen.press(key)
        text = "\n".join(plain(line) for line in screen.frame(many, 80, 24))
        assert shown in text


KEYS = st.sampled_from(
    ["up", "down", "page-up", "page-down", "home", "end", "enter", "escape", "left", "right", *"gnjtsS ?/xe"]
)


@settings(max_examples=60)
@given(st.lists(KEYS, max_size=12), st.integers(1, 220), st.integers(1, 60))
def test_any_keys_at_any_size_draw_a_screen_that_fits(keys: list[str], width: int, height: int) -> None:
    screen = Screen()
    for key in keys:
        assert screen.press(key)
        lines = screen.frame(CLUSTER, width, height)
        assert len(lines) <= height
        assert all(cell_len(plain(line)) <= width for line in lines)


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        ("q", ["q"]), ("\x1b[A\x1b[B", ["up", "down"]), ("\x1b", ["escape"]), ("\r", ["enter"]), ("é/", ["é", "/"]),
        ("\x1b[5~x", ["page-up", "x"]), ("\x1b[200~", []), ("\x1bOA", ["up"]), ("\x7f\x00", ["backspace"]),
    ],
)  # fmt: skip
def test_keys(sent: str, expected: list[str]) -> None:
    assert list(keys_of(sent)) == expected


@given(st.text())
def test_no_bytes_make_a_key_that_a_filter_could_not_hold(sent: str) -> None:
    assert all(key.isprintable() and key for key in keys_of(sent))
