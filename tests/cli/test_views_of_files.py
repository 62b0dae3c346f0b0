# SPDX-License-Identifier: Apache-2.0
"""What the running scheduler answers to a command is what the command works out of the same cluster by itself; and a
user of one namespace reads no name of others in it."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from dovetail.cli import cli
from tests.cli.viewed import answered_from
from tests.views.agents import AT, CLUSTER, NOW, document, lease, pod, request

COMMANDS = (
    "why leaserequest/bob/many", "why lreq/train -n bob", "why gpulease/ada/train", "why bob/many", "why ada/same",
    "why ada/same -o json", "why pod/ada/same", "why leaserequest/ada/same", "why leaserequest/ada/none",
    "why gl/ada/none", "why ada/worker", "why queue/agents", "why queue/none",
    "drain n1 --dry-run", "drain n1 n2 --evict --dry-run", "drain n1 --dry-run -o json", "drain n3 --dry-run",
    "defrag ada/same", "defrag ada/none", "defrag --shape 4", "defrag --shape 8", "defrag --shape 8xZ9",
    "defrag --shape 4 -o json", "priority bob/many",
    "topology n1", "topology n1 -o json", "topology n2", "topology n2 -o json", "topology n",
    "topology n1 --nccl out.xml", "topology n2 --nccl out.xml", "topology n2 --nccl out.xml --pod ada/shares",
    "topology n2 --nccl out.xml --pod cy/runs",
)  # fmt: skip
OTHERS = ("bob/", "cy/", "default/job/", "secret")
OF_ADA = [one for one in COMMANDS if "bob" not in one and "priority" not in one]
LEVELS = [["X" if i == j else "PIX" if i // 2 == j // 2 else "SYS" for j in range(8)] for i in range(8)]
WIRED = {
    "observedTime": AT,
    "gpus": [{"index": i, "uuid": f"GPU-{i}", "product": "NVIDIA A100 80GB PCIe", "numaNode": i // 4,
              "pciBusId": f"0000:{16 + i}:00.0"} for i in range(8)],
    "pcieLevels": LEVELS,
    "nvlinks": [[0, 12, *6 * [0]], [12, *7 * [0]], *6 * [8 * [0]]],
    "nics": [{"name": "mlx5_0", "numaNode": 0, "speedMBps": 25000, "rdma": True, "levels": ["PXB", *7 * ["SYS"]]}],
    "kubelet": {"version": "v1.36.2", "topologyManagerPolicy": "restricted", "topologyManagerScope": "pod"},
}  # fmt: skip
"""Of n2. Its kubelet has no NUMA nodes, which is a finding."""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cluster") / "cluster.yaml"
    same = (pod("ada", "same", 1), request("ada", "same"), lease("ada", "same", "n2", (7,)))
    busy = (pod("cy", "runs", 2, "n2", devices="3,4"), pod("bob", "runs", 1, "n2", devices="5"))
    for one in busy:
        del one["metadata"]["annotations"]["dovetail.dev/bound"]
    # A record that cannot be true: the finding about it quotes it.
    odd = pod("cy", "odd", 1, "n2", devices="9,secret")
    wired = (document("GPUNode", "n2", status=WIRED), pod("ada", "shares", 1, "n2", devices="6"), odd)
    path.write_text(yaml.safe_dump_all((*CLUSTER, *same, *busy, *wired)))
    return path


def run(command: str, *options: str) -> tuple[int, str, str]:
    found = CliRunner().invoke(cli, [*command.split(), *options], env={"COLUMNS": "200"})
    assert found.exception is None or isinstance(found.exception, SystemExit), found.exc_info
    # What is odd in a file is printed as it is read.
    lines = [line for line in found.stderr.splitlines() if "cluster.yaml:" not in line]
    return found.exit_code, found.stdout, "\n".join(lines)


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_one_answer(command: str, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    by_itself, written = run(command, "-f", str(file), "--at", AT), _written(tmp_path)
    config = answered_from(file, NOW, monkeypatch, tmp_path, whole=True)
    assert run(command, "--kubeconfig", str(config)) == by_itself
    assert by_itself[1] or by_itself[2]
    assert _written(tmp_path) == written


def _written(folder: Path) -> str:
    """The file that `topology` wrote."""
    path = folder / "out.xml"
    text = path.read_text() if path.exists() else ""
    path.unlink(missing_ok=True)
    return text


@pytest.mark.parametrize("command", OF_ADA)
@pytest.mark.slow
def test_no_name_of_others(command: str, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = answered_from(file, NOW, monkeypatch, tmp_path, whole=False)
    namespace = () if "ada/" in command else ("-n", "ada")
    if not command.startswith(("why", "defrag")):
        namespace = ()
        config.write_text(config.read_text().replace("namespace: default", "namespace: ada"))
    code, stdout, stderr = run(command, "--kubeconfig", str(config), *namespace)
    assert code in (0, 1) and not any(name in stdout + stderr for name in OTHERS), stdout + stderr
