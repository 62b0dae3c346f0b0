# SPDX-License-Identifier: Apache-2.0
"""What `dovetail install --plan` prints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dovetail.cli import cli
from dovetail.cli.console import Console
from dovetail.cli.install import install
from dovetail.cli.install.plan import show
from dovetail.operator.coexistence.survey import ComponentFate, FunctionGroup, InstallPlan

PLUGIN = ComponentFate("device-plugin", "DaemonSet nvidia/plugin", "v0.19.3", "Helm release nvdp", 7, True, "know this")
DRIVER = ComponentFate("driver", "DaemonSet gpu-operator/driver", "", "", 7, False, "drain [first]")
NODES = tuple(f"gpu-{i}" for i in range(7))


def printed(plan: InstallPlan, capsys: pytest.CaptureFixture[str]) -> str:
    show(plan, Console())
    return " ".join(capsys.readouterr().out.split())


def test_components_nodes_and_what_a_person_has_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    blocked = FunctionGroup("allocation", "Blocked", "NotSwitchable", "no label", "add {key: x} to it", NODES)
    text = printed(InstallPlan((PLUGIN, DRIVER), (blocked, blocked)), capsys)
    for part in ("DaemonSet nvidia/plugin", "Helm release nvdp", "Dovetail's", "drain [first]"):
        assert part in text
    assert "cannot be taken over yet: no label (NotSwitchable)" in text
    assert "7 nodes: gpu-0, gpu-1, gpu-2, gpu-3, gpu-4 and 2 more" in text
    assert text.count("You have to: add {key: x} to it") == 1
    assert "The way back: take the name out of spec.takeOver." in text


def test_nothing_of_nvidias_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    plan = InstallPlan((), (), ("spec.takeOver[0]: 'x' must be one of",), ("pods: forbidden",))
    text = printed(plan, capsys)
    assert "No component of NVIDIA's stack was found" in text
    assert "spec.takeOver[0]: 'x' must be one of" in text
    assert "Not all could be read: pods: forbidden" in text


def test_what_needs_nobody_is_no_demand(capsys: pytest.CaptureFixture[str]) -> None:
    paused = FunctionGroup("mig", "Blocked", "PausedByOthers", "paused", "none: it goes on", ("a",))
    assert "You have to" not in printed(InstallPlan((PLUGIN,), (paused,)), capsys)


def test_the_option_shows_the_plan_of_a_file_and_installs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "stack.yaml"
    file.write_text(
        "apiVersion: dovetail.dev/v1alpha1\nkind: GPUStack\nmetadata: {name: s}\nspec: {takeOver: [driver]}"
    )
    seen: list[Any] = []
    monkeypatch.setattr(install, "config_of", lambda *_: "cluster")
    monkeypatch.setattr("dovetail.cli.install.plan.show_plan", lambda *arguments: seen.append(arguments))
    result = CliRunner().invoke(cli, ["install", "--plan", "--stack", str(file), "-o", "json"])
    assert result.exit_code == 0, result.output
    ((config, stack, output),) = seen
    assert (config, stack["spec"], output) == ("cluster", {"takeOver": ["driver"]}, "json")
