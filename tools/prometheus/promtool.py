# SPDX-License-Identifier: Apache-2.0
"""Prometheus and promtool, pinned and built from source, and the checks of promtool. Dovetail ships neither.

The programs are built without the web pages and without service discovery (only `static_configs` and `file_sd_configs`
work), so that the build needs no Node.js and compiles no cloud clients.
"""

import re
import subprocess
from pathlib import Path

from tools.controlplane import binaries
from tools.controlplane.binaries import Module, Report

FOLDER = Path(__file__).parent
_MODULE = "github.com/prometheus/prometheus"
VERSION = re.findall(rf"\s{_MODULE} (v\S+)", (FOLDER / "go.mod").read_text())[0]
PACKAGES = {"prometheus": f"{_MODULE}/cmd/prometheus", "promtool": f"{_MODULE}/cmd/promtool"}
MODULE = Module(
    f"Prometheus {VERSION}",
    f"prometheus-{VERSION}",
    FOLDER,
    ("-mod=readonly", "-trimpath", "-tags=remove_all_sd", "-ldflags=-s -w"),
    binaries.GO_ENVIRONMENT,
)
TIMEOUT_S = 300.0


class PromtoolFailed(Exception):
    """promtool found a fault; the message is its output."""


def build(report: Report) -> Path:
    """The directory with `prometheus` and `promtool`, built if the cache lacks it (some minutes on two cores).

    Raises PlaneUnavailable.
    """
    return binaries.build(report, PACKAGES, MODULE)


class Promtool:
    """promtool's checks. `programs` is the directory that `build` returns. All methods raise PromtoolFailed."""

    def __init__(self, programs: Path) -> None:
        self._program = programs / "promtool"

    def check_rules(self, *files: Path) -> str:
        """Check the syntax of rule files. Faults of style (`--lint=all`) are failures too. Returns the output."""
        return self._run("check", "rules", "--lint=all", "--lint-fatal", *map(str, files))

    def test_rules(self, *files: Path) -> str:
        """Run unit tests of rules. Paths of rule files are relative to the test file. Returns the output."""
        return self._run("test", "rules", *map(str, files))

    def check_config(self, file: Path) -> str:
        """Check a configuration of Prometheus and the rule files that it names. Returns the output."""
        return self._run("check", "config", str(file))

    def check_metrics(self, exposition: str) -> str:
        """Check a text exposition: syntax, names, help texts. Returns the output."""
        return self._run("check", "metrics", text=exposition)

    def backfill(self, openmetrics: Path, data: Path) -> str:
        """Write the samples of an OpenMetrics file with timestamps as blocks into the data directory of a server.

        The server must not run. Returns the output."""
        return self._run("tsdb", "create-blocks-from", "openmetrics", str(openmetrics), str(data))

    def _run(self, *arguments: str, text: str | None = None) -> str:
        done = subprocess.run(
            [str(self._program), *arguments],
            input=text, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=TIMEOUT_S,
        )  # fmt: skip
        if done.returncode:
            raise PromtoolFailed(f"promtool {' '.join(arguments)} ended with {done.returncode}:\n{done.stdout}")
        return done.stdout
