# SPDX-License-Identifier: Apache-2.0
"""Helm 4, Helm 3 and kustomize, pinned and built from source, and the calls of them that tests need.

Rules: Dovetail ships none of them. Helm has its own empty configuration, cache and plugins (a directory of the caller),
so that nothing of the user's takes part; it reaches a cluster only through the kubeconfig that it is called with.
"""

import json
import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tools.controlplane import binaries
from tools.controlplane.binaries import Module, Report

FOLDER = Path(__file__).parent
_GO_MOD = (FOLDER / "go.mod").read_text()


def _pinned(module: str) -> str:
    return re.findall(rf"\s{re.escape(module)} (v\S+)", _GO_MOD)[0]


HELM_VERSION = _pinned("helm.sh/helm/v4")
HELM_3_VERSION = _pinned("helm.sh/helm/v3")
KUSTOMIZE_VERSION = _pinned("sigs.k8s.io/kustomize/kustomize/v5")
# By name of the binary. Most packages of the first are those of the others, whose builds are short.
PACKAGES = {
    "helm": "helm.sh/helm/v4/cmd/helm",
    "helm3": "helm.sh/helm/v3/cmd/helm",
    "kustomize": "sigs.k8s.io/kustomize/kustomize/v5",
}
_MAJOR, _MINOR = binaries.KUBERNETES_VERSION.removeprefix("v").split(".")[:2]
_LDFLAGS = " ".join(
    (
        "-s -w",
        f"-X helm.sh/helm/v4/internal/version.version={HELM_VERSION}",
        f"-X helm.sh/helm/v3/internal/version.version={HELM_3_VERSION}",
        # The cluster that commands assume that ask none: the plane's.
        f"-X helm.sh/helm/v3/pkg/chartutil.k8sVersionMajor={_MAJOR}",
        f"-X helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor={_MINOR}",
    )
)
MODULE = Module(
    f"Helm {HELM_VERSION}",
    f"helm-{HELM_VERSION}",
    FOLDER,
    ("-mod=readonly", "-trimpath", f"-ldflags={_LDFLAGS}"),
    binaries.GO_ENVIRONMENT,
)
TIMEOUT_S = 300.0


class HelmFailed(Exception):
    """Helm ended with an error; the message has its arguments and what it printed on stderr."""


class KustomizeFailed(Exception):
    """kustomize ended with an error; the message has the folder and what it printed on stderr."""


def build(report: Report) -> Path:
    """The directory with `helm`, `helm3` and `kustomize`, built if the cache lacks it (some minutes on two cores).

    Raises PlaneUnavailable.
    """
    return binaries.build(report, PACKAGES, MODULE)


class Helm:
    """Helm as a command. All methods raise HelmFailed.

    programs: the directory that `build` returns; home: an empty directory for Helm's own files; kubeconfig: the
    cluster, None for commands that need none; binary: `helm` (4) or `helm3`.
    """

    def __init__(self, programs: Path, home: Path, kubeconfig: Path | None = None, binary: str = "helm") -> None:
        self._program = programs / binary
        self._environment = os.environ | {
            "HELM_CONFIG_HOME": str(home / "config"),
            "HELM_CACHE_HOME": str(home / "cache"),
            "HELM_DATA_HOME": str(home / "data"),
            # An empty value would be the user's own kubeconfig.
            "KUBECONFIG": str(kubeconfig or home / "no-cluster"),
        }

    def run(self, *arguments: str, input: str | None = None) -> str:
        """Run `helm ARGUMENTS` and return what it printed on stdout."""
        done = subprocess.run(
            [str(self._program), *arguments],
            input=input, env=self._environment, capture_output=True, text=True, check=False, timeout=TIMEOUT_S,
        )  # fmt: skip
        if done.returncode:
            raise HelmFailed(f"helm {' '.join(arguments)} ended with {done.returncode}:\n{done.stderr}{done.stdout}")
        return done.stdout

    def lint(self, chart: Path, *options: str) -> str:
        """Check a chart; warnings are faults. Returns the output."""
        return self.run("lint", "--strict", str(chart), *options)

    def template(self, chart: Path, *options: str, name: str = "dovetail") -> list[dict[str, Any]]:
        """The objects of a chart, without those of its tests."""
        return documents(self.run("template", name, str(chart), "--skip-tests", *options))

    def releases(self, namespace: str) -> Mapping[str, str]:
        """By name of each release in a namespace its status, as `deployed`."""
        listed = json.loads(self.run("list", "--namespace", namespace, "--output=json"))
        return {release["name"]: release["status"] for release in listed}


class Kustomize:
    """kustomize as a command. `programs` is the directory that `build` returns."""

    def __init__(self, programs: Path) -> None:
        self._program = programs / "kustomize"

    def build(self, folder: Path) -> list[dict[str, Any]]:
        """The objects of a folder, in kustomize's order. Raises KustomizeFailed."""
        done = subprocess.run(
            [str(self._program), "build", str(folder)], capture_output=True, text=True, check=False, timeout=TIMEOUT_S
        )
        if done.returncode:
            raise KustomizeFailed(f"kustomize build {folder} ended with {done.returncode}:\n{done.stderr}")
        return documents(done.stdout)


def documents(text: str) -> list[dict[str, Any]]:
    """The objects in YAML of several documents; empty documents are left out."""
    return [document for document in yaml.load_all(text, yaml.CSafeLoader) if document]
