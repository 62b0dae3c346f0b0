# SPDX-License-Identifier: Apache-2.0
"""The plugin for krew: the manifest by krew's rules, and an archive that is installed as krew does it.

Sources: krew's internal/index/validation/validate.go, and its documentation of plugin manifests.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from dovetail import __version__
from tests.needs import unavailable
from tests.paths import ROOT
from tools.controlplane.binaries import PlaneUnavailable
from tools.controlplane.plane import Plane
from tools.krew.archive import FOLDER, archive, manifest
from tools.krew.wheels import PLATFORMS, Platform, download, locked_requirements

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
HERE = Platform("linux", "amd64")
URI, HOMEPAGE = "https://example.com/v0", "https://example.com"


def check(name: str, document: dict[str, Any]) -> None:
    """What krew refuses, and what its index asks for."""
    assert document["apiVersion"] == "krew.googlecontainertools.github.com/v1alpha2"
    assert document["kind"] == "Plugin" and document["metadata"]["name"] == name and re.fullmatch(r"[\w-]+", name)
    spec = document["spec"]
    assert re.fullmatch(r"v\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?", spec["version"])
    short = spec["shortDescription"]
    assert short and not re.search(r"[\r\n]", short) and len(short) <= 50 and not short.endswith(".")
    assert spec["homepage"].startswith("https://") and spec["description"].strip()
    selectors = [one["selector"] for one in spec["platforms"]]
    assert selectors and len({str(one) for one in selectors}) == len(selectors)
    for one in spec["platforms"]:
        assert set(one) <= {"selector", "uri", "sha256", "bin", "files"}
        assert re.fullmatch(r"https://\S+\.(tar\.gz|zip)", one["uri"]) and re.fullmatch(r"[a-f0-9]{64}", one["sha256"])
        assert one["bin"] and one.get("files") != []
        assert set(one["selector"]) == {"matchLabels"} and set(one["selector"]["matchLabels"]) <= {"os", "arch"}


def test_the_manifest_holds_krews_rules_for_every_platform() -> None:
    archives = {one: str(one).encode() for one in PLATFORMS}
    document = yaml.safe_load(manifest(__version__, HOMEPAGE, URI, archives, ["3.11", "3.12"]))
    check("dovetail", document)
    assert [one["sha256"] for one in document["spec"]["platforms"]] == [
        hashlib.sha256(archives[one]).hexdigest() for one in sorted(PLATFORMS)
    ]
    assert "Python 3.11 or 3.12" in document["spec"]["caveats"]
    assert "$" not in str(document)


def test_only_what_needs_no_extra_is_in_the_archive() -> None:
    names = {entry.partition("==")[0] for entry in locked_requirements()}
    assert {"aiohttp", "click", "msgspec", "numpy", "rich", "textual", "yarl"} <= names
    assert not names & {"grpcio", "cryptography", "nvidia-ml-py", "matplotlib", "mcp"}


def install(content: bytes, document: dict[str, Any], root: Path) -> Path:
    """As krew does: unpack into its store, and link to the program. Returns the folder for the PATH."""
    here = {"os": HERE.os, "arch": HERE.arch}
    (platform,) = (one for one in document["spec"]["platforms"] if one["selector"]["matchLabels"] == here)
    assert hashlib.sha256(content).hexdigest() == platform["sha256"]
    store, programs = root / "store" / "dovetail" / document["spec"]["version"], root / "bin"
    store.mkdir(parents=True)
    programs.mkdir()
    (root / "plugin.tar.gz").write_bytes(content)
    # Python's own reader takes ten times as long for 4,000 files.
    subprocess.run(["tar", "-xzf", root / "plugin.tar.gz", "-C", store], check=True)
    assert (store / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()
    assert os.access(store / platform["bin"], os.X_OK)
    (programs / f"kubectl-{document['metadata']['name']}").symlink_to(store / platform["bin"])
    return programs


@pytest.mark.plane
@pytest.mark.slow
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the archive is for x86_64")
def test_kubectl_runs_the_plugin_that_krew_has_installed(wheel: Path, plane: Plane, tmp_path: Path) -> None:
    try:
        # Stored, not compressed: that takes seconds, and is installed in the same way.
        content = archive(wheel, {PYTHON: download(HERE, PYTHON)}, 0, level=0)
    except PlaneUnavailable as error:
        unavailable(f"no libraries: {error}")
    document = yaml.safe_load(manifest(__version__, HOMEPAGE, URI, {HERE: content}, [PYTHON]))
    check("dovetail", document)
    programs = install(content, document, tmp_path)
    # A Python without any library, under the name by which the plugin looks for it.
    python = Path(sys.base_prefix) / "bin" / f"python{PYTHON}"
    (programs / f"python{PYTHON}").symlink_to(python)
    environment = {
        "PATH": f"{programs}:{plane.bin_dir}:/usr/bin:/bin", "HOME": str(tmp_path),
        "KUBECONFIG": str(plane.kubeconfig),
    }  # fmt: skip

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        argv = [str(plane.bin_dir / "kubectl"), "dovetail", *arguments]
        return subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)

    assert run("--version").stdout.startswith(f"dovetail {__version__} ")
    assert run("queue", "--help").stdout.startswith("Usage: kubectl dovetail queue ")
    examples = ("-f", str(ROOT / "docs/examples/two-teams.yaml"), "--at", "2026-11-22T12:00:00Z", "-o", "name")
    assert run("queue", *examples).stdout.splitlines()[0] == "research/train"
    live = run("jobs", "-o", "json")
    assert (live.returncode, live.stderr) == (0, ""), live.stderr
    (programs / f"python{PYTHON}").unlink()
    environment["PATH"] = f"{programs}:{plane.bin_dir}"
    # Without a shell's own tools it cannot start either: these alone.
    for tool in ("sh", "readlink", "dirname"):
        (programs / tool).symlink_to(Path("/bin") / tool)
    none = run("--version")
    assert (none.returncode, none.stdout) == (2, "")
    assert none.stderr == f"kubectl dovetail needs one of these versions of Python on the PATH: {PYTHON}\n"


def test_the_launcher_is_a_program_of_a_plain_shell() -> None:
    launcher = FOLDER / "kubectl-dovetail"
    assert os.access(launcher, os.X_OK) and launcher.read_text().startswith("#!/bin/sh\n")
    assert subprocess.run(["/bin/sh", "-n", launcher], check=False).returncode == 0
