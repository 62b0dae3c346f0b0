# SPDX-License-Identifier: Apache-2.0
"""The files of NVIDIA's driver below a root, and their paths in containers: tables, and a search by them.

Rules
- Libraries are those whose names end in the version of the running driver, in the folders of the driver's own
  libraries, and the few with other version numbers: EGL platforms, an older NVVM, modules of an X server.
- Configuration of EGL, GBM, OptiX, OpenCL and Vulkan is mounted where loaders search for it, wherever it is installed.
- Symbolic links are those beside the library on the host, and those of the table: names by which a program or loader
  opens a library.
Source: NVIDIA container toolkit 1.20.1 (pkg/nvcdi, internal/discover: what `nvidia-ctk cdi generate` finds).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path

from msgspec import Struct

PROGRAMS = (
    "nvidia-smi",
    "nvidia-debugdump",
    "nvidia-persistenced",
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
    "nvidia-imex",
    "nvidia-imex-ctl",
    "nvidia-xconfig",
)
_PROGRAM_FOLDERS = ("usr/local/sbin", "usr/local/bin", "usr/sbin", "usr/bin", "sbin", "bin", "opt/nvidia/bin")
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
_OTHER_LIBRARIES = ("libnvidia-nvvm70.so.*",)
_EGL_PLATFORMS = tuple(f"libnvidia-egl-{name}.so.*.*" for name in ("gbm", "wayland", "wayland2", "xcb", "xlib"))
_XORG_FOLDERS = tuple(
    f"{at}{updates}/{kind}"
    for at in ("usr/lib/xorg/modules", "usr/lib64/xorg/modules", "usr/X11R6/lib/modules", "usr/X11R6/lib64/modules")
    for updates in ("", "/updates")
    for kind in ("drivers", "extensions")
)
_FIRMWARE = ("gsp*.bin", "ucodes*.bin")
_SOCKETS = ("nvidia-persistenced/socket", "nvidia-fabricmanager/socket")
_CONFIG_FOLDERS = ("etc", "usr/local/share", "usr/share")
_CONFIGS = {
    "/usr/share": (
        "glvnd/egl_vendor.d/10_nvidia.json",
        "egl/egl_external_platform.d/15_nvidia_gbm.json",
        "egl/egl_external_platform.d/10_nvidia_wayland.json",
        "egl/egl_external_platform.d/09_nvidia_wayland2.json",
        "egl/egl_external_platform.d/20_nvidia_xcb.json",
        "egl/egl_external_platform.d/20_nvidia_xlib.json",
        "nvidia/nvoptix.bin",
        "X11/xorg.conf.d/10-nvidia.conf",
        "X11/xorg.conf.d/nvidia-drm-outputclass.conf",
    ),
    "/etc": (
        "OpenCL/vendors/nvidia.icd",
        "vulkan/icd.d/nvidia_icd.json",
        "vulkan/icd.d/nvidia_layers.json",
        "vulkan/implicit_layer.d/nvidia_layers.json",
        f"vulkan/icd.d/nvidia_icd.{os.uname().machine}.json",
    ),
}
"""By the folder in the container. The files of Vulkan may also be in the root itself (GKE)."""
_LINKS = {
    "libcuda.so": ("libcuda.so", "libcuda.so.1"),
    "libnvidia-opticalflow.so": ("libnvidia-opticalflow.so", "libnvidia-opticalflow.so.1"),
    "libGLX_nvidia.so": ("libGLX_indirect.so.0", ""),
    "libnvidia-allocator.so": ("gbm/nvidia-drm_gbm.so", "../libnvidia-allocator.so.1"),
    "libnvidia-vulkan-producer.so": ("libnvidia-vulkan-producer.so", ""),
    "libglxserver_nvidia.so": ("libglxserver_nvidia.so", ""),
}
"""By library (link, target); the target "" is the library itself."""
_SONAME = re.compile(r".+\.so\.\d+")


class SymbolicLink(Struct, frozen=True):
    """`path` in the container points to `target`."""

    path: str
    target: str


class DriverTree:
    """The driver of this version below `root`. If the version is "", no files are found.

    Folders and libraries are searched for once: each look at the files takes a new tree.
    """

    def __init__(self, root: Path, version: str) -> None:
        self._root, self._version = root, version
        self._listed: dict[Path, tuple[str, ...]] = {}
        """The names in the folders of libraries."""
        self._names: dict[Path, tuple[str, ...]] = {}

    @cached_property
    def libraries(self) -> tuple[Path, ...]:
        """The libraries for the loader's cache. Each is listed once, also if folders are links to others."""
        patterns = (f"*.so.{self._version}", f"vdpau/*.so.{self._version}")
        return _once([*self._in_folders(patterns), *self._in_folders(_OTHER_LIBRARIES, links=False)])

    @cached_property
    def graphics_libraries(self) -> tuple[Path, ...]:
        """The libraries that are opened by path: EGL platforms, and modules of an X server."""
        own = [*(f"{at}/nvidia/xorg" for at in self._relative_folders()), *self._xorg_folders()]
        modules = ("nvidia_drv.so", f"libglxserver_nvidia.so.{self._version}") if self._version else ()
        found = [self._first(own, name) for name in modules]
        return _once([*self._in_folders(_EGL_PLATFORMS, links=False), *(file for file in found if file is not None)])

    def links(self) -> tuple[SymbolicLink, ...]:
        """The links by which the libraries are opened, without those that the loader's cache creates."""
        special = (self._special(library) for library in (*self.libraries, *self.graphics_libraries))
        named = (self._beside(library) for library in self.libraries)
        return tuple(dict.fromkeys(link for links in (*special, *named) for link in links))

    def names_of(self, library: Path) -> tuple[str, ...]:
        """The links beside a library by which it is opened: `libcuda.so.1` for `libcuda.so.570.1`."""
        if library not in self._names:
            start, real, folder = library.name.partition(".so")[0] + ".so.", library.resolve(), library.parent
            if folder not in self._listed:
                self._listed[folder] = tuple(sorted(file.name for file in folder.iterdir()))
            names = (name for name in self._listed[folder] if name.startswith(start) and _SONAME.fullmatch(name))
            links = (folder / name for name in names)
            self._names[library] = tuple(one.name for one in links if one.is_symlink() and one.resolve() == real)
        return self._names[library]

    def files(self) -> Iterator[tuple[Path, str]]:
        """Programs, firmware and configuration: each file with its path in the container."""
        for name in PROGRAMS:
            program = self._first(_PROGRAM_FOLDERS, name)
            if program is not None:
                yield program, f"/{program.relative_to(self._root)}"
        for file in self._firmware():
            yield file, f"/{file.relative_to(self._root)}"
        for folder, names in _CONFIGS.items():
            for name in names:
                places = (*_CONFIG_FOLDERS, ".") if name.startswith("vulkan/") else _CONFIG_FOLDERS
                config = self._first(places, name)
                if config is not None:
                    yield config, f"{folder}/{name}"

    def sockets(self) -> Iterator[Path]:
        """The sockets of the driver's daemons."""
        for name in _SOCKETS:
            socket = self._first(("run", "var/run"), name)
            if socket is not None:
                yield socket

    @cached_property
    def _folders(self) -> tuple[Path, ...]:
        """The folders with the driver's own libraries."""
        own = tuple(f"{name}.so.{self._version}" for name in ("libcuda", "libnvidia-ml"))
        places = (self._root / name for name in _LIBRARY_FOLDERS) if self._version else ()
        return tuple(folder for folder in places if any((folder / name).exists() for name in own))

    def _relative_folders(self) -> Iterator[str]:
        return (str(folder.relative_to(self._root)) for folder in self._folders)

    def _xorg_folders(self) -> Iterator[str]:
        for at in self._relative_folders():
            yield from (f"{at}/xorg/modules{updates}/{kind}" for updates in ("", "/updates")
                        for kind in ("drivers", "extensions"))  # fmt: skip
        yield from _XORG_FOLDERS

    def _in_folders(self, patterns: Iterable[str], *, links: bool = True) -> Iterator[Path]:
        for folder in self._folders:
            found = sorted(file for pattern in patterns for file in folder.glob(pattern))
            yield from (file for file in found if links or not file.is_symlink())

    def _first(self, folders: Iterable[str], name: str) -> Path | None:
        places = (self._root.joinpath(folder, name) for folder in folders)
        return next((file for file in places if file.exists() and not file.is_dir()), None)

    def _firmware(self) -> Iterator[Path]:
        release = os.uname().release
        places = [f"{at}{more}" for at in ("lib/firmware/updates", "lib/firmware") for more in (f"/{release}", "")]
        for place in places if self._version else ():
            folder = self._root / place / "nvidia" / self._version
            yield from (file for pattern in _FIRMWARE for file in sorted(folder.glob(pattern)))

    def _special(self, library: Path) -> Iterator[SymbolicLink]:
        link, target = _LINKS.get(library.name.removesuffix(f".{self._version}"), ("", ""))
        if link:
            yield SymbolicLink(self._inside(library, link), target or library.name)

    def _beside(self, library: Path) -> Iterator[SymbolicLink]:
        """The links that the host has beside the library."""
        soname = next(iter(self.names_of(library)), "")
        if soname:
            yield SymbolicLink(self._inside(library, soname), library.name)
        stem = library.name.partition(".so")[0] + ".so"
        if library.name != stem and (library.parent / stem).is_symlink():
            yield SymbolicLink(self._inside(library, stem), soname or library.name)

    def _inside(self, library: Path, name: str) -> str:
        return str(Path("/", library.parent.relative_to(self._root), name))


def _once(files: Iterable[Path]) -> tuple[Path, ...]:
    seen: dict[Path, Path] = {}
    for file in files:
        seen.setdefault(file.resolve(), file)
    return tuple(seen.values())
