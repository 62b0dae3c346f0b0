# SPDX-License-Identifier: Apache-2.0
"""`dovetail agent find`, as a pod of the search runs it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from dovetail.cli.agent.group import command
from tools.standin import Standin

Machine = Callable[[Any], Standin]


def find(root: Path, *options: str) -> Result:
    return CliRunner().invoke(command, ["find", f"--sysfs-root={root}", *options])


@pytest.mark.parametrize("name", ["small-2numa"])
def test_the_gpus_on_the_bus_are_counted_and_reported(standin: Machine, tmp_path: Path, name: str) -> None:
    machine = standin(name)
    report = tmp_path / "termination-log"
    done = find(machine.sysfs, f"--report={report}")
    assert done.exit_code == 0
    assert done.output == report.read_text() == f"NVIDIA GPUs on the PCI bus: {len(machine.description.gpus)}\n"


def test_a_machine_without_gpus_has_none(tmp_path: Path) -> None:
    (tmp_path / "bus/pci/devices").mkdir(parents=True)
    assert find(tmp_path).output == "NVIDIA GPUs on the PCI bus: 0\n"


def test_what_cannot_be_read_or_written_is_named(tmp_path: Path) -> None:
    done = find(tmp_path / "nowhere")
    assert done.exit_code == 1 and "nowhere" in done.output
    (tmp_path / "bus/pci/devices").mkdir(parents=True)
    done = find(tmp_path, f"--report={tmp_path}/missing/file")
    assert done.exit_code == 1 and "cannot be written" in done.output
