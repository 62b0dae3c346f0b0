# SPDX-License-Identifier: Apache-2.0
"""The administrator's test of a device before its quarantine ends: a command, such as a burn-in or `dcgmi diag`.

Rules: it runs without a shell, in a session of its own, with DOVETAIL_GPU_UUID, NVIDIA_VISIBLE_DEVICES and
CUDA_VISIBLE_DEVICES set to the uuid of the GPU or MIG instance. Exit code 0 passes. After `timeout_s` all its processes
are killed, and it has failed. Only the end of its output is kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal

_KEPT_BYTES = 4096
_LONGEST_LINE = 500
_VARIABLES = ("DOVETAIL_GPU_UUID", "NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")


class ExitTest:
    def __init__(self, command: tuple[str, ...], timeout_s: float) -> None:
        self._command = command
        self._timeout_s = timeout_s

    async def run(self, uuid: str) -> str:
        """Test the device. Returns "" if it passes, else the last line of the output, or why there is none."""
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                env={**os.environ, **dict.fromkeys(_VARIABLES, uuid)},
                start_new_session=True,
            )
        except OSError as error:
            return f"{self._command[0]} cannot be started: {error.strerror}"
        assert process.stdout is not None
        kept = bytearray()
        try:
            async with asyncio.timeout(self._timeout_s):
                while data := await process.stdout.read(1 << 16):
                    kept = (kept + data)[-_KEPT_BYTES:]
                code = await process.wait()
        except TimeoutError:
            return f"it did not end within {self._timeout_s:g} s"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        if code == 0:
            return ""
        lines = bytes(kept).decode(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        shown = "".join(c if c.isprintable() else " " for c in last)[:_LONGEST_LINE].strip()
        return shown or (f"it was ended by signal {-code}" if code < 0 else f"it ended with exit code {code}")
