# SPDX-License-Identifier: Apache-2.0
"""The screen of `dovetail watch` on a cluster of files: its lists, its keys, and what is behind a row."""

from __future__ import annotations

from pathlib import Path

import pytest

from dovetail.cli.output import printable
from dovetail.cli.watch.drill import KeysPage, NodeHoldersPage, WhyJobPage
from dovetail.cli.watch.keys import KEYS
from dovetail.cli.watch.pages import ListsPage
from tests.cli.listed_jobs import AT, EVIL, GPU, node, pod
from tests.cli.watch.watched import printed, screen, watched, write


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write(tmp_path_factory.mktemp("watch"))


def words(line: str) -> list[str]:
    return line.replace("↑", " ").split()


@pytest.mark.parametrize(("key", "name"), [("1", "jobs"), ("2", "queue"), ("3", "nodes")])
@pytest.mark.slow
async def test_a_list_has_the_rows_and_columns_of_the_command(file: str, key: str, name: str) -> None:
    async with screen(watched(file), size=(400, 30)) as seen:
        await seen.press(key)
        await seen.until(lambda: bool(seen.rows.shown))
        table = [words(line) for line in printed(name, "-f", file, "--at", AT).splitlines()]
        rows = len(seen.rows.shown)
        assert rows == {"jobs": 7, "queue": 3, "nodes": 6}[name]
        assert [words(line) for line in seen.text().splitlines()[: rows + 1]] == table[: rows + 1]
        assert seen.line("head").endswith(f"  {rows}")
        assert seen.line("place") == f"as of 2026-11-22 12:00:00 UTC  {file}"


@pytest.mark.slow
async def test_from_a_job_to_why_to_its_nodes_to_their_holders_and_back(file: str) -> None:
    async with screen(watched(file)) as seen:
        await seen.shows("ml/next")
        await seen.press("end", "up", "up")
        assert seen.selected == "ml/next"
        await seen.press("enter")
        text = printed("why", "ml/next", "-f", file, "--at", AT, columns=120)
        await seen.shows("Pods that hold what is missing")
        assert [line.rstrip() for line in seen.text().splitlines()] == text.splitlines()

        await seen.press("enter")
        await seen.shows("nodes of ml/next")
        await seen.until(lambda: [row.name for row in seen.rows.shown] == ["g1", "g2", "g3", "g4", "g5", "m1"])
        await seen.press("j", "enter")
        await seen.shows("node g2  held by 1")
        await seen.shows("ml/train-1-abcde")
        assert words(seen.text().splitlines()[1]) == [
            "ml/train-1-abcde",
            "ml/train",
            "ada",
            "default",
            "8",
            "not",
            "known",
        ]
        assert "no agent reports the health of its" in seen.text()

        await seen.press("enter")
        await seen.shows("why ml/train-1-abcde")
        await seen.shows("ml/train-1-abcde is on node g2")
        await seen.press("n")
        await seen.shows("node g2")
        for page in (WhyJobPage, NodeHoldersPage):
            await seen.press("escape")
            assert isinstance(seen.page, page)
        await seen.press("escape", "escape", "escape")
        assert isinstance(seen.page, ListsPage) and seen.selected == "ml/next"


async def test_a_node_shows_the_holders_of_parts_of_its_gpus(file: str) -> None:
    async with screen(watched(file)) as seen:
        await seen.press("3")
        await seen.shows("m1")
        await seen.press("G")
        assert seen.selected == "m1"
        await seen.press("enter")
        await seen.shows("ml/slice")
        assert words(seen.text().splitlines()[1])[:3] == ["ml/slice", "ml/slice", "-"]
        await seen.press("w")
        await seen.shows("ml/slice is on node m1")


@pytest.mark.slow
async def test_a_filter_has_all_words_and_is_left_with_escape(file: str) -> None:
    async with screen(watched(file)) as seen:
        await seen.shows("ml/next")
        await seen.press("slash", *"RUNNING ada", "enter")
        assert [row.name for row in seen.rows.shown] == ["ml/train"]
        assert seen.line("head").endswith("1 of 7, /running ada")
        await seen.press("slash", "x", "x")
        assert "No row has all these words." in seen.text()
        await seen.press("escape")
        assert not seen.rows.shown
        await seen.press("escape")
        assert len(seen.rows.shown) == 7


