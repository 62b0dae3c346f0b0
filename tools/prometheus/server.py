# SPDX-License-Identifier: Apache-2.0
"""A real Prometheus on loopback: it scrapes, evaluates rules, and answers queries over its HTTP API.

Rules: it is ready when `start` returns, at a free port that it chooses itself. Its data and configuration are in a
scratch directory and are removed with the process, at any end of this process.
"""

import json
import re
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import yaml
from msgspec import Struct

from tools.controlplane.binaries import Report
from tools.controlplane.children import Children, tail
from tools.controlplane.plane import print_progress
from tools.controlplane.started import Started
from tools.prometheus import promtool

HOST = "127.0.0.1"
READY_WITHIN_S = 60.0
POLL_S = 0.2
REQUEST_TIMEOUT_S = 60.0
# The server reports the port that it got for port 0 in this line of its log.
_LISTENS = re.compile(r'msg="Listening on" .*address=127\.0\.0\.1:(\d+)')


class PrometheusFailed(Exception):
    """The server ended, or was not ready in time; the message has the end of its log."""


class QueryFailed(Exception):
    """The server refused a request; the message has the request and the reason."""


class Sample(Struct, frozen=True):
    """One series of an instant query: labels (with `__name__` where the result has one), value, unix time in s."""

    labels: Mapping[str, str]
    value: float
    time_s: float


class Alert(Struct, frozen=True):
    """One active alert: its name, `pending` or `firing`, the labels without its name, and its annotations."""

    name: str
    state: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]


class Group(Struct, frozen=True):
    """One rule group: name, number of rules, the duration of its last evaluation in s, and the rules' errors."""

    name: str
    rules: int
    evaluation_s: float
    errors: tuple[str, ...]


