# SPDX-License-Identifier: Apache-2.0
"""The boards: sound documents of Grafana, on metrics that exist, in step with the files."""

from __future__ import annotations

import json
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from click.testing import CliRunner

from dovetail.cli.monitoring import command
from dovetail.monitoring.board import COLUMNS, Board
from dovetail.monitoring.boards import BOARDS, documents
from dovetail.monitoring.rules import RECORDINGS
from tests.docs.pages import page
from tests.monitoring.grafana import Dashboard, Row
from tests.monitoring.test_rules import KINDS, names_in

SETTINGS = ("$__rate_interval",)
EACH = pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.uid)


@EACH
def test_a_board_has_only_what_grafana_knows(board: Board) -> None:
    found = msgspec.convert(documents()[board.uid], Dashboard)
    for panel in found.panels:
        if not isinstance(panel, Row):
            values = [step.value for step in panel.fieldConfig.defaults.thresholds.steps]
            assert values[0] is None
            assert values[1:] == sorted({*values[1:]}, key=float)  # type: ignore[arg-type]


def _queries(document: dict[str, Any]) -> list[str]:
    return [target["expr"] for panel in document["panels"] for target in panel.get("targets", ())]


@EACH
def test_panels_have_places_of_their_own(board: Board) -> None:
    panels = documents()[board.uid]["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = [panel["gridPos"] for panel in panels]
    assert all(at["x"] >= 0 and at["x"] + at["w"] <= COLUMNS and at["h"] > 0 for at in places)
    for one, other in combinations(places, 2):
        apart_x = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        apart_y = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert apart_x or apart_y


@EACH
def test_queries_use_the_variables_of_their_board(board: Board) -> None:
    found = {name for query in _queries(documents()[board.uid]) for name in re.findall(r"\$\w+", query)}
    assert found - {*SETTINGS} == {f"${variable.name}" for variable in board.variables}


@EACH
def test_a_panel_asks_a_question_and_states_what_no_data_means(board: Board) -> None:
    for panel in board.panels:
        assert panel.question.endswith("?")
        assert panel.queries
        assert not panel.faults or panel.empty != "no data"
        assert panel.type != "table" or panel.shown
    titles = [panel.title for panel in board.panels]
    assert len(titles) == len({*titles})


def test_every_metric_is_in_a_table() -> None:
    own = {rule.name for rule in RECORDINGS}
    documented = {code for row in page("docs/reference/metrics.md").rows("metric") for code in row.code[0]}
    histograms = {name + "_bucket" for name in documented}
    gpu = {line.partition(",")[0] for line in KINDS.read_text().splitlines()[1:]}
    expressions = [query for document in documents().values() for query in _queries(document)]
    expressions += [variable.metric for board in BOARDS for variable in board.variables]
    named = {name for query in expressions for name in names_in(query)}
    assert len(named) > 30
    assert named <= own | documented | histograms | gpu


@EACH
def test_boards_link_to_each_other(board: Board) -> None:
    links = {link["url"] for link in documents()[board.uid]["links"]}
    assert links == {f"/d/{other.uid}" for other in BOARDS if other is not board}


def test_the_command_writes_each_board(tmp_path: Path) -> None:
    run = CliRunner()
    shown = run.invoke(command, ["boards"])
    assert json.loads(shown.stdout) == documents()
    assert run.invoke(command, ["boards", "--folder", str(tmp_path / "new")]).exit_code == 0
    assert {path.stem: json.loads(path.read_text()) for path in (tmp_path / "new").iterdir()} == documents()
    maps = run.invoke(command, ["boards", "-o", "configmaps", "--namespace", "mine"])
    found = [*yaml.safe_load_all(maps.stdout)]
    assert {one["metadata"]["namespace"] for one in found} == {"mine"}
    assert {json.loads(text)["uid"] for one in found for text in one["data"].values()} == documents().keys()


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.write_text("")
    found = CliRunner().invoke(command, ["boards", "--folder", str(taken / "below")])
    assert found.exit_code == 1
    assert f"cannot write to {taken / 'below'}" in found.stderr
