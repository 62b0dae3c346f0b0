# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's container toolkit, pinned and built from source: the reference output of `nvidia-ctk cdi generate`.

It runs unmodified on a stand-in machine and loads the stand-in's library from the driver root in its arguments. It
needs Go and a C compiler. Dovetail does not ship it.
"""

import json
import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tools.controlplane import binaries
from tools.controlplane.binaries import Module, Report

FOLDER = Path(__file__).parent
VERSION = re.findall(r"nvidia-container-toolkit (v\S+)", (FOLDER / "go.mod").read_text())[0]
PACKAGES = {"nvidia-ctk": "github.com/NVIDIA/nvidia-container-toolkit/cmd/nvidia-ctk"}
ENVIRONMENT = {**binaries.GO_ENVIRONMENT, "CGO_ENABLED": "1"}
MODULE = Module(
    f"NVIDIA container toolkit {VERSION}",
    f"toolkit-{VERSION}",
    FOLDER,
    ("-mod=readonly", "-trimpath", "-ldflags=-s -w -extldflags=-Wl,-z,lazy"),
    ENVIRONMENT,
)


class ToolkitFailed(Exception):
    """nvidia-ctk failed; the message is its own."""


def build(report: Report) -> Path:
    """The path of nvidia-ctk, built if the cache lacks it (a minute or two). Raises PlaneUnavailable."""
    return binaries.build(report, PACKAGES, MODULE) / "nvidia-ctk"


def generate(
    program: Path, driver_root: Path, dev_root: Path, hook: Path, environment: Mapping[str, str]
) -> dict[str, Any]:
    """The CDI specification of all GPUs by uuid. `dev_root` is the parent folder of /dev. Raises ToolkitFailed."""
    argv = [
        str(program), "cdi", "generate", "--mode=nvml", "--format=json", "--device-name-strategy=uuid",
        "--no-all-device", f"--driver-root={driver_root}", f"--dev-root={dev_root}", f"--nvidia-cdi-hook-path={hook}",
    ]  # fmt: skip
    done = subprocess.run(argv, env=os.environ | environment, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode:
        raise ToolkitFailed(done.stderr)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer
