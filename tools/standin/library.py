# SPDX-License-Identifier: Apache-2.0
"""The stand-in libnvidia-ml.so.1 and libdcgm.so.4, built with the C compiler of this machine and then cached.

Rules: the cache is outside the repository, with one folder per (sources, layout, missing calls, compiler flags,
platform). A folder appears only when it is complete, so that several processes can build at once. The library does not
export the symbols of missing calls, as an older driver.
"""

import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from pathlib import Path

from tools.standin import layout

_HERE = Path(__file__).parent
_SOURCES = tuple(sorted((_HERE / "nvml").glob("*.[ch]")))
# The client of a host engine reads the same file.
_DCGM_SOURCES = (
    *sorted((_HERE / "dcgm").glob("*.[ch]")),
    *(_HERE / "nvml" / name for name in ("load.c", "mapped.c", "nvml.h")),
)
FLAGS = (
    "-std=gnu11",
    "-O1",
    "-g0",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-fPIC",
    "-fvisibility=hidden",
)
NAME, DCGM_NAME = "libnvidia-ml.so.1", "libdcgm.so.4"
_COMPILED = "compiled.o"

_CALL = re.compile(
    r"^(?:API|[A-Z_]+\(|SYSTEM_TEXT\(|__attribute__.*\*)\s*((?:nvml|dcgm)\w+)(?=[,()])", re.MULTILINE
)  # a definition, or a macro that makes one


class StandinUnavailable(Exception):
    """The stand-in cannot be built on this machine. The message has the reason and the remedy."""


def symbols() -> tuple[str, ...]:
    """The NVML calls that the library implements."""
    return _calls(_SOURCES)


@cache
def _calls(sources: tuple[Path, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for source in sources for name in _CALL.findall(source.read_text())))


def symbols_of(call: str) -> tuple[str, ...]:
    """The C symbols of a call of the Python binding: nvmlDeviceGetPciInfo is nvmlDeviceGetPciInfo_v3, and
    nvmlDeviceGetMemoryInfo is both that and nvmlDeviceGetMemoryInfo_v2. Also those of a call of DCGM. Raises ValueError
    if there are none."""
    known = (*symbols(), *_calls(_DCGM_SOURCES))
    matching = re.compile(re.escape(call) + r"(_v\d+|V|WithFlags)?")
    found = tuple(symbol for symbol in known if matching.fullmatch(symbol))
    if not found:
        near = get_close_matches(call, known, 1)
        raise ValueError(f"{call} is no call of the stand-in" + (f"; did you mean {near[0]}?" if near else ""))
    return found


def cache_dir() -> Path:
    """The directory of built libraries: `$XDG_CACHE_HOME/dovetail/standin`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dovetail" / "standin"


def build(missing: Collection[str] = ()) -> Path:
    """The folder of libnvidia-ml.so.1 without the calls `missing`, built if the cache lacks it (a second).

    Raises StandinUnavailable, and ValueError for an unknown call."""
    return _built(NAME, _SOURCES, tuple(sorted({symbol for call in missing for symbol in symbols_of(call)})))


def build_dcgm() -> Path:
    """The folder of libdcgm.so.4, as build()."""
    return _built(DCGM_NAME, _DCGM_SOURCES, ())


@cache
def _recipe(name: str, files: tuple[Path, ...], hidden: tuple[str, ...]) -> str:
    sources = (source.read_text() for source in files)
    whole = "\0".join((name, *sources, layout.header(), *FLAGS, *hidden, sys.platform, platform.machine()))
    return hashlib.sha256(whole.encode()).hexdigest()[:16]


def _built(name: str, files: tuple[Path, ...], hidden: tuple[str, ...]) -> Path:
    target = cache_dir() / _recipe(name, files, hidden)
    if (target / name).is_file():
        return target
    # Compiling takes far longer than linking: what differs by hidden calls alone is linked from the same object.
    argv = ["-shared", "-pthread", f"-Wl,-soname,{name}", str(_compiled(files).absolute()), "-lm"]
    argv += ["-Wl,--version-script=symbols"] if hidden else []
    return _made(target, name, argv, {"symbols": f"{{ local: {'; '.join(hidden)}; }};\n"} if hidden else {})


def _compiled(files: tuple[Path, ...]) -> Path:
    """The object of all sources."""
    target = cache_dir() / _recipe(_COMPILED, files, ())
    if not (target / _COMPILED).is_file():
        sources = [str(source) for source in files if source.suffix == ".c"]
        _made(target, _COMPILED, [*FLAGS, "-r", "-pthread", "-I.", *sources], {"layout.h": layout.header()})
    return target / _COMPILED


def _made(target: Path, name: str, options: Sequence[str], texts: Mapping[str, str]) -> Path:
    """The folder `target` with what the compiler makes by these options beside these texts."""
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("cc") or shutil.which("clang")
    if not compiler:
        raise StandinUnavailable("no C compiler on PATH: install gcc (Debian: `apt install gcc libc6-dev`), or set CC")
    try:
        cache_dir().mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix="partial-", dir=cache_dir()))
    except OSError as error:
        raise StandinUnavailable(f"cannot write the cache: {error}; set XDG_CACHE_HOME to a writable folder") from error
    try:
        for file, text in texts.items():
            (partial / file).write_text(text)
        argv = [*compiler.split(), *options, "-o", name]
        try:
            done = subprocess.run(argv, cwd=partial, capture_output=True, text=True, check=False)
        except OSError as error:
            raise StandinUnavailable(f"cannot run the C compiler: {error}; install gcc, or set CC to one") from error
        if done.returncode:
            raise StandinUnavailable(f"`{' '.join(argv)}` ended with {done.returncode}:\n{done.stderr[-4000:]}")
        try:
            partial.rename(target)
        except OSError:
            # Another process has built the same library in the meantime.
            if not (target / name).is_file():
                raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return target
