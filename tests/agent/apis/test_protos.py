# SPDX-License-Identifier: Apache-2.0
"""The messages in the tree are those of the .proto files (`make protos`)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.paths import ROOT

SOURCE = ROOT / "src"
FOLDER = SOURCE / "dovetail/agent/apis"


def test_the_generated_modules_are_up_to_date(tmp_path: Path) -> None:
    protos = sorted(str(path.relative_to(SOURCE)) for path in FOLDER.glob("*.proto"))
    out = [f"--python_out={tmp_path}", f"--pyi_out={tmp_path}"]
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", f"-I{SOURCE}", *out, *protos], cwd=SOURCE, check=True)
    made = tmp_path / "dovetail/agent/apis"
    for path in sorted((*FOLDER.glob("*_pb2.py"), *FOLDER.glob("*_pb2.pyi"))):
        assert (made / path.name).read_text() == path.read_text(), path.name
