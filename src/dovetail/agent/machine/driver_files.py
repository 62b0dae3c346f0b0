# SPDX-License-Identifier: Apache-2.0
"""What a container needs of NVIDIA's driver: device nodes, libraries, programs, and the hooks that make them found.

Rules
- What is mounted are the files of the driver that runs (`driver_tree`). A container sees them where they are below the
  driver's root, and configuration where loaders look for it.
- With NVIDIA's hook on the host, links and the loader's cache are made in the container, libraries for CUDA's forward
  compatibility that its image brings are used where they have to be, and the driver's own programs make no device nodes
  in it. Without the hook each library is mounted under the names by which it is opened, in the directories that every
  loader looks in; no variable is set that a program would hand on to others.
- `NVIDIA_VISIBLE_DEVICES=void` tells NVIDIA's older runtime hook to add nothing by itself, whatever the image says.
- A whole GPU brings its nodes for graphics (DRM), a MIG instance does not: it is guarded by two nodes of its own, for
  its GPU instance and its compute instance.
Sources: NVIDIA container toolkit 1.20.1 (pkg/nvcdi: what `nvidia-ctk cdi generate` finds; how ours differs is in
docs/reference/cdi.md), MIG user guide (capabilities).
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from dovetail.agent.cdi import READ_ONLY, DeviceNode, Edits, Hook, Mount
from dovetail.agent.machine.driver_tree import DriverTree, SymbolicLink, names_of
from dovetail.agent.machine.host import Gpu, GpuInstance, Host

CONTROL_NODES = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")
NEEDED_NODES = ("nvidiactl", "nvidia-uvm")
_SOCKET = ("nosuid", "nodev", "rbind", "rprivate", "noexec")
_HOOKS = ("usr/bin/nvidia-cdi-hook", "usr/local/nvidia/toolkit/nvidia-cdi-hook", "usr/bin/nvidia-ctk")
_LOADER_FOLDERS = {"x86_64": "usr/lib/x86_64-linux-gnu", "aarch64": "usr/lib/aarch64-linux-gnu"}


def channel_path(number: int) -> str:
    """The device node of a channel of IMEX."""
    return f"/dev/nvidia-caps-imex-channels/channel{number}"


class DriverFilesError(Exception):
    """A container could not use the device; the text says which file is missing and what to do."""


class DriverFiles:
    """The driver installed below `driver_root`, its device nodes in `dev_root` (the folder that /dev is), its
    capabilities below `proc_root`, what the kernel says of its GPUs below `sysfs_root`.

    Where this process sees them elsewhere than the container runtime does, `driver_root_on_host` and `dev_root_on_host`
    are what the runtime calls them. `hook` is NVIDIA's program for hooks as the runtime calls it; looked for below the
    driver's root where None."""

    def __init__(
        self,
        driver_root: Path = Path("/"),
        dev_root: Path = Path("/dev"),
        proc_root: Path = Path("/proc"),
        sysfs_root: Path = Path("/sys"),
        *,
        driver_root_on_host: Path | None = None,
        dev_root_on_host: Path | None = None,
        hook: Path | None = None,
    ) -> None:
        self._root = driver_root
        self._dev = dev_root
        self._proc = proc_root
        self._sysfs = sysfs_root
        self._root_on_host = driver_root_on_host or driver_root
        self._dev_on_host = dev_root_on_host or dev_root
        self._hook = hook

    def common(self, host: Host, channels: Iterable[int] = ()) -> Edits:
        """What every container with any GPU gets, with these channels of IMEX. What is not there is left out, see
        `missing`."""
        tree = DriverTree(self._root, host.driver)
        names = (*CONTROL_NODES, *(channel_path(number).removeprefix("/dev/") for number in channels))
        nodes = tuple(self._node(name) for name in names if (self._dev / name).exists())
        cached, opened = tree.libraries(), tree.graphics_libraries()
        links = tree.links()
        hook = self._hook_program()
        if hook is None:
            named = (mount for library in cached for mount in self._by_link_name(library))
            linked = (mount for library in cached for mount in self._at_links(library, links))
            libraries: tuple[Mount, ...] = (*named, *linked)
        else:
            libraries = tuple(self._mount(library) for library in cached)
        mounts = (
            *libraries,
            *(self._mount(library) for library in opened),
            *(self._mount(file, path) for file, path in tree.files()),
            *(self._mount(socket, options=_SOCKET) for socket in tree.sockets()),
        )
        return Edits(
            (("NVIDIA_VISIBLE_DEVICES", "void"),),
            nodes,
            tuple(dict.fromkeys(mounts)),
            () if hook is None else _hooks(hook, libraries, links, host.driver),
        )

    def lacks_channel(self, channels: Iterable[int]) -> str:
        """Why a container cannot have these channels of IMEX; "" where it can."""
        names = (channel_path(number).removeprefix("/dev/") for number in channels)
        lacking = next((self._dev / name for name in names if not (self._dev / name).exists()), None)
        return f"{lacking}, which imex.required asks for, is not there: `nvidia-modprobe` makes it" if lacking else ""

    def missing(self, host: Host) -> tuple[str, ...]:
        """What a container will lack, in words, for a log and for `dovetail agent inspect`."""
        said = [f"{self._dev / name} is not there: `nvidia-modprobe -u -c 0` makes it" for name in NEEDED_NODES
                if not (self._dev / name).exists()]  # fmt: skip
        if not DriverTree(self._root, host.driver).libraries():
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
        drm = self._drm_nodes(gpu)
        hook, links = self._hook_program(), self._drm_links(gpu, {node.path for node in drm})
        hooks = (_links_hook(hook, links),) if hook is not None and links else ()
        return Edits(device_nodes=(self._gpu_node(gpu), *drm), hooks=hooks)

    def instance(self, gpu: Gpu, instance: GpuInstance) -> Edits:
        """Raises DriverFilesError."""
        own = f"gi{instance.gi}"
        guards = tuple(self._capability(gpu, path) for path in (own, f"{own}/ci{instance.ci}"))
        return Edits(device_nodes=(self._gpu_node(gpu), *guards))

    def _gpu_node(self, gpu: Gpu) -> DeviceNode:
        name = f"nvidia{gpu.minor}"
        if not (self._dev / name).exists():
            make = f"`nvidia-modprobe -c {gpu.minor}` makes it"
            raise DriverFilesError(f"{self._dev / name}, the device node of GPU {gpu.uuid}, is not there: {make}")
        return self._node(name)

    def _drm_nodes(self, gpu: Gpu) -> tuple[DeviceNode, ...]:
        """What graphics programs open of a GPU, where the driver has made it."""
        folder = self._sysfs / "bus/pci/devices" / gpu.pci_bus_id / "drm"
        names = sorted(each.name for each in folder.iterdir()) if folder.is_dir() else []
        return tuple(self._node(f"dri/{name}") for name in names if (self._dev / "dri" / name).exists())

    def _drm_links(self, gpu: Gpu, nodes: set[str]) -> tuple[SymbolicLink, ...]:
        """By the PCI address: some programs find a GPU so."""
        folder = Path("/dev/dri/by-path")
        names = [f"pci-{gpu.pci_bus_id}-{kind}" for kind in ("card", "render")]
        there = [(name, at) for name in names if (at := self._dev / "dri/by-path" / name).is_symlink()]
        targets = [(str(folder / name), str(at.readlink())) for name, at in there]
        return tuple(SymbolicLink(path, to) for path, to in targets if os.path.normpath(folder / to) in nodes)

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

    def _mount(self, file: Path, path: str = "", options: tuple[str, ...] = READ_ONLY) -> Mount:
        """At the path, by default the same as below the driver's root."""
        inside = file.relative_to(self._root)
        return Mount(str(self._root_on_host / inside), path or f"/{inside}", options)

    def _by_link_name(self, library: Path) -> Iterator[Mount]:
        """A library under the names that link to it, in the directories of Debian's loader and of all others."""
        below = "vdpau/" if library.parent.name == "vdpau" else ""
        for folder in _loader_folders():
            for name in names_of(library) or (library.name,):
                yield self._mount(library, f"/{folder}/{below}{name}")

    def _at_links(self, library: Path, links: Iterable[SymbolicLink]) -> Iterator[Mount]:
        """A library in the place of other links to it: what programs open without a number, or below its folder."""
        own, names = f"/{library.parent.relative_to(self._root)}/", {library.name, *names_of(library)}
        for link in links:
            name = link.path.removeprefix(own)
            if link.path.startswith(own) and name not in names and Path(link.target).name in names:
                yield from (self._mount(library, f"/{folder}/{name}") for folder in _loader_folders())

    def _hook_program(self) -> Path | None:
        if self._hook is not None:
            return self._hook
        return next((self._root_on_host / name for name in _HOOKS if (self._root / name).is_file()), None)


