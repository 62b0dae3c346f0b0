# SPDX-License-Identifier: Apache-2.0
"""What a board is: rows of panels, and Grafana's document for it.

Rules
- A panel answers one question, with one or more queries. Colour marks state only: green, yellow, red by its steps.
- Panels fill rows of 24 columns from left to right; a panel that does not fit begins the next line.
- Every board has the variable `datasource`. The others filter by label, and "All" is the default.
- A panel about faults has data only while there is one: its `empty` text is what Grafana shows without data.
Source: Grafana's dashboard model, schema version 41 (Grafana 12).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

from msgspec import Struct

SCHEMA_VERSION = 41
COLUMNS = 24
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
_HEIGHTS = {"stat": 4, "timeseries": 8, "table": 9, "bargauge": 8}

PanelType = Literal["stat", "timeseries", "table", "bargauge"]
Document = dict[str, Any]


class Query(Struct, frozen=True):
    """A PromQL expression. `legend` names a series by its labels (`{{hostname}}`); of a table it names the column."""

    expr: str
    legend: str = ""


class Panel(Struct, frozen=True):
    """`steps` are (value from which, colour), the first colour holds below. `faults`: it has data only during a fault.
    `shown` are the label columns of a table, in order. `link` is the uid of the board with more about a row of it."""

    title: str
    question: str
    type: PanelType
    queries: tuple[Query, ...]
    unit: str = "short"
    width: int = 12
    steps: tuple[tuple[float, str], ...] = ()
    first: str = "green"
    most: float | None = None
    empty: str = "no data"
    faults: bool = False
    shown: tuple[str, ...] = ()
    stacked: bool = False


class Variable(Struct, frozen=True):
    """A filter: values of `label` of `metric`."""

    name: str
    title: str
    metric: str
    label: str


class Board(Struct, frozen=True):
    """`rows` are a title and its panels. In queries `$filter` stands for `filter`, which uses the variables."""

    uid: str
    title: str
    question: str
    filter: str
    variables: tuple[Variable, ...]
    rows: tuple[tuple[str, tuple[Panel, ...]], ...]

    @property
    def panels(self) -> tuple[Panel, ...]:
        return tuple(panel for _, panels in self.rows for panel in panels)

    def expression(self, query: Query) -> str:
        """The PromQL of a query, with Grafana's variables."""
        return query.expr.replace("$filter", self.filter)


