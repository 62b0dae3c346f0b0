# SPDX-License-Identifier: Apache-2.0
"""Where a command reads the history: which options go together, and what is wrong with a Prometheus."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dovetail.cli import cli
from dovetail.history.prometheus.publication import Publication
from dovetail.history.records import DAY_MS
from dovetail.history.sqlite.file import FORMAT
from tests.cli.cost_history import write
from tests.history.prometheus.served import Scraped, scraped
from tests.kube.reading.engines_served import series
from tests.terminal import environment

URL = "http://127.0.0.1:1"


def run(*words: str, **more: str) -> Result:
    return CliRunner().invoke(cli, words, env={**environment(200), **more})


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (("cost", "--store", "x", "--prometheus", URL), "--store and --prometheus both choose the history"),
        (("idle", "--prometheus", URL, "--context", "c"), "--prometheus and --context both choose the history"),
        (("report", "--prometheus", "prometheus:9090"), "--prometheus: 'prometheus:9090' is no URL such as http://"),
        (("history", "--prometheus-match", 'a="b"'), "--prometheus-match goes with --prometheus"),
        (("advise", "--prometheus", URL, "--prometheus-match", "a=b"), "'a=b' is not matchers such as"),
        (("cost", "--prometheus", URL, "--prometheus-token", "/none"), "'/none' does not exist"),
    ],
)
def test_options_that_do_not_go_together(words: tuple[str, ...], found: str) -> None:
    result = run(*words)
    assert result.exit_code == 2
    assert found in result.output


@pytest.mark.parametrize("command", ["cost", "report", "idle", "advise", "history"])
def test_a_prometheus_that_is_away_is_named_without_its_password(command: str) -> None:
    result = run(command, "--prometheus", "http://ada:secret@127.0.0.1:1/prefix")
    assert result.exit_code == 1
    assert result.output.startswith("Error: Prometheus at http://127.0.0.1:1/prefix: cannot be read: ")
    assert result.output.endswith("; see whether it runs, and whether you may ask it\n")
    assert "secret" not in result.output


@pytest.mark.parametrize("command", ["cost", "report", "idle", "advise", "capacity", "history"])
def test_a_file_that_cannot_be_used_is_named_with_what_to_do(command: str, tmp_path: Path) -> None:
    file = tmp_path / "history.db"
    write(file)
    with closing(sqlite3.connect(file)) as store:
        store.execute(f"PRAGMA user_version = {FORMAT + 1}")
    newer = run(command, "--store", str(file))
    assert newer.exit_code == 1
    assert f"Error: {file}: it is of format {FORMAT + 1}" in newer.output and "or a newer one" in newer.output
    with closing(sqlite3.connect(file)) as store:
        store.execute(f"PRAGMA user_version = {FORMAT}")
        for table in ("spans", "holds", "pods"):
            store.execute(f"DROP TABLE {table}")
    damaged = run(command, "--store", str(file))
    assert damaged.exit_code == 1 and damaged.output.startswith(f"Error: {file}: it ")
    file.write_bytes(b"no database" * 1000)
    assert "it is no SQLite file, or it is damaged" in run(command, "--store", str(file)).output


def test_it_reads_the_history_that_matches(tmp_path: Path) -> None:
    file, prometheus = tmp_path / "history.db", Scraped()
    write(file)
    publication = Publication(file, kept_ms=100 * DAY_MS)
    publication.publish()
    prometheus.scrape(publication.path.read_text(), cluster="eu")
    from_file = run("cost", "--period", "2026-11", "--store", str(file))
    with scraped(prometheus) as access:
        words = "cost", "--period", "2026-11", "--prometheus", access.url
        assert run(*words).output == run(*words, "--prometheus-match", 'cluster="eu"').output == from_file.output
        assert "it has no series" in run(*words, "--prometheus-match", 'cluster="us"').output


def test_advice_has_what_is_found_in_engines_now_without_the_labels_of_the_collector(tmp_path: Path) -> None:
    file, prometheus = tmp_path / "history.db", Scraped()
    write(file)
    publication = Publication(file, kept_ms=100 * DAY_MS)
    publication.publish()
    prometheus.scrape(publication.path.read_text(), cluster="eu", job="dovetail")
    prometheus.engines = [series("vllm:kv_cache_usage_perc", 0.99), series("vllm:kv_cache_usage_perc", 0.5, "llama-1")]
    with scraped(prometheus) as access:
        words = "advise", "--prometheus", access.url, "--prometheus-match", 'cluster="eu",job="dovetail"'
        text = run(*words).output
        named = json.loads(run(*words, "train", "-o", "json").output)
    assert "Inference engines now: 2 replicas and pools, 1 with findings.\n- serving/llama-0: KV cache full" in text
    assert named["engines"] == []
    asked = [one for one in prometheus.questions if "vllm:" in one]
    assert asked and all('cluster="eu"}' in one and "job=" not in one for one in asked)
