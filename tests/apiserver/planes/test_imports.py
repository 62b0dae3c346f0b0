# SPDX-License-Identifier: Apache-2.0
"""What a process that serves planes loads."""

import subprocess
import sys

LARGE = ("numpy", "grpc", "matplotlib", "yaml", "rich", "click", "prometheus_client", "pynvml")


def test_the_host_loads_none_of_the_large_libraries() -> None:
    program = "import sys, dovetail.apiserver.planes.host; print(*{name.partition('.')[0] for name in sys.modules})"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert "aiohttp" in loaded
    assert [name for name in LARGE if name in loaded] == []
