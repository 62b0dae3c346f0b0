# SPDX-License-Identifier: Apache-2.0
"""The stand-in libnvidia-ml.so.1, built from nvml/ with the C compiler of this machine and then cached.

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
from collections.abc import Collection
from difflib import get_close_matches
from pathlib import Path

from tools.standin import layout

_SOURCES = sorted(Path(__file__).with_name("nvml").glob("*.[ch]"))
FLAGS = (
    "-std=gnu11",
    "-O1",
    "-g0",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-fPIC",
    "-shared",
    "-fvisibility=hidden",
    "-Wl,-soname,libnvidia-ml.so.1",
)
NAME = "libnvidia-ml.so.1"

_CALL = re.compile(
    r"^(?:API|[A-Z_]+\(|SYSTEM_TEXT\(|__attribute__.*\*)\s*(nvml\w+)(?=[,()])", re.MULTILINE
)  # a definition, or a macro that makes one


class StandinUnavailable(Exception):
    """The stand-in cannot be built on this machine. The message has the reason and the remedy."""


def symbols() -> tuple[str, ...]:
    """The NVML calls that the library implements."""
    found = (name for source in _SOURCES for name in _CALL.findall(source.read_text()))
    return tuple(dict.fromkeys(found))


def symbols_of(call: str) -> tuple[str, ...]:
    """The C symbols of a call of the Python binding: nvmlDeviceGetPciInfo is nvmlDeviceGetPciInfo_v3, and
    nvmlDeviceGetMemoryInfo is both that and nvmlDeviceGetMemoryInfo_v2. Raises ValueError if there are none."""
    known = symbols()
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
    hidden = sorted({symbol for call in missing for symbol in symbols_of(call)})
    header = layout.header()
    sources = (source.read_text() for source in _SOURCES)
    recipe = "\0".join((*sources, header, *FLAGS, *hidden, sys.platform, platform.machine()))
    target = cache_dir() / hashlib.sha256(recipe.encode()).hexdigest()[:16]
    if (target / NAME).is_file():
        return target
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("cc") or shutil.which("clang")
    if not compiler:
        raise StandinUnavailable("no C compiler on PATH: install gcc (Debian: `apt install gcc libc6-dev`), or set CC")
    try:
        cache_dir().mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix="partial-", dir=cache_dir()))
    except OSError as error:
        raise StandinUnavailable(f"cannot write the cache: {error}; set XDG_CACHE_HOME to a writable folder") from error
    try:
        (partial / "layout.h").write_text(header)
        (partial / "symbols").write_text(f"{{ {'local: ' + '; '.join(hidden) + ';' if hidden else ''} }};\n")
        argv = [*compiler.split(), *FLAGS, f"-I{partial}", "-o", str(partial / NAME), "-pthread"]
        argv += [str(source) for source in _SOURCES if source.suffix == ".c"]
        argv += ["-lm"]
        argv += [f"-Wl,--version-script={partial / 'symbols'}"] if hidden else []
        try:
            done = subprocess.run(argv, capture_output=True, text=True, check=False)
        except OSError as error:
            raise StandinUnavailable(f"cannot run the C compiler: {error}; install gcc, or set CC to one") from error
        if done.returncode:
            raise StandinUnavailable(f"`{' '.join(argv)}` ended with {done.returncode}:\n{done.stderr[-4000:]}")
        try:
            partial.rename(target)
        except OSError:
            # Another process has built the same library in the meantime.
            if not (target / NAME).is_file():
                raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return target
