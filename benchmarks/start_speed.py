# SPDX-License-Identifier: Apache-2.0
"""How long a command takes from its call to its end: the help of each, small real runs, and commands that a scheduler
answers.

    python -m benchmarks.start_speed [--runs 20] [--only queue why] [-o json]

Each run is a process of its own. In a round every call is made once, so that what else the machine does affects all of
them; the first round, which writes bytecode, does not count. Medians of the time on the clock and of the CPU time
are shown, with those of a Python that does nothing above them: the rest is Dovetail's.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import yaml

from benchmarks.findings import output_option
from dovetail.cli import cli
from tests.cli.viewed import answers_of, serving
from tests.views.agents import CLUSTER, NOW

ROOT = Path(__file__).parents[1]
COMMAND = (sys.executable, "-c", "from dovetail.cli import main; main()")
AT = ("-f", "docs/examples/two-teams.yaml", "--at", "2026-11-22T12:00:00Z")
REAL = (
    ("queue", *AT), ("why", "product/batch-0", *AT), ("free", *AT), ("share", *AT),
    ("whatif", "submit", "docs/examples/eval.yaml", *AT), ("lint", "docs/examples/eval.yaml"),
    ("memory", "llama-3.1-70b"), ("instances",), ("simulate", "docs/examples/two-teams.yaml"),
    ("install", "--dry-run", "-o", "yaml"),
    ("run", "t", "--image", "registry.example/train:1.4", "--dry-run", "--file", "docs/examples/two-teams.yaml"),
    ("queue", "create", "speech", "--guarantee", "gpu=8", "--dry-run"),
    ("queue", "drain", "product", "--dry-run", *AT),
)  # fmt: skip
ANSWERED = (
    *("why ada/worker", "why default/job", "why bob/many", "why gl/ada/train", "why queue/agents", "queue --basis"),
    *("jobs", "nodes", "nodes n1", "free", "free --shape 2x8", "share --users --all", "priority default/job", "leases"),
    *("topology n1", "defrag --shape 1", "drain n1 --dry-run", "whatif drain n1", "whatif quota agents --weight 2"),
    *("whatif add-nodes --like n1", "whatif stop agents", "queue drain agents --dry-run"),
)
"""What is asked of a scheduler of the cluster of tests.views.agents. In the table they end with `(answered)`."""
NOTHING = "python -c pass"


def commands(group: click.Group = cli, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The words of each command below a group, groups too."""
    context = click.Context(group)
    for name in group.list_commands(context):
        yield (*path, name)
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))


@contextmanager
def answering() -> Iterator[Path]:
    """The kubeconfig of an API server that has the views of a scheduler."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "cluster.yaml"
        file.write_text(yaml.safe_dump_all(CLUSTER))
        with serving(answers_of(file, NOW), Path(folder)) as config:
            yield config


def calls(only: list[str], config: Path) -> dict[str, tuple[str, ...]]:
    """What is called, by how it is shown; of the commands that are named alone, if any is."""
    own = [("--version",), ("--help",)] if not only else []
    helps = [(*words, "--help") for words in commands() if not only or words[0] in only]
    real = [words for words in REAL if not only or words[0] in only]
    found = {" ".join(words): (*COMMAND, *words) for words in (*own, *helps, *real)}
    asked = [one.split() for one in ANSWERED if not only or one.split()[0] in only]
    found |= {f"{' '.join(words)} (answered)": (*COMMAND, *words, "--kubeconfig", str(config)) for words in asked}
    return {NOTHING: (sys.executable, "-c", "pass")} | found


def one_run(argv: tuple[str, ...]) -> tuple[float, float]:
    """Milliseconds on the clock, and of CPU. Raises RuntimeError if it fails."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    null = subprocess.DEVNULL
    began_s = time.perf_counter()
    process = subprocess.Popen(argv, cwd=ROOT, env=environment, stdin=null, stdout=null, stderr=null)
    _, status, usage = os.wait4(process.pid, 0)
    wall_s = time.perf_counter() - began_s
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{' '.join(argv[3:])} ends with {process.returncode}")
    return 1000 * wall_s, 1000 * (usage.ru_utime + usage.ru_stime)


def measure(runs: int, wanted: dict[str, tuple[str, ...]]) -> dict[str, tuple[float, float]]:
    """The medians of each call."""
    taken: dict[str, list[tuple[float, float]]] = {call: [] for call in wanted}
    for number in range(runs + 1):
        for call, argv in wanted.items():
            taken[call].append(one_run(argv))
        print(f"\r{number} of {runs}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return {
        call: (statistics.median(wall for wall, _ in found[1:]), statistics.median(cpu for _, cpu in found[1:]))
        for call, found in taken.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20, help="runs of each call")
    parser.add_argument("--only", nargs="+", default=[], metavar="COMMAND", help="only these commands")
    output_option(parser)
    options = parser.parse_args()
    with answering() as config:
        found = measure(options.runs, calls(options.only, config))
    if options.output == "json":
        rows = {call: {"wall_ms": round(wall, 1), "cpu_ms": round(cpu, 1)} for call, (wall, cpu) in found.items()}
        print(json.dumps(rows, indent=1))
        return
    print("| call | ms | ms of CPU |\n|---|---:|---:|")
    for call, (wall_ms, cpu_ms) in found.items():
        print(f"| `{call}` | {wall_ms:.0f} | {cpu_ms:.0f} |")


if __name__ == "__main__":
    main()
