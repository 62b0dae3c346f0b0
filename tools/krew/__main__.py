# SPDX-License-Identifier: Apache-2.0
"""Command line of the plugin for krew: `python -m tools.krew` builds the archives and the manifest into dist/."""

import argparse
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from dovetail import __version__
from tools.controlplane.binaries import PlaneUnavailable
from tools.controlplane.plane import print_progress
from tools.images import distributions
from tools.krew.archive import archive, archive_name, manifest
from tools.krew.wheels import PLATFORMS, download

PYTHONS = ("3.11", "3.12", "3.13", "3.14")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.krew", description="Dovetail as a plugin for krew")
    parser.add_argument("--platform", action="append", choices=[str(one) for one in PLATFORMS], help="default: all")
    parser.add_argument("--python", action="append", choices=PYTHONS, help="versions of Python; default: all")
    parser.add_argument("--homepage", required=True, help="the page of the project")
    parser.add_argument("--uri", required=True, help="the address below which the archives are published")
    parser.add_argument("--output", type=Path, default=Path("dist"), help="folder; default: %(default)s")
    arguments = parser.parse_args()
    platforms = [one for one in PLATFORMS if not arguments.platform or str(one) in arguments.platform]
    pythons, epoch_s = arguments.python or list(PYTHONS), distributions.epoch_s()
    try:
        with TemporaryDirectory(prefix="dovetail-krew-") as folder:
            sdist = distributions.build_sdist(Path(folder), epoch_s)
            wheel = distributions.build_wheel(sdist, Path(folder), epoch_s, print_progress, compiled=False)
            archives = {
                one: archive(wheel, {python: download(one, python) for python in pythons}, epoch_s) for one in platforms
            }
    except PlaneUnavailable as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    arguments.output.mkdir(parents=True, exist_ok=True)
    for one, content in archives.items():
        target = arguments.output / archive_name(__version__, one)
        target.write_bytes(content)
        print(f"{target} {len(content) / (1 << 20):.1f} MiB")
    target = arguments.output / "dovetail.yaml"
    target.write_text(manifest(__version__, arguments.homepage, arguments.uri.rstrip("/"), archives, pythons))
    print(target)
    return 0


if __name__ == "__main__":
    sys.exit(main())
