# SPDX-License-Identifier: Apache-2.0
"""The same month from a Prometheus and from a file: how fast `cost --by team` is, and what a Prometheus has to hold.

    python -m benchmarks.history_prometheus [--nodes 1000] [--days 30] [--runs 3] [--file FILE]

The load is that of `benchmarks.history`, by hours, with the sums of its days. A real Prometheus (tools/prometheus)
scrapes all of what is published of the first two and the last two days, and the sums and the pods of those between: the
questions need no more. There is no use of the days between. `--file` keeps the file for further runs. Processes of
their own ask.

- collecting: the highest resident memory of one process with the modules of the collector that adds up the last two
  days and then publishes them, and what it has before it begins. The state of the cluster comes on top.
- published: of a day the series, their size as text, and the CPU time that it takes to make them. `publishing` is by
  how much a process grows that publishes as the collector does, the last two days and what there is of this one.
- cost: `dovetail cost --by team` of the period that it has by default; `_file` from the file. Wall-clock time without
  the start of Python, and the peak of memory. `rolling_cost` is that of a period that begins and ends in the middle of
  a day, `jobs` that of all that is known by job, the 10,000 largest.
- one_job: the pods of one job, as in `dovetail history JOB`.
- idle: `dovetail idle` at the end.

Medians are shown. Answers are compared: from both they must be equal.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

from msgspec.structs import replace

from benchmarks.history import PRICES, START_MS, Progress, load, used
from dovetail.cost.calendar import period_of
from dovetail.cost.cells import gpu_times
from dovetail.cost.costs import costs
from dovetail.cost.grouping import Grouping
from dovetail.cost.price_rules import PriceBook
from dovetail.history.idle import IdleRules, idleness
from dovetail.history.prometheus import chunks
from dovetail.history.prometheus.publication import Publication, day_chunks, day_list, day_name
from dovetail.history.prometheus.reader import PrometheusReader
from dovetail.history.records import DAY_MS, HOUR_MS, Period
from dovetail.history.sqlite.reader import SqliteReader
from dovetail.history.sqlite.store import SqliteStore
from dovetail.historyserver.questions import MOST_ROWS, CostQuestion
from dovetail.kube.reading.prometheus_api import PrometheusAccess
from tools.prometheus.server import Prometheus

STORE = "0123456789abcdef"
_OF_ALL_DAYS = ("day", "sums", "pod", "pod_sums", "pod_jobs")
Reader = SqliteReader | PrometheusReader


def cost(reader: Reader, period: Period, by: str = "team") -> Any:
    book, grouping = PriceBook([PRICES]), Grouping(by)
    times = gpu_times(reader, period, book, by=by, pods=grouping.of_pod_days)
    return costs(times, grouping, "separate", book.currency, MOST_ROWS)


def month(reader: Reader) -> Any:
    return cost(reader, period_of(CostQuestion().period, UTC, reader.known().end_ms))


def rolling(reader: Reader) -> Any:
    known = reader.known()
    return cost(reader, Period(known.start_ms + 13 * HOUR_MS, known.end_ms - 6 * HOUR_MS))


def one_job(reader: Reader) -> Any:
    """The last one that there is."""
    known = reader.known()
    pods = reader.pods_of({hold.pod_uid for hold in reader.holds(Period(known.end_ms - 1, known.end_ms))})
    name = max(pod.job for pod in pods)
    return list(reader.job(name))


QUESTIONS: dict[str, Callable[[Reader], Any]] = {
    "cost": month,
    "rolling_cost": rolling,
    "jobs": lambda reader: cost(reader, reader.known(), by="job"),
    "one_job": one_job,
    "idle": lambda reader: idleness(reader, IdleRules()),
}


def ask(options: argparse.Namespace) -> dict[str, Any]:
    began_s, cpu_s = time.monotonic(), time.process_time()
    url = options.url
    with closing(PrometheusReader(PrometheusAccess(url)) if url else SqliteReader(options.file)) as reader:
        found = QUESTIONS[options.step](reader)
    name = options.step if url else f"{options.step}_file"
    return {
        f"{name}_s": time.monotonic() - began_s,
        f"{name}_cpu_s": time.process_time() - cpu_s,
        f"{name}_peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "answer": repr(found),
    }


def export(options: argparse.Namespace) -> dict[str, Any]:
    """What is published of each day, as text."""
    figures: dict[str, Any] = defaultdict(list)
    seen: set[str] = set()
    lists = []
    with closing(SqliteReader(options.file)) as reader, Path(options.text).open("w", encoding="ascii") as text:
        known = reader.known()
        starts = range(known.start_ms // DAY_MS * DAY_MS, known.end_ms, DAY_MS)
        for day in (Period(at_ms, at_ms + DAY_MS) for at_ms in starts):
            began_s = time.process_time()
            made = list(day_chunks(reader, day))
            listed = day_list(known, day, [one.of for one in made])
            cpu_s = time.process_time() - began_s
            whole = day.start_ms in (*starts[:2], *starts[-2:])
            if whole:
                lines = [line for one in made for line in one.lines(STORE)]
                figures["published_day_cpu_s"].append(cpu_s)
                figures["published_day_series"].append(len(lines))
                figures["published_day_mib"].append(sum(map(len, lines)) / 2**20)
            for one in (*made, listed):
                if (whole or one.of.kind in _OF_ALL_DAYS) and one.of.name not in seen:
                    seen.add(one.of.name)
                    text.writelines(one.lines(STORE))
            lists.append(chunks.day_line(STORE, day_name(day.start_ms), listed, known.end_ms))
        text.writelines(lists)
    return {name: statistics.median(values) for name, values in figures.items()}


def publish(options: argparse.Namespace) -> dict[str, Any]:
    """As the collector does. Of a process of its own the highest resident memory, less what it had before."""
    gc.enable()
    before_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    began_s = time.process_time()
    published = Publication(options.file)
    published.publish()
    published.path.unlink()
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"publishing_cpu_s": time.process_time() - began_s, "publishing_grown_mib": peak_mib - before_mib}


def collect(options: argparse.Namespace) -> dict[str, Any]:
    """Add up the last two days anew, and publish them, with the modules and the garbage collection of the collector."""
    importlib.import_module("dovetail.history.collector.run")
    gc.enable()
    gc.set_threshold(20_000)
    modules_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    with closing(SqliteStore(options.file)) as store:
        end_ms = store.known().end_ms
        store.run("DELETE FROM day_sums WHERE start_ms > ?", (end_ms - 3 * DAY_MS,))
        while store.retain(end_ms):
            pass
        summed_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        published = Publication(options.file)
        published.publish()
        published.path.unlink()
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"collecting_modules_mib": modules_mib, "collecting_sums_mib": summed_mib, "collecting_peak_mib": peak_mib}


class Published(SimpleHTTPRequestHandler):
    """Serves a folder."""

    def guess_type(self, path: object) -> str:
        return "text/plain; version=0.0.4"

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def served(folder: Path) -> Iterator[int]:
    """The port at which its files are."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Published, directory=str(folder)))
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_port
    finally:
        server.shutdown()