class Prometheus(Started):
    """One server, not started yet. Use it as a context manager, or call `start` and `stop`.

    targets: for each job the addresses (`HOST:PORT`) to scrape at /metrics.
    rules: rule files or glob patterns, absolute.
    scrape_s, evaluate_s: the intervals; they are also the step at which `for` of an alert can end.
    labels: for each job, labels of its targets.
    config: further top-level fields of prometheus.yml, or replacements.
    data: an existing data directory (see `Promtool.backfill`); by default an empty one, removed at the end.
    flags: further flags of the program.
    """

    def __init__(
        self,
        targets: Mapping[str, Sequence[str]] | None = None,
        rules: Sequence[Path | str] = (),
        *,
        scrape_s: float = 1.0,
        evaluate_s: float = 1.0,
        labels: Mapping[str, Mapping[str, str]] | None = None,
        config: Mapping[str, Any] | None = None,
        data: Path | None = None,
        flags: Sequence[str] = (),
        report: Report = print_progress,
    ) -> None:
        self._targets = targets or {}
        self._rules = rules
        self._scrape_s = scrape_s
        self._evaluate_s = evaluate_s
        self._labels = labels or {}
        self._config = config or {}
        self._data = data
        self._flags = flags
        self._report = report
        self._children = Children()
        self._port = 0

    def start(self) -> Self:
        """Build the programs if the cache lacks them, start the server, and wait until it is ready (about 1 s).

        Raises binaries.PlaneUnavailable if it cannot be built, PrometheusFailed if it does not come up.
        """
        programs = promtool.build(self._report)
        self._scratch = Path(tempfile.mkdtemp(prefix="dovetail-prometheus-"))
        self._children.open(self._scratch)
        try:
            self.configure(self._targets, self._rules)
            argv = [
                str(programs / "prometheus"),
                f"--config.file={self._scratch / 'prometheus.yml'}",
                f"--storage.tsdb.path={self._data or self._scratch / 'data'}",
                f"--web.listen-address={HOST}:0",
                "--web.enable-lifecycle",
                # Blocks of any age are kept: tests backfill months.
                "--storage.tsdb.retention.time=10y",
                *self._flags,
            ]
            self._children.start("prometheus", argv, self._log)
            self._await_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Kill the server and remove its scratch directory."""
        self._children.close()

    @property
    def url(self) -> str:
        """`http://127.0.0.1:PORT`."""
        return f"http://{HOST}:{self._port}"

    @property
    def pid(self) -> int:
        """The process id of the server."""
        return self._children.pids["prometheus"]

    def configure(self, targets: Mapping[str, Sequence[str]], rules: Sequence[Path | str]) -> None:
        """Write prometheus.yml with these targets and rule files. A running server reads it at `reload`."""
        scrapes = [
            {
                "job_name": job,
                # An exporter's own namespace and pod labels win over those of the target.
                "honor_labels": True,
                "static_configs": [{"targets": list(addresses), "labels": dict(self._labels.get(job, {}))}],
            }
            for job, addresses in targets.items()
        ]
        times = {"scrape_interval": _duration(self._scrape_s), "evaluation_interval": _duration(self._evaluate_s)}
        times["scrape_timeout"] = times["scrape_interval"]
        made = {"global": times, "scrape_configs": scrapes, "rule_files": [str(rule) for rule in rules]}
        (self._scratch / "prometheus.yml").write_text(yaml.safe_dump({**made, **self._config}, sort_keys=False))

    def reload(self) -> None:
        """Let the server read its configuration and rule files again. Raises QueryFailed if they are wrong."""
        self._request("/-/reload", b"")

    def query(self, expression: str, at_s: float | None = None) -> list[Sample]:
        """Evaluate an expression now, or at a unix time in s. A scalar is a sample without labels.

        Raises QueryFailed."""
        data = self.get("query", query=expression, **({} if at_s is None else {"time": repr(at_s)}))
        if data["resultType"] == "scalar":
            return [_sample({}, data["result"])]
        return [_sample(series["metric"], series["value"]) for series in data["result"]]

    def query_range(self, expression: str, start_s: float, end_s: float, step_s: float) -> list[dict[str, Any]]:
        """The series (`metric`, `values`) of a range query, as the API returns them. Raises QueryFailed."""
        series: list[dict[str, Any]] = self.get(
            "query_range", query=expression, start=repr(start_s), end=repr(end_s), step=repr(step_s)
        )["result"]
        return series

    def alerts(self) -> list[Alert]:
        """All pending and firing alerts."""
        return [
            Alert(alert["labels"]["alertname"], alert["state"], _without_name(alert["labels"]), alert["annotations"])
            for alert in self.get("alerts")["alerts"]
        ]

    def groups(self) -> list[Group]:
        """All rule groups with the duration of their last evaluation."""
        return [
            Group(
                group["name"],
                len(group["rules"]),
                group["evaluationTime"],
                tuple(f"{rule['name']}: {rule['lastError']}" for rule in group["rules"] if rule.get("lastError")),
            )
            for group in self.get("rules")["groups"]
        ]

    def targets(self) -> list[dict[str, Any]]:
        """The active targets as the API returns them: `health` (up, down, unknown), `lastError`, `labels` ..."""
        active: list[dict[str, Any]] = self.get("targets", state="active")["activeTargets"]
        return active

    def get(self, path: str, **parameters: str) -> Any:
        """`data` of the answer of /api/v1/PATH. Raises QueryFailed."""
        return json.loads(self._request(f"/api/v1/{path}", urlencode(parameters).encode() or None))["data"]

    def await_(self, holds: Callable[[Self], object], within_s: float, what: str) -> None:
        """Poll until `holds(self)` is true. Raises TimeoutError with `what` and the state of targets and rules."""
        deadline = time.monotonic() + within_s
        while not holds(self):
            if time.monotonic() > deadline:
                down = [f"{t['scrapeUrl']}: {t['lastError']}" for t in self.targets() if t["health"] != "up"]
                wrong = [error for group in self.groups() for error in group.errors]
                raise TimeoutError(f"not within {within_s:.0f} s: {what}; targets down: {down}; failed rules: {wrong}")
            time.sleep(POLL_S)

    @property
    def _log(self) -> Path:
        return self._scratch / "prometheus.log"

    def _request(self, path: str, body: bytes | None) -> bytes:
        # The API takes the parameters of a query as a form too; the endpoints for lists take them only in the URL.
        if body and not path.endswith(("query", "query_range")):
            path, body = f"{path}?{body.decode()}", None
        try:
            with urlopen(Request(self.url + path, data=body), timeout=REQUEST_TIMEOUT_S) as answer:
                read: bytes = answer.read()
                return read
        except HTTPError as error:
            asked = body.decode(errors="replace") if body else ""
            raise QueryFailed(f"{path} {asked}: {error.code} {error.read().decode(errors='replace')}") from error

    def _await_ready(self) -> None:
        deadline = time.monotonic() + READY_WITHIN_S
        while not self._ready():
            status = self._children.exit_status("prometheus")
            late = time.monotonic() > deadline
            if late or status is not None:
                what = f"was not ready within {READY_WITHIN_S:.0f} s" if late else f"ended with status {status}"
                log = tail(self._log.read_text(errors="replace"))
                raise PrometheusFailed(f"prometheus {what}; the end of its log:\n{log}")
            time.sleep(POLL_S)

    def _ready(self) -> bool:
        if not self._port:
            found = _LISTENS.search(self._log.read_text(errors="replace"))
            self._port = int(found[1]) if found else 0
        try:
            return bool(self._port) and bool(self._request("/-/ready", None))
        except (QueryFailed, URLError, OSError):
            return False


def _sample(labels: Mapping[str, str], value: Sequence[Any]) -> Sample:
    return Sample(labels, float(value[1]), float(value[0]))


def _without_name(labels: Mapping[str, str]) -> dict[str, str]:
    return {label: value for label, value in labels.items() if label != "alertname"}


def _duration(seconds: float) -> str:
    return f"{round(seconds * 1000)}ms"