def _loader_folders() -> tuple[str, ...]:
    return _LOADER_FOLDERS.get(os.uname().machine, "usr/lib"), "usr/lib64"


def _hooks(
    program: Path, libraries: Iterable[Mount], links: tuple[SymbolicLink, ...], version: str
) -> tuple[Hook, ...]:
    """Links first, then the folder of the image's compatibility libraries, where these are newer than the driver, then
    the loader's cache with that folder and those of the libraries. Nothing of it where there is no driver."""
    folders = sorted({str(Path(mount.container_path).parent) for mount in libraries})
    if not folders:
        return ()
    return (
        *((_links_hook(program, links),) if links else ()),
        _hook(program, "enable-cuda-compat", f"--host-driver-version={version}"),
        _hook(program, "update-ldcache", *(part for folder in folders for part in ("--folder", folder))),
        _hook(program, "disable-device-node-modification"),
    )


def _links_hook(program: Path, links: Iterable[SymbolicLink]) -> Hook:
    parts = (part for link in links for part in ("--link", f"{link.target}::{link.path}"))
    return _hook(program, "create-symlinks", *parts)


def _hook(program: Path, name: str, *arguments: str) -> Hook:
    start = (program.name, "hook") if program.name == "nvidia-ctk" else (program.name,)
    return Hook(str(program), (*start, name, *arguments))