def run(step: str, *arguments: str) -> dict[str, Any]:
    argv = [sys.executable, "-m", "benchmarks.history_prometheus", "--step", step, *arguments]
    found: dict[str, Any] = json.loads(subprocess.run(argv, stdout=subprocess.PIPE, check=True).stdout)
    return found


def write(options: argparse.Namespace) -> dict[str, Any]:
    """The load by hours; use alone of the days of which the questions need it."""
    progress, days = Progress(load(options.nodes, options.days)), range(START_MS // DAY_MS, START_MS // DAY_MS + 32)
    with closing(SqliteStore(options.file)) as store:
        end_ms = START_MS + options.days * DAY_MS
        needed = (*days[:2], *days[options.days - 1 : options.days + 1])
        for hour_ms in range(START_MS, end_ms, HOUR_MS):
            batch, held = progress.until(hour_ms + HOUR_MS)
            store.write(replace(batch, use=used(held, hour_ms, HOUR_MS) if hour_ms // DAY_MS in needed else ()))
        while store.retain(end_ms):
            pass
    return {}


STEPS = {"write": write, "export": export, "publish": publish, "collect": collect}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--days", type=int, default=30)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--file", type=Path)
    parser.add_argument("-o", "--output", choices=["table", "json"], default="table")
    parser.add_argument("--step", choices=[*STEPS, *QUESTIONS], help=argparse.SUPPRESS)
    parser.add_argument("--url", default="", help=argparse.SUPPRESS)
    parser.add_argument("--text", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.step:
        gc.disable()  # as the commands do
        print(json.dumps(STEPS.get(options.step, ask)(options)))
        return
    results: dict[str, list[Any]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        file, text = options.file or Path(folder, "history.db"), Path(folder, "history")
        if not file.exists():
            run("write", f"--nodes={options.nodes}", f"--days={options.days}", f"--file={file}")
        figures = run("export", f"--file={file}", f"--text={text}") | run("publish", f"--file={file}")
        figures |= run("collect", f"--file={file}")
        with served(Path(folder)) as port:
            scrape: dict[str, Any] = {"job_name": "collector", "metrics_path": "/history", "scrape_interval": "1m"}
            scrape |= {"scrape_timeout": "1m", "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}
            with Prometheus(config={"scrape_configs": [scrape]}) as prometheus:
                prometheus.await_(lambda server: server.query(chunks.DAY), 400, "the scrape")
                for question in [*QUESTIONS] * options.runs:
                    answers = [run(question, f"--url={prometheus.url}"), run(question, f"--file={file}")]
                    assert answers[0].pop("answer") == answers[1].pop("answer"), question
                    for found in answers:
                        for name, value in found.items():
                            results[name].append(value)
                status = Path(f"/proc/{prometheus.pid}/status").read_text()
                figures["prometheus_mib"] = int(status.partition("VmRSS:")[2].split()[0]) / 1024
    figures |= {name: statistics.median(values) for name, values in results.items()}
    if options.output == "json":
        print(json.dumps(figures))
    else:
        for name, value in figures.items():
            print(f"{name:24} {value:12,.2f}")


if __name__ == "__main__":
    main()