async def test_s_sorts_by_the_next_column_and_at_last_as_listed(file: str) -> None:
    async with screen(watched(file)) as seen:
        await seen.shows("ml/next")
        listed = [row.name for row in seen.rows.shown]
        names = list(seen.rows.grid.names) if seen.rows.grid is not None else []
        await seen.press("s")
        assert [row.name for row in seen.rows.shown] == sorted(listed)
        assert seen.line("head").endswith("7, by job") and "job↑" in seen.text()
        await seen.press("S")
        assert [row.name for row in seen.rows.shown] == sorted(listed, reverse=True) and "job↓" in seen.text()
        await seen.press(*["s"] * names.index("gpus"))
        by_gpus = [float(row.ranks[names.index("gpus")]) for row in seen.rows.shown]
        assert by_gpus == sorted(by_gpus) and by_gpus[0] < by_gpus[-1]
        await seen.press(*["s"] * (len(names) - names.index("gpus")))
        assert [row.name for row in seen.rows.shown] == listed


@pytest.mark.slow
async def test_lists_by_tab_and_by_their_names(file: str) -> None:
    async with screen(watched(file)) as seen:

        def current() -> str:
            assert isinstance(seen.page, ListsPage)
            return seen.page.list_name

        for key, name in (("tab", "queue"), ("tab", "nodes"), ("tab", "jobs"), ("shift+tab", "nodes")):
            await seen.press(key)
            assert current() == name
        await seen.press("colon", *"queue", "enter")
        assert current() == "queue"
        await seen.press("colon", *"node", "enter")
        assert seen.line("foot") == "there is no :node; did you mean :nodes? There are :jobs, :queue, :nodes and :q"
        # From the page of a job, too.
        await seen.until(lambda: bool(seen.rows.shown))
        await seen.press("enter")
        assert isinstance(seen.page, WhyJobPage)
        await seen.press("colon", *"jobs", "enter")
        assert current() == "jobs"


async def test_the_keys_are_listed_and_q_ends(file: str) -> None:
    async with screen(watched(file)) as seen:
        await seen.press("question_mark")
        assert isinstance(seen.page, KeysPage)
        text = " ".join(seen.text().split())
        for one in KEYS:
            assert f"{one.shown} {one.help}" in text
        await seen.press("q")
    assert seen.app.return_value == 0


async def test_ctrl_c_is_an_interrupt(file: str) -> None:
    async with screen(watched(file)) as seen:
        await seen.press("slash", "ctrl+c")
    assert seen.app.return_value == 130


async def test_only_jobs_of_a_namespace(tmp_path: Path) -> None:
    other = pod("theirs", {GPU: "1"})
    other["metadata"]["namespace"] = "other"
    file = write(tmp_path, [node("g1"), pod("ours", {GPU: "1"}), other])
    async with screen(watched(file, "other")) as seen:
        await seen.shows("other/theirs")
        assert [row.name for row in seen.rows.shown] == ["other/theirs"]
        await seen.press("2")
        await seen.until(lambda: len(seen.rows.shown) == 2)


@pytest.mark.slow
@pytest.mark.parametrize("size", [(60, 20), (20, 10), (8, 5), (1, 2)])
async def test_a_small_screen(file: str, size: tuple[int, int]) -> None:
    async with screen(watched(file), size=size) as seen:
        await seen.until(lambda: bool(seen.rows.shown))
        for key in ("end", "enter", "n", "enter", "question_mark", "escape", "2", "right", "slash", "x", "escape", "3"):
            await seen.press(key)
        await seen.until(lambda: seen.selected == "g1")


@pytest.mark.slow
async def test_names_are_never_cut_and_the_rest_of_a_line_is_to_the_right(tmp_path: Path) -> None:
    name = "train-" + "x" * 150
    file = write(tmp_path, [node("g1"), pod(name, {GPU: "1"}, "g1")])
    async with screen(watched(file), size=(60, 10)) as seen:
        await seen.until(lambda: bool(seen.rows.shown))
        await seen.until(lambda: seen.rows.max_scroll_x > 0)
        found = ""
        for _ in range(30):
            found += seen.rows.render_line(1).text[:10]
            await seen.press("right")
        found += seen.rows.render_line(1).text[10:]
        assert f"ml/{name}  -" in found and "Running" in found
        await seen.press(*["left"] * 40)
        assert seen.rows.render_line(0).text.startswith("job ")


async def test_control_characters_of_names_do_not_reach_the_terminal(file: str) -> None:
    async with screen(watched(file)) as seen:
        await seen.shows("ml/next")
        await seen.press("slash", *"evil", "enter", "enter")
        shown = printable(f"ml/{EVIL}")
        await seen.shows(f"why {shown}")
        await seen.shows("g5")
        assert all(character.isprintable() or character == "\n" for character in seen.line("head") + seen.text())
        await seen.press("n")
        await seen.shows(shown)
        assert "\x1b" not in seen.text()


async def test_a_job_that_is_gone_is_reported(file: str) -> None:
    found = watched(file)
    async with screen(found) as seen:
        await seen.shows("ml/next")
        seen.app.show_why("ml/nobody", ())
        await seen.until(lambda: "there is no" in seen.line("fault"))
        await seen.press("escape")
        await seen.until(lambda: not seen.line("fault"))