def dashboard(board: Board, boards: Sequence[Board]) -> Document:
    """Grafana's document of a board, with links to the other ones."""
    return {
        "uid": board.uid,
        "title": board.title,
        "description": board.question,
        "tags": ["dovetail", "gpu"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "timepicker": {},
        "timezone": "browser",
        "annotations": {"list": []},
        "links": [_link(other) for other in boards if other is not board],
        "templating": {"list": [_datasource(), *map(_variable, board.variables)]},
        "panels": list(_panels(board)),
    }


def _link(board: Board) -> Document:
    return {
        "title": board.title, "type": "link", "url": f"/d/{board.uid}", "icon": "dashboard", "tooltip": board.question,
        "asDropdown": False, "includeVars": True, "keepTime": True, "targetBlank": False, "tags": [],
    }  # fmt: skip


def _datasource() -> Document:
    return {
        "name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus", "regex": "",
        "hide": 0, "multi": False, "includeAll": False, "options": [], "refresh": 1, "current": {},
        "skipUrlSync": False,
    }  # fmt: skip


def _variable(variable: Variable) -> Document:
    query = f"label_values({variable.metric}, {variable.label})"
    return {
        "name": variable.name, "label": variable.title, "type": "query", "datasource": DATASOURCE,
        "definition": query, "query": {"query": query, "refId": "values"}, "refresh": 2, "sort": 7, "regex": "",
        "hide": 0, "multi": True, "includeAll": True, "allValue": ".*", "options": [], "skipUrlSync": False,
        "current": {"text": ["All"], "value": ["$__all"]},
    }  # fmt: skip


def _panels(board: Board) -> Iterator[Document]:
    number, y = 0, 0
    for title, panels in board.rows:
        number += 1
        yield {
            "id": number, "type": "row", "title": title, "collapsed": False, "panels": [],
            "gridPos": {"x": 0, "y": y, "w": COLUMNS, "h": 1},
        }  # fmt: skip
        x, y, height = 0, y + 1, 0
        for panel in panels:
            if x + panel.width > COLUMNS:
                x, y, height = 0, y + height, 0
            number += 1
            yield _panel(board, panel, number, (x, y))
            x, height = x + panel.width, max(height, _HEIGHTS[panel.type])
        y += height


def _panel(board: Board, panel: Panel, number: int, at: tuple[int, int]) -> Document:
    first: list[Document] = [{"value": None, "color": panel.first if panel.steps else "text"}]
    steps = [{"value": value, "color": colour} for value, colour in panel.steps]
    by_state = panel.steps and panel.type != "timeseries"
    defaults: Document = {
        "unit": panel.unit,
        "noValue": panel.empty,
        "color": {"mode": "thresholds" if by_state else "palette-classic"},
        "thresholds": {"mode": "absolute", "steps": first + steps},
        **({"max": panel.most, "min": 0} if panel.most is not None else {}),
    }
    if panel.type == "timeseries":
        defaults["custom"] = {
            "lineWidth": 1, "fillOpacity": 20 if panel.stacked else 0, "showPoints": "never", "spanNulls": False,
            "stacking": {"mode": "normal" if panel.stacked else "none", "group": "A"},
            "thresholdsStyle": {"mode": "dashed" if panel.steps else "off"},
        }  # fmt: skip
    document: Document = {
        "id": number,
        "type": panel.type,
        "title": panel.title,
        "description": panel.question,
        "datasource": DATASOURCE,
        "gridPos": {"x": at[0], "y": at[1], "w": panel.width, "h": _HEIGHTS[panel.type]},
        "targets": [_target(panel, i, query.legend, board.expression(query)) for i, query in enumerate(panel.queries)],
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": _OPTIONS[panel.type],
    }
    if panel.type == "table":
        document["transformations"] = _columns(panel)
    return document


def _target(panel: Panel, i: int, legend: str, expr: str) -> Document:
    at_once = panel.type != "timeseries"
    return {
        "refId": chr(ord("A") + i), "datasource": DATASOURCE, "expr": expr, "legendFormat": legend,
        "instant": at_once, "range": not at_once, "format": "table" if panel.type == "table" else "time_series",
    }  # fmt: skip


_REDUCED = {"reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}}
_OPTIONS: dict[str, Document] = {
    "stat": {
        **_REDUCED, "colorMode": "value", "graphMode": "area", "justifyMode": "auto", "orientation": "auto",
        "textMode": "auto",
    },
    "bargauge": {**_REDUCED, "displayMode": "basic", "orientation": "horizontal", "showUnfilled": True},
    "timeseries": {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
        "tooltip": {"mode": "multi", "sort": "desc"},
    },
    "table": {"showHeader": True, "cellHeight": "sm", "footer": {"show": False, "reducer": ["sum"], "fields": ""}},
}  # fmt: skip


def _columns(panel: Panel) -> list[Document]:
    """One row for each combination of labels, with the queries' values as columns behind the shown labels."""
    names = [f"Value #{chr(ord('A') + i)}" for i in range(len(panel.queries))]
    several = len(panel.queries) > 1
    values = names if several else ["Value"]
    order = {name: i for i, name in enumerate((*panel.shown, *values))}
    titles = {name: query.legend for name, query in zip(values, panel.queries, strict=True) if query.legend}
    organize = {"indexByName": order, "renameByName": titles, "excludeByName": {"Time": True}}
    keep = {"include": {"names": [*panel.shown, *values]}}
    merged: list[Document] = [{"id": "merge", "options": {}}] if several else []
    return [*merged, {"id": "filterFieldsByName", "options": keep}, {"id": "organize", "options": organize}]
