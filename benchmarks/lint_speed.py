# SPDX-License-Identifier: Apache-2.0
"""Speed of `dovetail lint` on a folder of manifests, and on one file from a cold start.

    python benchmarks/lint_speed.py [--files 1000] [--runs 5] [--profile] [-o table|json]

The figures are the wall-clock time of the real command in a separate process. `folder`: files with one object each
(Pods, Jobs, Deployments, JobSets, PyTorchJobs and quotas in turn, in block and in flow style, one in ten with a fault),
with all rules. `--fix`: the same folder, written again before each run. `one file` and `--help`: the start-up time. The
table has the median, the fastest and the slowest run. `--profile` prints the time for the folder by module instead.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from click.testing import CliRunner

from dovetail.cli import cli

COMMAND = (sys.executable, "-c", "from dovetail.cli import main; main()")
META = {"labels": {"team": "vision"}}
FAULT_EVERY = 10


class _Written(yaml.SafeDumper):
    """Without aliases for what is there twice, as people write."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def pod_spec(number: int) -> dict[str, Any]:
    gpus = (1, 2, 4, 8)[number % 4]
    amounts = {"cpu": str(8 * gpus), "memory": f"{60 * gpus}Gi", "nvidia.com/gpu": gpus}
    requests = amounts | ({"nvidia.com/gpu": gpus + 1} if number % FAULT_EVERY == 0 else {})
    train = {
        "name": "train", "image": f"registry.example.com/vision/train:1.{number}",
        "args": [f"--seed={number}", "--checkpoint-dir=/checkpoints", "--resume=auto"],
        "env": [{"name": "NCCL_DEBUG", "value": "WARN"}, {"name": "OMP_NUM_THREADS", "value": "8"}],
        "resources": {"requests": requests, "limits": amounts},
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}, {"name": "models", "mountPath": "/models"}],
    }  # fmt: skip
    return {
        "restartPolicy": "Never", "priorityClassName": "batch", "terminationGracePeriodSeconds": 300,
        "securityContext": {"runAsNonRoot": True, "runAsUser": 1000},
        "nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"},
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
        "containers": [train],
        "volumes": [
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}},
            {"name": "models", "persistentVolumeClaim": {"claimName": "models"}},
        ],
    }  # fmt: skip


def template(number: int) -> dict[str, Any]:
    return {"metadata": META, "spec": pod_spec(number)}


def job_spec(number: int) -> dict[str, Any]:
    ignore = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    return {"backoffLimit": 3, "podFailurePolicy": {"rules": [ignore]}, "template": template(number)}


def quota_spec(number: int) -> dict[str, Any]:
    return {"hard": {"requests.nvidia.com/gpu": number, "requests.cpu": "400", "limits.memory": "4Ti"}}


KINDS: tuple[tuple[str, str, Callable[[int], dict[str, Any]]], ...] = (
    ("v1", "Pod", pod_spec),
    ("batch/v1", "Job", job_spec),
    ("apps/v1", "Deployment", lambda n: {
        "selector": {"matchLabels": META["labels"]},
        "template": {"metadata": META, "spec": {**pod_spec(n), "restartPolicy": "Always"}},
    }),
    ("jobset.x-k8s.io/v1alpha2", "JobSet", lambda n: {
        "replicatedJobs": [{"name": "workers", "replicas": 1, "template": {"spec": job_spec(n)}}],
    }),
    ("kubeflow.org/v1", "PyTorchJob", lambda n: {
        "pytorchReplicaSpecs": {name: {"replicas": 1, "template": template(n)} for name in ("Master", "Worker")},
    }),
    ("v1", "ResourceQuota", quota_spec),
)  # fmt: skip


def write(folder: Path, files: int) -> None:
    """Write the files, a hundred per folder."""
    for number in range(files):
        version, kind, spec = KINDS[number % len(KINDS)]
        meta = {"name": f"{kind.lower()}-{number}", "namespace": "vision", **META}
        whole = {"apiVersion": version, "kind": kind, "metadata": meta, "spec": spec(number)}
        flow = None if number % 3 == 0 else False
        text = yaml.dump(whole, sort_keys=False, default_flow_style=flow, width=110, Dumper=_Written)
        path = folder / f"{number // 100:03}" / f"{number:05}.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"# Number {number} of {files}.\n{text}")


def seconds(*args: str | Path) -> float:
    """Run the command and return its wall time. Raises SystemExit for an exit code other than 0 and 1."""
    began = time.perf_counter()
    done = subprocess.run((*COMMAND, *map(str, args)), capture_output=True, text=True, check=False)
    took = time.perf_counter() - began
    if done.returncode not in (0, 1) or done.stderr:
        raise SystemExit(f"{' '.join(map(str, args))} ended with {done.returncode}: {done.stderr}")
    return took


def measured(files: int, runs: int) -> dict[str, list[float]]:
    """Seconds of each run, by measurement. The measurements alternate, so that other load affects all of them."""
    taken: dict[str, list[float]] = {name: [] for name in ("folder", "folder, --fix", "one file", "--help")}
    for _ in range(runs):
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            write(folder, files)
            taken["folder"].append(seconds("lint", folder))
            taken["folder, --fix"].append(seconds("lint", folder, "--fix"))
            taken["one file"].append(seconds("lint", folder / "000" / "00001.yaml"))
            taken["--help"].append(seconds("--help"))
    return taken


def by_module(files: int) -> dict[str, float]:
    """Seconds of the profiled command in the code of each module, including C functions that it calls."""
    profile = cProfile.Profile(builtins=False)
    with tempfile.TemporaryDirectory() as scratch:
        write(Path(scratch), files)
        profile.runcall(CliRunner().invoke, cli, ["lint", scratch])
    spent: Counter[str] = Counter()
    for (file, _, _), (_, _, own_s, _, _) in pstats.Stats(profile).stats.items():  # type: ignore[attr-defined]
        path = Path(file)
        spent[f"{path.parent.name}/{path.name}"] += own_s
    return dict(spent.most_common(12))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    options = parser.parse_args()
    if options.profile:
        spent = by_module(options.files)
        if options.output == "json":
            print(json.dumps({name: round(own_s, 3) for name, own_s in spent.items()}, indent=1))
            return
        print("| module | s |\n|---|---:|")
        print("\n".join(f"| {name} | {own_s:.2f} |" for name, own_s in spent.items()))
        return
    rows = [
        {"what": name, "median_s": statistics.median(all_s), "min_s": min(all_s), "max_s": max(all_s)}
        for name, all_s in measured(options.files, options.runs).items()
    ]
    if options.output == "json":
        print(json.dumps({"files": options.files, "runs": options.runs, "rows": rows}, indent=1))
        return
    print("| what | median s | min | max |\n|---|---:|---:|---:|")
    for row in rows:
        print(f"| {row['what']} | {row['median_s']:.2f} | {row['min_s']:.2f} | {row['max_s']:.2f} |")


if __name__ == "__main__":
    main()
