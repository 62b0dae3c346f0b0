# SPDX-License-Identifier: Apache-2.0
"""The rules in a real Prometheus that scrapes an exporter: an XID fires in the evaluation that sees it, and clears."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
import yaml

from dovetail.monitoring.rules import ALERTS, rule_file
from dovetail.monitoring.thresholds import resolved
from tests.monitoring.scenarios import GPU
from tests.patience import PATIENCE_S
from tools.prometheus.server import Alert, Prometheus

pytestmark = pytest.mark.plane

A, FREE = GPU("a"), GPU("f", pod="", job="")
XID = {"xid": "79", "action": "quarantine-node"}


class Exporter(ThreadingHTTPServer):
    """Serves `lines` at /metrics."""

    lines: list[str]

    def __init__(self) -> None:
        exporter = self

        class Answer(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.end_headers()
                self.wfile.write("".join(f"{line}\n" for line in exporter.lines).encode())

            def log_message(self, format: str, *args: object) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Answer)
        self.lines = []


@pytest.fixture
def exporter() -> Iterator[Exporter]:
    made = Exporter()
    thread = Thread(target=made.serve_forever)
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


def line(gpu: GPU, metric: str, value: float, **extra: str) -> str:
    return f"{gpu.series(metric, '', **extra)[0]} {value}"


def firing(prometheus: Prometheus) -> list[Alert]:
    return [alert for alert in prometheus.alerts() if alert.state == "firing"]


def test_an_xid_fires_with_its_owner_in_the_evaluation_that_sees_it_and_clears(
    prometheus_factory: Callable[..., Prometheus], exporter: Exporter, tmp_path: Path
) -> None:
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rule_file(resolved({"interval": "200ms", "xid_window": "3s"}))))
    healthy = [line(A, "dovetail_gpu_allocated_share", 1), line(FREE, "dovetail_gpu_allocated_share", 0)]
    healthy += [line(gpu, "DCGM_FI_DEV_XID_ERRORS", 79) for gpu in (A, FREE)]
    healthy.append('dovetail_leader{instance="s1"} 1')
    exporter.lines = healthy
    prometheus = prometheus_factory(
        {"agents": [f"127.0.0.1:{exporter.server_port}"]}, [tmp_path / "rules.yaml"], scrape_s=0.2, evaluate_s=0.2
    )
    prometheus.await_(lambda p: p.query("gpu:since"), PATIENCE_S, "the first evaluation")
    assert firing(prometheus) == []

    exporter.lines = [*healthy, line(A, "dovetail_gpu_xid_last_seconds", time.time(), **XID)]
    prometheus.await_(firing, PATIENCE_S, "the alert")
    (alert,) = firing(prometheus)
    (defined,) = [one for one in ALERTS if one.name == "XidNode"]
    assert alert.name == "XidNode"
    assert alert.labels == {**A.labels, **XID, "severity": defined.severity, "audience": defined.audience}
    assert alert.annotations["summary"] == "XID 79 on GPU 0 of n1: the node has to be rebooted or repaired"
    assert alert.annotations["description"] == "GPU 0 of n1 (H100, GPU-a), held by red/train-0."
    fired = 'ALERTS{alertname="XidNode",alertstate="firing"}'
    prometheus.await_(lambda p: p.query(fired), PATIENCE_S, "the series of the alert")
    first_seen, first_fired = (
        prometheus.get("query", query=f"{series}[1m]")["result"][0]["values"][0][0]
        for series in ("gpu:xid_last", fired)
    )
    assert first_fired == first_seen

    prometheus.await_(lambda p: not firing(p), PATIENCE_S, "the end of the alert")
    assert all(group.errors == () for group in prometheus.groups())
