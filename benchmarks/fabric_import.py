# SPDX-License-Identifier: Apache-2.0
"""CPU time to import what `ibnetdiscover` prints of a large network: from the text to the labels of all nodes.

    python -m benchmarks.fabric_import [--pods 62] [-o json]

The network is a rail-optimised tree of three tiers. A pod has 4 units of 16 nodes with 8 adapters; each adapter is
linked to the leaf of its rail. A pod has 32 leaves and 32 spines, 4 for each rail; a leaf has 4 cables to each of its
spines, and a spine 3 cables to the core of its place. With 62 pods there are 4,000 switches and 3,968 nodes.
"""

from __future__ import annotations

import argparse
import json
import time

from dovetail.topology.fabric import labels_of
from dovetail.topology.fabric_check import findings_of
from dovetail.views.fabric import read_fabric

RAILS = 8
UNITS = 4
NODES = 16
SPINES = 4


class Cabling:
    """Devices and their cables; the ports of a device are numbered in the order of its cables."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}
        self.links: dict[str, list[tuple[str, int]]] = {}

    def device(self, kind: str, name: str) -> str:
        guid = f"{kind}-{len(self.names) + 1:016x}"
        self.names[guid], self.links[guid] = name, []
        return guid

    def cable(self, one: str, other: str) -> None:
        ports = len(self.links[one]) + 1, len(self.links[other]) + 1
        self.links[one].append((other, ports[1]))
        self.links[other].append((one, ports[0]))

    def text(self) -> str:
        """As ibnetdiscover prints it."""
        lines = ["#", "# Topology file: generated on Sun Nov 29 00:00:00 2026", "#"]
        for device, links in self.links.items():
            guid, name = device[2:].lstrip("0"), self.names[device]
            if device[0] == "S":
                lines += [
                    "",
                    f"switchguid=0x{guid}({guid})",
                    f'Switch\t65 "{device}"\t\t# "{name}" base port 0 lid 7 lmc 0',
                ]
                lines += [
                    f'[{port}]\t"{peer}"[{at}]{_port_guid(peer)}\t\t# "{self.names[peer]}" lid 9 4xNDR'
                    for port, (peer, at) in enumerate(links, 1)
                ]
            else:
                lines += ["", f"caguid=0x{guid}", f'Ca\t1 "{device}"\t\t# "{name}"']
                lines += [
                    f'[{port}]({guid}) \t"{peer}"[{at}]\t\t# lid 9 lmc 0 "{self.names[peer]}" lid 7 4xNDR'
                    for port, (peer, at) in enumerate(links, 1)
                ]
        return "\n".join(lines) + "\n"


def _port_guid(device: str) -> str:
    return f"({device[2:].lstrip('0')}) " if device[0] == "H" else ""


def network(pods: int) -> Cabling:
    made = Cabling()
    cores = [made.device("S", f"MF0;core-{at}:MQM9700/U1") for at in range(RAILS * SPINES)]
    for pod in range(pods):
        for rail in range(RAILS):
            spines = [made.device("S", f"MF0;spine-{pod}-{rail}-{at}:MQM9700/U1") for at in range(SPINES)]
            for at, spine in enumerate(spines):
                for _ in range(3):
                    made.cable(spine, cores[rail * SPINES + at])
            for unit in range(UNITS):
                leaf = made.device("S", f"MF0;leaf-{pod}-{unit}-{rail}:MQM9700/U1")
                for spine in spines:
                    for _ in range(4):
                        made.cable(leaf, spine)
                for node in range(NODES):
                    name = f"gpu-{(pod * UNITS + unit) * NODES + node:05d} mlx5_{rail}"
                    made.cable(leaf, made.device("H", name))
    return made


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pods", type=int, default=62)
    parser.add_argument("-o", "--output", choices=["text", "json"], default="text")
    args = parser.parse_args()
    made = network(args.pods)
    text = made.text()
    begin = time.process_time()
    reading = read_fabric(text)
    labels = labels_of(reading)
    findings = sum(map(len, findings_of({"network": reading}).values()))
    seconds = time.process_time() - begin
    found = {
        "switches": len(reading.switches),
        "nodes": len(labels),
        "lines": text.count("\n"),
        "levels": [len({one.path[: at + 1] for one in reading.placements}) for at in range(len(reading.keys))],
        "findings": findings,
        "cpu_s": round(seconds, 2),
    }
    if args.output == "json":
        print(json.dumps(found))
    else:
        print("  ".join(f"{key} {value}" for key, value in found.items()))


if __name__ == "__main__":
    main()
