# SPDX-License-Identifier: Apache-2.0
"""The container image of the real node, built without a registry: an archive in the format of `docker save`.

Source of the format: the OCI image specification's configuration, and the manifest.json of Docker's image archive v1.2.
"""

import hashlib
import io
import json
import platform
import tarfile
from pathlib import Path

NAME = "dovetail.dev/node/pod:1"
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def write(program: Path, target: Path) -> None:
    """Write an image to `target` whose only file is `program`, its entrypoint; by default it pauses."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as archive:
        for folder in ("dev", "etc", "proc", "run", "sys", "tmp"):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(entry)
        _add(archive, "pod", program.read_bytes(), mode=0o755)
    machine = platform.machine()
    configuration = {
        "architecture": _ARCHITECTURES.get(machine, machine),
        "os": "linux",
        "config": {"Entrypoint": ["/pod"], "Cmd": ["pause"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer.getvalue()).hexdigest()}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [NAME], "Layers": ["layer.tar"]}]
    with tarfile.open(target, "w") as archive:
        _add(archive, "manifest.json", json.dumps(manifest).encode())
        _add(archive, "config.json", json.dumps(configuration).encode())
        _add(archive, "layer.tar", layer.getvalue())


def _add(archive: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    archive.addfile(entry, io.BytesIO(content))
