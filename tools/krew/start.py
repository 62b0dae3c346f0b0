# SPDX-License-Identifier: Apache-2.0
"""The start of the plugin: the libraries of this Python, and the command."""

import sys
from pathlib import Path

libraries, *arguments = sys.argv[1:]
sys.path[0:1] = [str(Path(__file__).parent / "lib" / "any"), libraries]
sys.argv = ["kubectl-dovetail", *arguments]

from dovetail.cli import main  # noqa: E402

main()
