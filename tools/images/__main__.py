# SPDX-License-Identifier: Apache-2.0
"""Command line of images and distributions: `python -m tools.images image|wheel|sdist|compiled|lock`."""

import argparse
import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from tools.controlplane.binaries import PlaneUnavailable
from tools.controlplane.plane import print_progress
from tools.images import debian, distributions
from tools.images.archive import digest, manifest
from tools.images.build import Parts, build

MIB = 1 << 20


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.images", description="Images and distributions of Dovetail")
    commands = parser.add_subparsers(dest="command", required=True)
    image_parser = commands.add_parser("image", help="build the image as an archive, with its SBOM beside it")
    image_parser.add_argument("--name", default="dovetail:0.1.0", help="under which the archive is loaded, with a tag")
    image_parser.add_argument("--wheel", type=Path, help="Dovetail's wheel; by default it is built first")
    image_parser.add_argument("--mirror", action="append", default=[], help="of Debian's packages; by default apt's")
    for name in ("wheel", "sdist"):
        commands.add_parser(name, help=f"build Dovetail's {name}")
    for each in commands.choices.values():
        each.add_argument("--output", type=Path, default=Path("dist"), help="folder; default: %(default)s")
    commands.add_parser("compiled", help="put the compiled parts of the wheel beside the sources of this clone")
    commands.add_parser("lock", help="choose the newest versions of Debian's packages, on Debian after apt-get update")
    arguments = parser.parse_args()
    try:
        match arguments.command:
            case "image":
                return image(arguments)
            case "compiled":
                print(f"{len(distributions.put_into_tree(print_progress))} compiled parts are in src")
            case "lock":
                debian.LOCK.write_text(debian.newest(datetime.now(UTC).date()))
                print(debian.LOCK)
            case _:
                sdist = distributions.build_sdist(arguments.output, distributions.epoch_s())
                print(sdist)
                if arguments.command == "wheel":
                    print(_wheel(sdist, arguments.output))
        return 0
    except (PlaneUnavailable, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def image(arguments: argparse.Namespace) -> int:
    """Build the image's archive and its SBOM, and print what they are."""
    with TemporaryDirectory(prefix="dovetail-wheel-") as folder:
        wheel = arguments.wheel
        if wheel is None:
            wheel = _wheel(distributions.build_sdist(Path(folder), distributions.epoch_s()), Path(folder))
        parts = Parts(wheel, distributions.epoch_s(), distributions.revision(), arguments.mirror)
        built = build(parts, arguments.name, print_progress)
    stem = arguments.name.rsplit("/", 1)[-1].replace(":", "-")
    target = arguments.output / f"{stem}-{debian.ARCHITECTURE}.tar"
    arguments.output.mkdir(parents=True, exist_ok=True)
    target.write_bytes(built.archive)
    target.with_suffix(".cdx.json").write_bytes(built.sbom)
    print(f"{target}\n{target.with_suffix('.cdx.json')}")
    print(f"{arguments.name} {digest(manifest(built.image))}")
    print(f"compressed {built.compressed_bytes / MIB:.1f} MiB, unpacked {built.unpacked_bytes / MIB:.1f} MiB")
    return 0


def _wheel(sdist: Path, target: Path) -> Path:
    compiled = os.environ.get("DOVETAIL_COMPILE") != "0"
    return distributions.build_wheel(sdist, target, distributions.epoch_s(), print_progress, compiled=compiled)


if __name__ == "__main__":
    sys.exit(main())
