# SPDX-License-Identifier: Apache-2.0
"""The files of NVIDIA's driver that a container needs: device nodes, libraries, programs, and hooks.

Rules
- The files of the running driver (`driver_tree`) are mounted at their paths below the driver's root, and configuration
  where loaders search for it.
- With NVIDIA's hook on the host, the hook creates links and the loader's cache in the container, enables the image's
  libraries for CUDA's forward compatibility if they are newer than the driver, and keeps the driver's programs from
  creating device nodes there. Without the hook each library is mounted under the names by which it is opened, in the
  directories that every loader searches. No environment variable is set for that: child processes would inherit it.
- With `NVIDIA_VISIBLE_DEVICES=void` NVIDIA's older runtime hook adds no GPU, whatever the image requests.
- A whole GPU comes with its DRM nodes for graphics. A MIG instance has no DRM nodes; two capability nodes give access
  to its GPU instance and its compute instance. Sources: NVIDIA container toolkit 1.20.1 (pkg/nvcdi: what `nvidia-ctk
  cdi generate` finds; how ours differs is in docs/reference/cdi.md), MIG user guide (capabilities).
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from dovetail.agent.cdi import READ_ONLY, DeviceNode, Edits, Hook, Mount
from dovetail.agent.machine.driver_tree import DriverTree, SymbolicLink
from dovetail.agent.machine.host import Gpu, GpuInstance, Host

CONTROL_NODES = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")
NEEDED_NODES = ("nvidiactl", "nvidia-uvm")
_SOCKET = ("nosuid", "nodev", "rbind", "rprivate", "noexec")
_HOOKS = ("usr/bin/nvidia-cdi-hook", "usr/local/nvidia/toolkit/nvidia-cdi-hook", "usr/bin/nvidia-ctk")
_LOADER_FOLDERS = {"x86_64": "usr/lib/x86_64-linux-gnu", "aarch64": "usr/lib/aarch64-linux-gnu"}


def channel_path(number: int) -> str:
    """The device node of an IMEX channel."""
    return f"/dev/nvidia-caps-imex-channels/channel{number}"


class DriverFilesError(Exception):
    """A container could not use the device; the message names the missing file and the remedy."""


class DriverFiles:
    """The driver that is installed below `driver_root`, with its device nodes in `dev_root` (/dev), its capabilities
    below `proc_root` and the kernel's files of its GPUs below `sysfs_root`.

    `driver_root_on_host` and `dev_root_on_host` are the same folders as the container runtime sees them, if its paths
    differ. `hook` is the path of NVIDIA's hook program for the runtime; None searches it below the driver's root."""

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
        """The edits for every container with a GPU, with these IMEX channels. Files that do not exist are left out, see
        `missing`."""
        tree = DriverTree(self._root, host.driver)
        names = (*CONTROL_NODES, *(channel_path(number).removeprefix("/dev/") for number in channels))
        nodes = tuple(self._node(name) for name in names if (self._dev / name).exists())
        cached, opened = tree.libraries, tree.graphics_libraries
        links = tree.links()
        hook = self._hook_program()
        if hook is None:
            named = (mount for library in cached for mount in self._by_link_name(library, tree))
            linked = (mount for library in cached for mount in self._at_links(library, links, tree.names_of(library)))
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
        """Why a container cannot have these IMEX channels, "" if it can."""
        names = (channel_path(number).removeprefix("/dev/") for number in channels)
        lacking = next((self._dev / name for name in names if not (self._dev / name).exists()), None)
        return f"{lacking} does not exist, and imex.required is set: run `nvidia-modprobe`" if lacking else ""

    def missing(self, host: Host) -> tuple[str, ...]:
        """What containers will lack, as messages for the log and for `dovetail agent inspect`."""
        messages = [f"{self._dev / name} does not exist: run `nvidia-modprobe -u -c 0`" for name in NEEDED_NODES
                    if not (self._dev / name).exists()]  # fmt: skip
        if not DriverTree(self._root, host.driver).libraries:
            messages.append(
                f"{self._root} has no libraries of driver {host.driver or '(unknown version)'}: programs without "
                "libraries of their own will not find CUDA; set the driver's root"
            )
        if self._hook_program() is None:
            messages.append(
                "neither nvidia-cdi-hook nor nvidia-ctk is installed: libraries are mounted under their link names in "
                "the loader's directories, and the image must enable CUDA's forward compatibility itself"
            )
        return tuple(messages)

    def gpu(self, gpu: Gpu) -> Edits:
        """The edits for a GPU. Raises DriverFilesError."""
        drm = self._drm_nodes(gpu)
        hook, links = self._hook_program(), self._drm_links(gpu, {node.path for node in drm})
        hooks = (_links_hook(hook, links),) if hook is not None and links else ()
        return Edits(device_nodes=(self._gpu_node(gpu), *drm), hooks=hooks)

    def instance(self, gpu: Gpu, instance: GpuInstance) -> Edits:
        """The edits for a MIG instance. Raises DriverFilesError."""
        own = f"gi{instance.gi}"
        capabilities = tuple(self._capability(gpu, path) for path in (own, f"{own}/ci{instance.ci}"))
        return Edits(device_nodes=(self._gpu_node(gpu), *capabilities))

    def _gpu_node(self, gpu: Gpu) -> DeviceNode:
        name = f"nvidia{gpu.minor}"
        if not (self._dev / name).exists():
            remedy = f"run `nvidia-modprobe -c {gpu.minor}`"
            raise DriverFilesError(f"{self._dev / name}, the device node of GPU {gpu.uuid}, does not exist: {remedy}")
        return self._node(name)

    def _drm_nodes(self, gpu: Gpu) -> tuple[DeviceNode, ...]:
        """The DRM nodes of a GPU that exist; graphics programs open them."""
        folder = self._sysfs / "bus/pci/devices" / gpu.pci_bus_id / "drm"
        names = sorted(each.name for each in folder.iterdir()) if folder.is_dir() else []
        return tuple(self._node(f"dri/{name}") for name in names if (self._dev / "dri" / name).exists())

    def _drm_links(self, gpu: Gpu, nodes: set[str]) -> tuple[SymbolicLink, ...]:
        """The links to its DRM nodes by PCI address, by which some programs find a GPU."""
        folder = Path("/dev/dri/by-path")
        names = [f"pci-{gpu.pci_bus_id}-{kind}" for kind in ("card", "render")]
        there = [(name, at) for name in names if (at := self._dev / "dri/by-path" / name).is_symlink()]
        targets = [(str(folder / name), str(at.readlink())) for name, at in there]
        return tuple(SymbolicLink(path, to) for path, to in targets if os.path.normpath(folder / to) in nodes)

    def _capability(self, gpu: Gpu, path: str) -> DeviceNode:
        """The capability node of an instance. It need not exist on the host: the runtime creates it by its numbers."""
        minor = self._capability_minor(gpu.minor, path)
        name = f"nvidia-caps/nvidia-cap{minor}"
        if (self._dev / name).exists():
            return self._node(name)
        major = self._caps_major()
        if major is None:
            raise DriverFilesError(
                f"{self._dev / name}, the capability of a MIG instance of GPU {gpu.uuid}, does not exist, and "
                f"{self._proc}/devices does not list nvidia-caps: run `nvidia-smi -L` as root"
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
            f"neither {access} nor {table} has the device number of the MIG instance gpu{gpu}/{path}"
        )

    def _caps_major(self) -> int | None:
        try:
            found = re.search(r"^\s*(\d+)\s+nvidia-caps$", (self._proc / "devices").read_text(), re.MULTILINE)
        except OSError:
            return None
        return int(found[1]) if found is not None else None

    def _node(self, name: str) -> DeviceNode:
        """A device node, with its numbers if it is a character device."""
        path = f"/dev/{name}"
        on_host = str(self._dev_on_host / name)
        status = (self._dev / name).stat()
        numbers = (os.major(status.st_rdev), os.minor(status.st_rdev)) if stat.S_ISCHR(status.st_mode) else (None, None)
        return DeviceNode(path, on_host if on_host != path else "", *numbers)

    def _mount(self, file: Path, path: str = "", options: tuple[str, ...] = READ_ONLY) -> Mount:
        """A mount of the file at `path`, by default its path below the driver's root."""
        inside = file.relative_to(self._root)
        return Mount(str(self._root_on_host / inside), path or f"/{inside}", options)

    def _by_link_name(self, library: Path, tree: DriverTree) -> Iterator[Mount]:
        """Mounts of a library under the names that link to it, in the loader's directories (of Debian, and of
        others)."""
        below = "vdpau/" if library.parent.name == "vdpau" else ""
        for folder in _loader_folders():
            for name in tree.names_of(library) or (library.name,):
                yield self._mount(library, f"/{folder}/{below}{name}")

    def _at_links(self, library: Path, links: Iterable[SymbolicLink], sonames: tuple[str, ...]) -> Iterator[Mount]:
        """Mounts of a library in place of other links to it: names without a version, and names below its folder."""
        own, names = f"/{library.parent.relative_to(self._root)}/", {library.name, *sonames}
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
    """The hooks in their order: links; the folder of the image's compatibility libraries, if these are newer than the
    driver; the loader's cache with that folder and the folders of the libraries. None without a driver."""
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
