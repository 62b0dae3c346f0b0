# SPDX-License-Identifier: Apache-2.0
"""Time slices of GPUs: set for a claim, and put back when it ends.

Rules
- A slice that cannot be set is a failure of the claim that asks for it, and of nobody else.
- A slice that cannot be put back keeps nobody from the GPU: it costs the next one a little latency or throughput, and
  isolates nothing. It is remembered, also over restarts, and put back as soon as that works.
NVML has no call for it, so NVIDIA's program does it. Calls block.
"""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from dovetail.agent.checkpoint import CheckpointError, CheckpointFile
from dovetail.agent.dra.configs import ClaimError

log = logging.getLogger(__name__)

DEFAULT = 0
_PATIENCE_S = 20.0
Set = Callable[[str, int], None]


class NotSet(ClaimError):
    """The time slice is what it was."""


class TimeSlices:
    """`set_slice` sets the slice of a GPU (uuid, as nvidia-smi counts it), and raises ClaimError. Those that are to be
    put back are kept at `checkpoint`. Raises CheckpointError."""

    def __init__(self, checkpoint: Path, set_slice: Set) -> None:
        self._checkpoint = CheckpointFile(checkpoint, tuple[str, ...])
        self._set = set_slice
        self._left: tuple[str, ...] = self._checkpoint.read() or ()

    @property
    def left(self) -> tuple[str, ...]:
        """The GPUs whose slice is to be put back yet."""
        return self._left

    def set(self, uuid: str, interval: int) -> None:
        """Raises ClaimError; NotSet where it is for sure what it was."""
        self._set(uuid, interval)
        self._note([one for one in self._left if one != uuid])

    def put_back(self, uuid: str) -> None:
        """Never raises; what fails is done by `finish`."""
        try:
            self._set(uuid, DEFAULT)
        except ClaimError as error:
            if uuid not in self._left:
                log.warning("the time slice of %s stays for now: %s", uuid, error)
            self._note([*self._left, uuid])
        else:
            self._note([one for one in self._left if one != uuid])

    def finish(self, present: Collection[str], in_use: Collection[str]) -> None:
        """Puts back what could not be put back before, of GPUs that are there and have no claim with a slice of its
        own. Whatever hinders one hinders the others, so it ends with the first."""
        for uuid in self._left:
            if uuid in present and uuid not in in_use:
                self.put_back(uuid)
                if uuid in self._left:
                    return

    def _note(self, left: Sequence[str]) -> None:
        told = tuple(dict.fromkeys(left))
        if told == self._left:
            return
        self._left = told
        try:
            self._checkpoint.write(told)
        except CheckpointError as error:
            log.warning("a restart will forget which time slices to put back: %s", error)


def set_slice(nvidia_smi: Sequence[str], uuid: str, interval: int) -> None:
    """Raises ClaimError; NotSet where it is for sure what it was."""
    command = [*nvidia_smi, "compute-policy", "-i", uuid, f"--set-timeslice={interval}"]
    words = " ".join(command)
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, errors="replace", timeout=_PATIENCE_S)
    except FileNotFoundError:
        raise NotSet(f"timeSlicingConfig.interval needs {nvidia_smi[0]}, which is not there") from None
    except OSError as error:
        raise NotSet(f"timeSlicingConfig.interval: {words}: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise ClaimError(f"timeSlicingConfig.interval: {words} did not end in {_PATIENCE_S:g} s") from None
    except subprocess.CalledProcessError as error:
        said = (error.stdout + error.stderr).strip() or f"it ended with status {error.returncode} and said nothing"
        raise NotSet(f"timeSlicingConfig.interval: {words}: {said}") from None
