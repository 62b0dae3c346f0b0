# SPDX-License-Identifier: Apache-2.0
"""What a container needs of NVIDIA's driver: device nodes, libraries, programs, and the hooks that make them found.

Rules
- What is mounted are the files of the driver that runs: libraries whose names end in its version, firmware of that
  version, programs, and sockets of its daemons. A container sees them where they are below the driver's root.
- With NVIDIA's hook on the host, links and the loader's cache are made in the container. Without it each library is
  mounted under the names that programs link to, in the directories that every loader looks in; no variable is set that
  a program would hand on to others.
- `NVIDIA_VISIBLE_DEVICES=void` tells NVIDIA's older runtime hook to add nothing by itself, whatever the image says.
- A MIG instance is guarded by two nodes of its own, for its GPU instance and its compute instance.
Sources: NVIDIA container toolkit 1.18 (pkg/nvcdi: what `nvidia-ctk cdi generate` finds), MIG user guide (capabilities).
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from dovetail.agent.cdi import READ_ONLY, DeviceNode, Edits, Hook, Mount
from dovetail.agent.host import Gpu, Host, Instance

CONTROL_NODES = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")
NEEDED_NODES = ("nvidiactl", "nvidia-uvm")
PROGRAMS = (
    "nvidia-smi",
    "nvidia-debugdump",
    "nvidia-persistenced",
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
    "nvidia-imex",
    "nvidia-imex-ctl",
)
_LIBRARY_FOLDERS = (
    "usr/lib64",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib/x86_64-linux-gnu/nvidia/current",
    "usr/lib/aarch64-linux-gnu/nvidia/current",
    "usr/lib64/nvidia",
    "usr/lib",
    "lib64",
    "lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
    "opt/nvidia/lib64",
)
_PROGRAM_FOLDERS = ("usr/bin", "usr/sbin", "bin", "sbin", "usr/local/bin", "opt/nvidia/bin")
_SOCKETS = ("run/nvidia-persistenced/socket", "run/nvidia-fabricmanager/socket")
_HOOKS = ("usr/bin/nvidia-cdi-hook", "usr/local/nvidia/toolkit/nvidia-cdi-hook", "usr/bin/nvidia-ctk")
_LINKS = {"libcuda.so": "libcuda.so.1", "libnvidia-opticalflow.so": "libnvidia-opticalflow.so.1"}
_SONAME = re.compile(r".+\.so\.\d+")
_LOADER_FOLDERS = {"x86_64": "usr/lib/x86_64-linux-gnu", "aarch64": "usr/lib/aarch64-linux-gnu"}


class DriverFilesError(Exception):
    """A container could not use the device; the text says which file is missing and what to do."""


class DriverFiles:
    """The driver installed below `driver_root`, its device nodes in `dev_root` (the folder that /dev is), its
    capabilities below `proc_root`.

    Where this process sees them elsewhere than the container runtime does, `driver_root_on_host` and `dev_root_on_host`
    are what the runtime calls them. `hook` is NVIDIA's program for hooks as the runtime calls it; looked for below the
    driver's root where None."""

    def __init__(
        self,
        driver_root: Path = Path("/"),
        dev_root: Path = Path("/dev"),
        proc_root: Path = Path("/proc"),
        *,
        driver_root_on_host: Path | None = None,
        dev_root_on_host: Path | None = None,
        hook: Path | None = None,
    ) -> None:
        self._root = driver_root
        self._dev = dev_root
        self._proc = proc_root
        self._root_on_host = driver_root_on_host or driver_root
        self._dev_on_host = dev_root_on_host or dev_root
        self._hook = hook

    def common(self, host: Host) -> Edits:
        """What every container with any GPU gets. What is not there is left out, see `missing`."""
        nodes = tuple(self._node(name) for name in CONTROL_NODES if (self._dev / name).exists())
        found = list(self._libraries(host.driver))
        files = [*self._programs(), *self._firmware(host.driver), *self._sockets()]
        hook = self._hook_program()
        if hook is None:
            libraries = tuple(mount for library in found for mount in self._by_link_name(library))
            hooks: tuple[Hook, ...] = ()
        else:
            libraries = tuple(self._mount(library) for library in found)
            hooks = _hooks(hook, libraries)
        return Edits(
            (("NVIDIA_VISIBLE_DEVICES", "void"),),
            nodes,
            tuple(dict.fromkeys((*libraries, *(self._mount(file) for file in files)))),
            hooks,
        )

    def missing(self, host: Host) -> tuple[str, ...]:
        """What a container will lack, in words, for a log and for `dovetail agent inspect`."""
        said = [f"{self._dev / name} is not there: `nvidia-modprobe -u -c 0` makes it" for name in NEEDED_NODES
                if not (self._dev / name).exists()]  # fmt: skip
        if not any(self._libraries(host.driver)):
            said.append(
                f"no libraries of the driver {host.driver or '(version not known)'} below {self._root}: programs that "
                "bring none of their own will not find CUDA; set the driver's root"
            )
        if self._hook_program() is None:
            said.append(
                "neither nvidia-cdi-hook nor nvidia-ctk is installed: libraries are mounted by their link names in the "
                "loader's own directories, and CUDA's forward compatibility is left to the image"
            )
        return tuple(said)

    def gpu(self, gpu: Gpu) -> Edits:
        """Raises DriverFilesError."""
        name = f"nvidia{gpu.minor}"
        if not (self._dev / name).exists():
            make = f"`nvidia-modprobe -c {gpu.minor}` makes it"
            raise DriverFilesError(f"{self._dev / name}, the device node of GPU {gpu.uuid}, is not there: {make}")
        return Edits(device_nodes=(self._node(name),))

    def instance(self, gpu: Gpu, instance: Instance) -> Edits:
        """Raises DriverFilesError."""
        own = f"gi{instance.gi}"
        guards = tuple(self._capability(gpu, path) for path in (own, f"{own}/ci{instance.ci}"))
        return self.gpu(gpu) + Edits(device_nodes=guards)

    def _capability(self, gpu: Gpu, path: str) -> DeviceNode:
        """The node that guards an instance. It need not be on the host: the runtime makes one by its numbers."""
        minor = self._capability_minor(gpu.minor, path)
        name = f"nvidia-caps/nvidia-cap{minor}"
        if (self._dev / name).exists():
            return self._node(name)
        major = self._caps_major()
        if major is None:
            raise DriverFilesError(
                f"{self._dev / name}, which guards a MIG instance of GPU {gpu.uuid}, is not there, and "
                f"{self._proc}/devices does not name nvidia-caps: `nvidia-smi -L` as root makes it"
            )
        return DeviceNode(f"/dev/{name}", "", major, minor)

    def _capability_minor(self, gpu: int, path: str) -> int:
        access = self._proc / f"driver/nvidia/capabilities/gpu{gpu}/mig/{path}/access"
        table = self._proc / "driver/nvidia-caps/mig-minors"
        for file, pattern in ((access, r"^DeviceFileMinor:\s*(\d+)"), (table, rf"^gpu{gpu}/{path}/access\s+(\d+)")):
            try:
                found = re.search(pattern, file.read_text(), re.MULTILINE)
            except OSError:
                continue
            if found is not None:
                return int(found[1])
        raise DriverFilesError(
            f"neither {access} nor {table} tells the device number of the MIG instance gpu{gpu}/{path}"
        )

    def _caps_major(self) -> int | None:
        try:
            found = re.search(r"^\s*(\d+)\s+nvidia-caps$", (self._proc / "devices").read_text(), re.MULTILINE)
        except OSError:
            return None
        return int(found[1]) if found is not None else None

    def _node(self, name: str) -> DeviceNode:
        """With its numbers where it is a character device."""
        path = f"/dev/{name}"
        on_host = str(self._dev_on_host / name)
        status = (self._dev / name).stat()
        numbers = (os.major(status.st_rdev), os.minor(status.st_rdev)) if stat.S_ISCHR(status.st_mode) else (None, None)
        return DeviceNode(path, on_host if on_host != path else "", *numbers)

    def _libraries(self, version: str) -> Iterator[Path]:
        """Those of the version, where the driver's own are: each once, also where folders are links to others."""
        seen: set[Path] = set()
        for name in _LIBRARY_FOLDERS if version else ():
            folder = self._root / name
            if not (folder / f"libcuda.so.{version}").exists() and not (folder / f"libnvidia-ml.so.{version}").exists():
                continue
            for library in sorted((*folder.glob(f"*.so.{version}"), *folder.glob(f"vdpau/*.so.{version}"))):
                if (real := library.resolve()) not in seen:
                    seen.add(real)
                    yield library

    def _programs(self) -> Iterator[Path]:
        for name in PROGRAMS:
            found = next((at for folder in _PROGRAM_FOLDERS if (at := self._root / folder / name).is_file()), None)
            if found is not None:
                yield found

    def _firmware(self, version: str) -> list[Path]:
        folder = self._root / "lib/firmware/nvidia" / version
        return sorted(folder.glob("gsp*.bin")) if version else []

    def _sockets(self) -> Iterator[Path]:
        return (self._root / name for name in _SOCKETS if (self._root / name).exists())

    def _mount(self, file: Path) -> Mount:
        inside = file.relative_to(self._root)
        options = (*READ_ONLY, "noexec") if file.name == "socket" else READ_ONLY
        return Mount(str(self._root_on_host / inside), f"/{inside}", options)

    def _by_link_name(self, library: Path) -> Iterator[Mount]:
        """A library under the names that link to it, in the directories of Debian's loader and of all others."""
        real = library.resolve()
        links = [each.name for each in library.parent.iterdir() if each.is_symlink() and _SONAME.fullmatch(each.name)]
        names = [name for name in links if (library.parent / name).resolve() == real] or [library.name]
        source = self._mount(library).host_path
        below = "vdpau/" if library.parent.name == "vdpau" else ""
        for folder in (_LOADER_FOLDERS.get(os.uname().machine, "usr/lib"), "usr/lib64"):
            for name in sorted(names):
                yield Mount(source, f"/{folder}/{below}{name}")

    def _hook_program(self) -> Path | None:
        if self._hook is not None:
            return self._hook
        return next((self._root_on_host / name for name in _HOOKS if (self._root / name).is_file()), None)


def _hooks(program: Path, libraries: tuple[Mount, ...]) -> tuple[Hook, ...]:
    """Links that programs are built against, then the loader's cache with the folders of the libraries."""
    start = (program.name, "hook") if program.name == "nvidia-ctk" else (program.name,)
    paths = [Path(mount.container_path) for mount in libraries]
    links = [
        f"{target}::{path.parent / link}"
        for path in paths
        for link, target in _LINKS.items()
        if path.name.startswith(f"{link}.")
    ]
    folders = sorted({str(path.parent) for path in paths})
    asked = {"create-symlinks": ("--link", links), "update-ldcache": ("--folder", folders)}
    return tuple(
        Hook(str(program), (*start, name, *(part for value in values for part in (option, value))))
        for name, (option, values) in asked.items()
        if values
    )
