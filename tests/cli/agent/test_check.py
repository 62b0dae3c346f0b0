# SPDX-License-Identifier: Apache-2.0
"""`dovetail agent check`, as a validation pod runs it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml
import pytest
from click.testing import CliRunner, Result

from dovetail.cli.agent.group import command
from tools.standin import Standin

Machine = Callable[[Any], Standin]


def check(*options: str) -> Result:
    return CliRunner().invoke(command, ["check", *options])


def test_the_visible_gpus_are_listed_and_reported(standin: Machine, tmp_path: Path) -> None:
    machine = standin("small-2numa")
    uuids = [gpu.uuid for gpu in machine.description.gpus]
    report = tmp_path / "termination-log"
    done = check(f"--gpus={len(uuids)}", f"--report={report}")
    assert done.exit_code == 0
    assert done.output == report.read_text() == f"visible devices: {','.join(uuids)}\n"


def test_another_number_is_a_failure_that_names_both(standin: Machine, tmp_path: Path) -> None:
    machine = standin("small-2numa")
    report = tmp_path / "termination-log"
    done = check(f"--report={report}")
    number = len(machine.description.gpus)
    assert done.exit_code == 1 and f"{number} devices are visible, and not 1" in done.output
    assert f"{number} devices are visible, and not 1" in report.read_text()


def test_of_a_divided_gpu_the_instances_count(standin: Machine) -> None:
    machine = standin("dgx-a100")
    machine.divide(0, [("1g.5gb", 4), ("2g.10gb", 0)])
    done = check("--gpus=9")
    assert done.exit_code == 0, done.output
    assert done.output.count("MIG-") == 2 and done.output.count("GPU-") == 7


def test_a_driver_that_does_not_answer_is_named(
    standin: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = tmp_path / "termination-log"

    def missing() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", missing)
    done = check(f"--report={report}")
    assert done.exit_code == 1 and "libnvidia-ml.so.1 is not found" in report.read_text()
    assert check(f"--report={tmp_path / 'no' / 'folder'}").exit_code == 1
