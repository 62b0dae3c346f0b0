# SPDX-License-Identifier: Apache-2.0
"""The real Prometheus of the tests: it scrapes, evaluates rules, fires alerts, and reports its faults."""

import os
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from tests.patience import PATIENCE_S
from tools.prometheus.promtool import Promtool, PromtoolFailed
from tools.prometheus.server import Alert, Prometheus, PrometheusFailed, QueryFailed

pytestmark = pytest.mark.plane

RULES = """
groups:
  - name: test
    rules:
      - record: job:heat:max
        expr: max by (job) (heat)
      - alert: Hot
        expr: job:heat:max > 80
        labels: {severity: warning}
        annotations: {summary: "{{ $labels.job }} is at {{ $value }}"}
"""

StartPrometheus = Callable[..., Prometheus]


class Exporter:
    """An HTTP server with one series at /metrics."""

    def __init__(self) -> None:
        self.heat = 20
        exporter = self

        class Answer(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.end_headers()
                self.wfile.write(f'heat{{pod="a"}} {exporter.heat}\n'.encode())

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
        self.address = f"127.0.0.1:{self.server.server_port}"


@pytest.fixture
def exporter() -> Iterator[Exporter]:
    made = Exporter()
    thread = Thread(target=made.server.serve_forever)
    thread.start()
    yield made
    made.server.shutdown()
    thread.join()
    made.server.server_close()


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    file = tmp_path / "rules.yaml"
    file.write_text(RULES)
    return file


def test_an_alert_fires_and_clears_as_the_target_changes(
    prometheus_factory: StartPrometheus, exporter: Exporter, rules: Path
) -> None:
    prometheus = prometheus_factory({"oven": [exporter.address]}, [rules], scrape_s=0.1, evaluate_s=0.1)
    prometheus.await_(lambda p: p.query("job:heat:max"), PATIENCE_S, "the first value of the recording rule")
    (sample,) = prometheus.query('heat{pod="a"}')
    assert (sample.value, sample.labels["job"]) == (20.0, "oven")
    assert prometheus.alerts() == []
    exporter.heat = 81
    prometheus.await_(lambda p: p.alerts(), PATIENCE_S, "the alert")
    assert prometheus.alerts() == [
        Alert("Hot", "firing", {"job": "oven", "severity": "warning"}, {"summary": "oven is at 81"})
    ]
    exporter.heat = 80
    prometheus.await_(lambda p: not p.alerts(), PATIENCE_S, "the end of the alert")
    (group,) = prometheus.groups()
    assert (group.name, group.rules, group.errors) == ("test", 2, ())
    assert [target["health"] for target in prometheus.targets()] == ["up"]


def test_it_ends_with_its_context_and_faults_name_their_reason(
    prometheus_factory: StartPrometheus, rules: Path
) -> None:
    with Prometheus() as prometheus:
        assert prometheus.query("1 + 1")[0].value == 2.0
        with pytest.raises(QueryFailed, match=r"parse error"):
            prometheus.query("1 +")
        with pytest.raises(TimeoutError, match=r"not within 0 s: a series"):
            prometheus.await_(lambda p: p.query("absent_series"), 0, "a series")
        pid = prometheus.pid
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    rules.write_text(RULES.replace("max by", "mux by"))
    with pytest.raises(PrometheusFailed, match=r"could not parse expression"):
        prometheus_factory({}, [rules])


def test_a_reload_reads_the_rules_again(prometheus_factory: StartPrometheus, rules: Path) -> None:
    prometheus = prometheus_factory()
    assert prometheus.groups() == []
    prometheus.configure({}, [rules])
    prometheus.reload()
    assert [group.name for group in prometheus.groups()] == ["test"]


def test_backfilled_samples_are_answered_at_their_time(
    promtool: Promtool, prometheus_factory: StartPrometheus, tmp_path: Path
) -> None:
    samples = tmp_path / "samples.txt"
    samples.write_text("# TYPE heat gauge\nheat 1 1700000000\nheat 2 1700000060\n# EOF\n")
    promtool.backfill(samples, tmp_path / "data")
    prometheus = prometheus_factory(data=tmp_path / "data")
    assert [sample.value for sample in prometheus.query("heat", at_s=1_700_000_061)] == [2.0]
    (series,) = prometheus.query_range("heat", 1_700_000_000, 1_700_000_060, 60)
    assert series["values"] == [[1_700_000_000, "1"], [1_700_000_060, "2"]]


def test_promtool_reports_what_is_wrong(promtool: Promtool, rules: Path) -> None:
    assert "2 rules found" in promtool.check_rules(rules)
    rules.write_text(RULES.replace("max by", "mux by"))
    with pytest.raises(PromtoolFailed, match=r"(?s)check rules .* ended with.*parse"):
        promtool.check_rules(rules)
    with pytest.raises(PromtoolFailed, match=r"counter metrics should have \"_total\" suffix"):
        promtool.check_metrics("# HELP a heat\n# TYPE a counter\na 1\n")
