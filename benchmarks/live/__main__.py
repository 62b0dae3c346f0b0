# SPDX-License-Identifier: Apache-2.0
"""Command line of the live benchmark: `python -m benchmarks.live`.

Rules: each run starts and stops a separate control plane. The order of the schedulers is reversed in every round, so
that no scheduler always runs after the same one. The exit status is 1 if a run had a problem.
"""

import argparse
import compileall
import json
import shlex
import sys
from pathlib import Path

import uvloop
from msgspec.structs import asdict

import dovetail
from benchmarks.live import report
from benchmarks.live.claims import CLAIM_SCENARIOS
from benchmarks.live.contestants import DOVETAIL, contestants
from benchmarks.live.measure import Heat, Outcome, measure
from benchmarks.live.scenario import SCENARIOS as POD_SCENARIOS
from dovetail.kube.api.errors import KubeError
from tools.controlplane.binaries import PlaneUnavailable
from tools.controlplane.plane import ComponentFailed, KubectlFailed

SCENARIOS = POD_SCENARIOS | CLAIM_SCENARIOS


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.live",
        description="Dovetail, kube-scheduler and a binder that does not think, on a real API server.",
        epilog="scenarios: " + "; ".join(f"{name}: {scenario.title}" for name, scenario in SCENARIOS.items()),
    )
    names = list(contestants())
    parser.add_argument("--scenario", nargs="+", choices=SCENARIOS, default=list(SCENARIOS))
    parser.add_argument("--scheduler", nargs="+", choices=names, default=names)
    parser.add_argument("--runs", type=int, default=3, help="rounds; medians of them are shown")
    parser.add_argument("--scale", type=float, default=1.0, help="0.05 is a quick check")
    parser.add_argument("--dovetail-command", default=DOVETAIL, help="gets --kubeconfig FILE added (%(default)s)")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    parser.add_argument("--report", type=Path, metavar="FILE", help="also write the tables to a Markdown file")
    return parser.parse_args()


def heats(options: argparse.Namespace) -> list[Heat]:
    """All runs, in order."""
    known = contestants(options.dovetail_command)
    return [
        Heat(number, scenario, SCENARIOS[scenario].scaled(options.scale), scheduler, known[scheduler])
        for scenario in options.scenario
        for number in range(1, options.runs + 1)
        for scheduler in (options.scheduler if number % 2 else reversed(options.scheduler))
    ]


def run(heat: Heat, outcomes: list[Outcome]) -> None:
    print(f"{heat.scenario_name} round {heat.round} {heat.scheduler:>12}: ", end="", file=sys.stderr, flush=True)
    try:
        outcome = uvloop.run(measure(heat))
    # Failures in concurrent tasks arrive as exception groups, which may be nested.
    except* (PlaneUnavailable, ComponentFailed, KubectlFailed, KubeError) as failures:
        first: BaseException = failures
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        raise SystemExit(f"\nerror: {first}") from None
    outcomes.append(outcome)
    print(f"{outcome.last_bind_s:6.2f} s to the last bind", *outcome.problems, sep="; ", file=sys.stderr)


def main() -> int:
    options = arguments()
    # As an installation does: without bytecode files every start would compile the sources.
    for module in (dovetail.__file__, __file__):
        compileall.compile_dir(Path(module).parent, quiet=1)
    outcomes: list[Outcome] = []
    try:
        for heat in heats(options):
            run(heat, outcomes)
    except KeyboardInterrupt:
        print("\ninterrupted: the tables hold the runs so far", file=sys.stderr)
    scale = "" if options.scale == 1 else f" (scale {options.scale:g})"
    body = report.tables(outcomes, {name: scenario.title + scale for name, scenario in SCENARIOS.items()})
    if options.report:
        command = shlex.join(["python", "-m", "benchmarks.live", *sys.argv[1:]])
        options.report.write_text(report.document(body, command))
    print(json.dumps([asdict(run) for run in outcomes], indent=1) if options.output == "json" else body)
    return int(any(run.problems for run in outcomes))


if __name__ == "__main__":
    sys.exit(main())
