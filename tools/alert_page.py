# SPDX-License-Identifier: Apache-2.0
"""Generator of the reference pages of alerts, rules, thresholds and boards, and of the files in deploy/monitoring.

python -m tools.alert_page
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import yaml

from dovetail.cli.monitoring.boards import text as board_text
from dovetail.cli.monitoring.rules import text
from dovetail.monitoring import boards, rules
from dovetail.monitoring.board import Board
from dovetail.monitoring.rule import Alert
from dovetail.monitoring.thresholds import THRESHOLDS, filled, resolved

ROOT = Path(__file__).parents[1]
_HEAD = """\
# Alerts and recording rules

Made from the table of rules by `python -m tools.alert_page`. How to install them and how to change thresholds:
[monitoring](../how-to/monitoring.md).

`critical` is a page, `warning` a ticket, `info` a message. The label `audience` is `owner` for alerts
that the owner of the job can end, and `operator` for all others. Alerts about a GPU have the labels of the GPU and of
its owner: `namespace`, `pod`, `container`, and `queue`, `job`, `owner` where the exporter sets them.

| alert | severity | audience | lasts | fires when |
|---|---|---|---|---|
"""

_BOARDS_HEAD = """\
# Boards for Grafana

Made from the table of boards by `python -m tools.alert_page`; [how to install them](../how-to/monitoring.md#boards).
They need the [recording rules](alerts.md#recording-rules). Colour marks a state; its steps are the thresholds of the
alerts. Units are Grafana's names.
"""


def page() -> str:
    """The text of docs/reference/alerts.md."""
    values = resolved()
    rows = "".join(_row(alert, values) for alert in rules.ALERTS)
    sections = "".join("\n" + "\n".join(_section(alert, values)) for alert in rules.ALERTS)
    return f"{_HEAD}{rows}{sections}\n{_inhibition()}\n{_recordings()}\n{_thresholds()}"


def _row(alert: Alert, values: Mapping[str, float | str]) -> str:
    lasts = filled(alert.lasts, values)
    summary = filled(alert.meaning, values).partition(". ")[0].rstrip(".")
    name = f"[`{alert.name}`](#{alert.name.lower()})"
    return f"| {name} | {alert.severity} | {alert.audience} | {lasts} | {summary} |\n"


def _section(alert: Alert, values: Mapping[str, float | str]) -> Iterator[str]:
    yield f"## {alert.name}\n"
    yield f"Meaning: {filled(alert.meaning, values)}\n"
    yield f"Check: {filled(alert.check, values)}\n"
    yield f"Do: {filled(alert.action, values)}\n"
    yield f"Clears: {filled(alert.clears, values)}\n"
    yield f"```promql\n{filled(alert.expr, values)}\n```\n"


def board_page() -> str:
    """The text of docs/reference/boards.md."""
    return _BOARDS_HEAD + "".join("\n" + "\n".join(_board(board)) for board in boards.BOARDS)


def _board(board: Board) -> Iterator[str]:
    names = ", ".join(f"`{variable.name}`" for variable in board.variables)
    yield f"## {board.title}\n"
    yield f"`{board.uid}`: {board.question}{f' Filters: {names}.' if names else ''}\n"
    yield "| panel | question | unit | without data |\n|---|---|---|---|"
    for panel in board.panels:
        empty = f"{panel.empty}; data only during a fault" if panel.faults else panel.empty
        yield f"| {panel.title} | {panel.question} | `{panel.unit}` | {empty} |"
    yield ""


def inhibitions() -> list[dict[str, object]]:
    """Rules for the Alertmanager: an alert silences those that are noise beside it."""
    return [
        {
            "source_matchers": [f'alertname = "{alert.name}"'],
            "target_matchers": [f'alertname =~ "{"|".join(alert.inhibits)}"'],
            **({"equal": list(alert.equal)} if alert.equal else {}),
        }
        for alert in rules.ALERTS
        if alert.inhibits
    ]


def _inhibition() -> str:
    made = yaml.safe_dump({"inhibit_rules": inhibitions()}, sort_keys=False, width=1000)
    return f"## Inhibition\n\nSuggested for the configuration of the Alertmanager:\n\n```yml\n{made}```\n"


def _recordings() -> str:
    rows = "".join(f"| `{one.name}` | {one.meaning} |\n" for one in rules.RECORDINGS)
    return f"## Recording rules\n\n| rule | meaning |\n|---|---|\n{rows}"


def _thresholds() -> str:
    head = "## Thresholds\n\n| threshold | default | unit | meaning | source |\n|---|---|---|---|---|\n"
    return head + "".join(
        f"| `{one.name}` | `{_cell(one.default)}` | {one.unit} | {one.meaning} | {one.source} |\n" for one in THRESHOLDS
    )


def _cell(value: float | str) -> str:
    return str(value).replace("|", "\\|")


def files() -> dict[Path, str]:
    """Every generated file with its text."""
    values = resolved()
    return {
        ROOT / "docs/reference/alerts.md": page(),
        ROOT / "deploy/monitoring/rules.yaml": text("yaml", rules.rule_file(values)),
        ROOT / "deploy/monitoring/prometheusrule.yaml": text("crd", rules.prometheus_rules(values)),
        ROOT / "docs/reference/boards.md": board_page(),
        **{
            ROOT / f"deploy/monitoring/dashboards/{uid}.json": board_text(document)
            for uid, document in boards.documents().items()
        },
    }


if __name__ == "__main__":
    for path, content in files().items():
        path.write_text(content)
