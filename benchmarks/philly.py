# SPDX-License-Identifier: Apache-2.0
"""Queueing on Philly's virtual clusters (VCs): each policy on each VC alone with half of the published nodes, and on
all VCs as queues of one cluster with a quarter of the nodes.

    python benchmarks/philly.py --jobs philly_vc_jobs.csv.gz [--vcs 6214e9 ...] [--policies fifo ... dovetail]
                                [--parts vcs shared] [--checkpoint 30m] [--startup 1m] [-o table|json]

The list has the columns of `dovetail simulate --jobs`: `vc,job,submit_s,num_gpu,duration_s`. Times are in seconds,
means over the jobs. `all` covers the jobs of all VCs, as in the published table (Helios artifact, SC'21, on Philly of
October and November 2017). Its filter and window differ, so only the order of the policies is comparable.

Knowledge of the policies: SJF and SRTF know the run time of each job. SRTF and LAS preempt without loss. QSSF estimates
the run time, as in the artifact. Dovetail knows the VC, the number of GPUs, the run times of ended jobs with the same
VC and number of GPUs, and the service that a job has received so far. (The list has neither users nor names.) A job
that Dovetail preempts continues from its last checkpoint. `dovetail` orders the jobs of a queue by age and preempts
none of them; `dovetail-las` takes the job with the least service first.

`shared`: the VCs are queues of one cluster with their published node counts as weights. Each queue exists from its
first job on. (With half of the nodes almost no job would wait.) The Jain index is that of the GPUs held by each queue
relative to its weighted max-min share.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

NODES = {
    "6214e9": 64, "7f04ca": 32, "11cb48": 16, "b436b2": 64, "ee9e8c": 64,
    "e13805": 16, "6c71a0": 32, "2869ce": 16, "ed69ec": 8, "103959": 8,
}  # fmt: skip
"""The number of nodes with 8 GPUs of each VC in the artifact."""
DOVETAIL_LAS = "dovetail-las"
"""Dovetail with queues that take the least served job first (`leastServedFirst`)."""
POLICIES = ["fifo", "qssf", "sjf", "srtf", "las", "dovetail", DOVETAIL_LAS]
SHARED_POLICIES = ["fifo", "sjf", "srtf", "las", "fair", "fair-history", "dovetail", DOVETAIL_LAS]
PUBLISHED = {"fifo": (86_072, 56_531), "qssf": (37_324, 7_783), "sjf": (34_272, 4_731), "srtf": (30_683, 1_138)}
"""Published completion and queue time in seconds, means over all jobs, with all nodes."""


def simulate(args: argparse.Namespace, policy: str, nodes: int, *more: str) -> dict[str, Any]:
    argv = [sys.executable, "-c", "from dovetail.cli import main; main()", "simulate", "--jobs", str(args.jobs)]
    if policy == DOVETAIL_LAS:
        policy, more = "dovetail", (*more, "--least-served-first")
    argv += ["--nodes", f"{nodes}x8", "--policy", policy, "-o", "json", *more]
    argv += ["--checkpoint", args.checkpoint, "--startup", args.startup]
    done = subprocess.run(argv, check=True, capture_output=True, text=True)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=Path, required=True)
    parser.add_argument("--vcs", nargs="+", choices=list(NODES), default=list(NODES))
    parser.add_argument("--policies", nargs="+", choices=list(dict.fromkeys(POLICIES + SHARED_POLICIES)))
    parser.add_argument("--parts", nargs="+", choices=["vcs", "shared"], default=["vcs", "shared"])
    parser.add_argument("--checkpoint", default="30m")
    parser.add_argument("--startup", default="1m")
    parser.add_argument("-o", "--output", choices=["table", "json"], default="table")
    args = parser.parse_args()
    answers: dict[tuple[str, str], dict[str, Any]] = {}
    runs: list[tuple[str, str, int, tuple[str, ...]]] = []
    if "vcs" in args.parts:
        alone = product(args.vcs, args.policies or POLICIES)
        runs += [(vc, policy, NODES[vc] // 2, ("--vc", vc)) for vc, policy in alone]
    if "shared" in args.parts:
        weights = [f"--weight={vc}={NODES[vc]}" for vc in args.vcs]
        more = ("--queues-by", "vc", *(f"--vc={vc}" for vc in args.vcs), *weights)
        total = sum(NODES[vc] for vc in args.vcs) // 4
        runs += [("shared", policy, total, more) for policy in args.policies or SHARED_POLICIES]
    with ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(simulate, args, policy, nodes, *more) for _, policy, nodes, more in runs]
        for (part, policy, _, _), job in zip(runs, jobs, strict=True):
            answers[part, policy] = job.result()
            print(f"\r{len(answers)} of {len(runs)} runs", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    if args.output == "json":
        print(json.dumps([{"part": part, **answer} for (part, _), answer in answers.items()], indent=1))
        return
    if "vcs" in args.parts:
        _show_alone(args.vcs, args.policies or POLICIES, answers)
    if "shared" in args.parts:
        _show_shared(args.policies or SHARED_POLICIES, answers)


def _show_alone(vcs: list[str], policies: list[str], answers: dict[tuple[str, str], dict[str, Any]]) -> None:
    print("\nEach VC by itself: completion / queue time in seconds\n")
    print(f"| VC | jobs | {' | '.join(policies)} |\n|---|---:|{'---:|' * len(policies)}")
    for vc in vcs:
        found = [answers[vc, policy] for policy in policies]
        cells = [f"{run['completion_s']['mean']:,.0f} / {run['wait_s']['mean']:,.0f}" for run in found]
        print(f"| {vc} | {found[0]['jobs']:,} | {' | '.join(cells)} |")
    jobs = sum(answers[vc, policies[0]]["jobs"] for vc in vcs)
    cells = []
    for policy in policies:
        means = [_over_all([answers[vc, policy] for vc in vcs], field) for field in ("completion_s", "wait_s")]
        cells.append(" / ".join(f"{mean:,.0f}" for mean in means))
    print(f"| all | {jobs:,} | {' | '.join(cells)} |")
    published = [" / ".join(f"{mean:,}" for mean in PUBLISHED.get(policy, ())) or "-" for policy in policies]
    print(f"| published, all nodes | | {' | '.join(published)} |")
    seconds = [sum(answers[vc, policy]["seconds"] for vc in vcs) for policy in policies]
    print(f"| took | | {' | '.join(f'{each:,.0f} s' for each in seconds)} |")
    stopped = [sum(answers[vc, policy]["evictions"] for vc in vcs) for policy in policies]
    print(f"| stopped | | {' | '.join(f'{each:,}' for each in stopped)} |")


def _over_all(runs: list[dict[str, Any]], field: str) -> float:
    return float(sum(run[field]["mean"] * run["jobs"] for run in runs) / sum(run["jobs"] for run in runs))


def _show_shared(policies: list[str], answers: dict[tuple[str, str], dict[str, Any]]) -> None:
    print("\nOne cluster, a queue for each VC: seconds\n")
    print("| policy | completion | queue, mean | p50 | p95 | p99 | Jain index | allocated | stopped | took |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
    for policy in policies:
        run = answers["shared", policy]
        waits = " | ".join(f"{run['wait_s'][key]:,.0f}" for key in ("mean", "p50", "p95", "p99"))
        allocated, jain = f"{run['allocated_gpu_percent']:.1f} %", f"{run['jain_index']:.3f}"
        rest = f"{jain} | {allocated} | {run['evictions']:,} | {run['seconds']:,.0f} s"
        print(f"| {policy} | {run['completion_s']['mean']:,.0f} | {waits} | {rest} |")


if __name__ == "__main__":
    main()
