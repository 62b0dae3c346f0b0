# SPDX-License-Identifier: Apache-2.0
"""Packing on openb, beside the published numbers: unallocated GPU % for each list and policy, means over the seeds.

    python benchmarks/packing.py [--traces FOLDER] [--lists default ...] [--policies fgd ...] [--seeds 42 43 44]

Without `--traces` the sample that comes with Dovetail (the list `default`). With it, a folder that holds
`openb_node_list_gpu_node.csv.gz` and `openb_pod_list_NAME.csv.gz` as published (data/csv in
hkust-adsl/kubernetes-scheduler-simulator), all lists of the folder or those named. Each run is `dovetail simulate` in a
process of its own, two at a time. With `-o json` the answers of the runs, one object each.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

PUBLISHED = Path(__file__).parent / "published" / "fgd_atc23.csv"
POLICIES = ["random", "dotprod", "clustering", "packing", "bestfit", "fgd", "expected-fill", "dovetail"]
_PREFIX, _SUFFIX = "openb_pod_list_", ".csv.gz"


def simulate(traces: Path | None, name: str, policy: str, seed: int) -> dict[str, Any]:
    argv = [sys.executable, "-c", "from dovetail.cli import main; main()", "simulate"]
    if traces is not None:
        lists = ["--nodes", traces / "openb_node_list_gpu_node.csv.gz", "--pods", traces / f"{_PREFIX}{name}{_SUFFIX}"]
        argv += map(str, lists)
    argv += ["--policy", policy, "--seed", str(seed), "--until", "130", "-o", "json"]
    done = subprocess.run(argv, check=True, capture_output=True, text=True)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def published() -> dict[tuple[str, str], tuple[float, float]]:
    with PUBLISHED.open() as file:
        return {
            (row["list"], row["policy"]): (float(row["unallocated_100"]), float(row["unallocated_130"]))
            for row in csv.DictReader(file)
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path)
    parser.add_argument("--lists", nargs="+")
    parser.add_argument("--policies", nargs="+", choices=POLICIES, default=POLICIES)
    parser.add_argument("--seeds", nargs="+", type=int, default=[42, 43, 44])
    parser.add_argument("-o", "--output", choices=["table", "json"], default="table")
    args = parser.parse_args()
    found = ["default"]
    if args.traces is not None:
        found = sorted(p.name[len(_PREFIX) : -len(_SUFFIX)] for p in args.traces.glob(f"{_PREFIX}*{_SUFFIX}"))
    runs = list(product(args.lists or found, args.policies, args.seeds))
    results: list[dict[str, Any]] = []
    with ThreadPoolExecutor(2) as pool:
        for run, answer in zip(runs, pool.map(lambda run: simulate(args.traces, *run), runs), strict=True):
            results.append({"list": run[0], **answer})
            print(f"\r{len(results)} of {len(runs)} runs", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    if args.output == "json":
        print(json.dumps(results, indent=1))
        return
    known = published()
    print(f"seeds {', '.join(map(str, args.seeds))}; unallocated GPU % (published), and the median of the seconds\n")
    print("| list | policy | at 100 % | at 130 % | first refusal at | seconds |\n|---|---|---:|---:|---:|---:|")
    for name, policy in product(args.lists or found, args.policies):
        mine = [r for r in results if (r["list"], r["policy"]) == (name, policy)]
        theirs = known.get((name, policy))
        cells = []
        for i, column in enumerate(("100", "130")):
            mean = statistics.mean(r["unallocated_gpu_percent"][column] for r in mine)
            cells.append(f"{mean:.2f}" + (f" ({theirs[i]:.2f})" if theirs else ""))
        refusals = [r["first_refusal_percent"] for r in mine]
        first = f"{statistics.mean(refusals):.1f} %" if None not in refusals else "-"
        seconds = statistics.median(r["seconds"] for r in mine)
        print(f"| {name} | {policy} | {' | '.join(cells)} | {first} | {seconds:.1f} |")


if __name__ == "__main__":
    main()
