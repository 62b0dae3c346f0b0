# SPDX-License-Identifier: Apache-2.0
"""Cost of hostile objects: objects of a tenant that are as large and expensive as an API server accepts.

    python -m benchmarks.hostile_objects [--kinds NAME ...] [--objects 20] [--rounds 4] [-o table|json]

The table has one row per kind of object: the CPU time per object, from the watch line through translation and core to
the end of the step that handles it; the memory per object while it exists; the CPU time of an ordinary pod with and
without these objects; and the memory that remains after each round in which different objects were added and removed.
Each kind runs in a separate process. Objects have up to 1.5 MiB (the limit of etcd), annotations 256 KiB. An
object may cost 5 ms of CPU time and 1 MiB of memory.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from benchmarks.hostile_objects import objects
from benchmarks.hostile_objects.cost import Cost, measure, write


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", choices=objects.HOSTILE, nargs="+", default=list(objects.HOSTILE), metavar="NAME")
    parser.add_argument("--objects", type=int, default=20, help="how many of them come in a round")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument(
        "--kib", type=int, default=objects.WHOLE // 1024, help="the size of those that are as long as can be"
    )
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    parser.add_argument("--child", nargs="+", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    objects.WHOLE = options.kib * 1024
    if options.child:
        print(msgspec.json.encode(measure(options.kinds[0], options.child)).decode())
        return
    head = (
        f"{'':38} {'KiB':>6} {'CPU ms':>8} {'worst':>8} {'MiB':>6} {'ordinary pod, ms':>17}  MiB left after each round"
    )
    if options.output == "table":
        print(head)
    costs = []
    for kind in options.kinds:
        command = [sys.executable, "-m", "benchmarks.hostile_objects", "--kinds", kind, "--child"]
        with TemporaryDirectory() as folder:
            command += map(str, write(kind, options.objects, options.rounds, Path(folder)))
            ran = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        if ran.returncode:
            print(f"{kind:38} ended with {ran.returncode}", flush=True)
            continue
        cost = msgspec.json.decode(ran.stdout, type=Cost)
        costs.append(cost)
        if options.output == "table":
            left = " ".join(f"{one:7.1f}" for one in cost.left_mib)
            print(
                f"{kind:38} {cost.size / 1024:6.0f} {cost.cpu_ms:8.2f} {cost.worst_ms:8.2f} {cost.mib:6.2f} "
                f"{cost.ordinary_ms:8.2f} {cost.beside_ms:8.2f}  {left}",
                flush=True,
            )
    if options.output == "json":
        print(json.dumps([msgspec.to_builtins(cost) for cost in costs], indent=1))


if __name__ == "__main__":
    main()
