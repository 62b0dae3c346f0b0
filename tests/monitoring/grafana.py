# SPDX-License-Identifier: Apache-2.0
"""The fields of a dashboard that Grafana knows, with their types and ranges; any other field is an error.

Source: grafana, kinds/dashboard/dashboard_kind.cue and the panelcfg.cue of the panels; targets as the Prometheus data
source has them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

Count = Annotated[int, Meta(ge=0)]
Text = Annotated[str, Meta(min_length=1)]


class Known(Struct, forbid_unknown_fields=True, frozen=True):
    pass


class GridPos(Known, frozen=True):
    x: Annotated[int, Meta(ge=0, lt=24)]
    y: Count
    w: Annotated[int, Meta(gt=0, le=24)]
    h: Annotated[int, Meta(gt=0)]


class DataSource(Known, frozen=True):
    type: Text
    uid: Text


class Step(Known, frozen=True):
    value: float | None
    color: Text


class Thresholds(Known, frozen=True):
    mode: Literal["absolute", "percentage"]
    steps: Annotated[tuple[Step, ...], Meta(min_length=1)]


class Color(Known, frozen=True):
    mode: Literal["thresholds", "palette-classic", "palette-saturated", "continuous-GrYlRd", "fixed"]


class Field(Known, frozen=True):
    unit: Text
    color: Color
    thresholds: Thresholds
    noValue: Text
    min: float | None = None
    max: float | None = None
    custom: dict[str, Any] = {}


class FieldConfig(Known, frozen=True):
    defaults: Field
    overrides: tuple[()]


class Target(Known, frozen=True):
    refId: Annotated[str, Meta(pattern="^[A-Z]$")]
    datasource: DataSource
    expr: Text
    legendFormat: str
    instant: bool
    range: bool
    format: Literal["time_series", "table", "heatmap"]


class Transformation(Known, frozen=True):
    id: Literal["merge", "filterFieldsByName", "organize"]
    options: dict[str, Any]


class Row(Known, tag="row", tag_field="type", frozen=True):
    id: Count
    title: Text
    collapsed: bool
    panels: tuple[()]
    gridPos: GridPos


class _Panel(Known, tag_field="type", frozen=True):
    id: Count
    title: Text
    description: Text
    datasource: DataSource
    gridPos: GridPos
    targets: Annotated[tuple[Target, ...], Meta(min_length=1)]
    fieldConfig: FieldConfig
    options: dict[str, Any]
    transformations: tuple[Transformation, ...] = ()


class Stat(_Panel, tag="stat", frozen=True):
    pass


class TimeSeries(_Panel, tag="timeseries", frozen=True):
    pass


class Table(_Panel, tag="table", frozen=True):
    pass


class BarGauge(_Panel, tag="bargauge", frozen=True):
    pass


class Link(Known, frozen=True):
    title: Text
    type: Literal["link", "dashboards"]
    icon: str
    tooltip: str
    url: Text
    tags: tuple[str, ...]
    asDropdown: bool
    targetBlank: bool
    includeVars: bool
    keepTime: bool


class Variable(Known, frozen=True):
    name: Annotated[str, Meta(pattern="^[a-z]+$")]
    label: Text
    type: Literal["query", "datasource"]
    query: str | dict[str, str]
    regex: str
    hide: Literal[0, 1, 2]
    multi: bool
    includeAll: bool
    options: tuple[()]
    refresh: Literal[0, 1, 2]
    current: dict[str, Any]
    skipUrlSync: bool
    definition: str = ""
    datasource: DataSource | None = None
    sort: Annotated[int, Meta(ge=0, le=8)] = 0
    allValue: str = ""


class Templating(Known, frozen=True):
    list: tuple[Variable, ...]


class Time(Known, frozen=True, rename={"start": "from", "end": "to"}):
    start: Text
    end: Text


class Dashboard(Known, frozen=True):
    uid: Annotated[str, Meta(pattern="^[a-z0-9-]{8,40}$")]
    title: Text
    description: Text
    tags: tuple[str, ...]
    schemaVersion: Annotated[int, Meta(ge=36, le=42)]
    version: Count
    editable: bool
    graphTooltip: Literal[0, 1, 2]
    refresh: Annotated[str, Meta(pattern="^[0-9]+[smhd]$")]
    time: Time
    timepicker: dict[str, Any]
    timezone: Text
    annotations: dict[str, tuple[()]]
    links: tuple[Link, ...]
    templating: Templating
    panels: tuple[Row | Stat | TimeSeries | Table | BarGauge, ...]
