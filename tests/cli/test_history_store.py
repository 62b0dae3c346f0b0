# SPDX-License-Identifier: Apache-2.0
"""Where a command reads the history: which options go together, and what is wrong with a Prometheus."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dovetail.cli import cli
from dovetail.history.prometheus.publication import Publication
from dovetail.history.records import DAY_MS
from tests.cli.cost_history import write
from tests.history.prometheus.served import Scraped, scraped
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
