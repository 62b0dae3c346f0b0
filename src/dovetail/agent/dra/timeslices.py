# SPDX-License-Identifier: Apache-2.0
"""Time slices of GPUs: set for a claim, and put back when it ends.

Rules
- A slice that cannot be set fails the claim that requests it.
- A slice that cannot be put back does not block the GPU: it costs the next user some latency or throughput, and
  isolates nothing. It is recorded, also over restarts, and put back as soon as that works. NVML has no call for it, so
  nvidia-smi is run. Calls block.
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
    """The time slice is unchanged."""


class TimeSlices:
    """`set_slice` sets the slice of a GPU (uuid, nvidia-smi's number), and raises ClaimError. The GPUs whose slice has
    to be put back are kept at `checkpoint`. Raises CheckpointError."""

    def __init__(self, checkpoint: Path, set_slice: Set) -> None:
        self._checkpoint = CheckpointFile(checkpoint, tuple[str, ...])
        self._set = set_slice
        self._left: tuple[str, ...] = self._checkpoint.read() or ()

    @property
    def left(self) -> tuple[str, ...]:
        """The GPUs whose slice has to be put back."""
        return self._left

    def set(self, uuid: str, interval: int) -> None:
        """Set the slice of a GPU. Raises ClaimError; NotSet if the slice is certainly unchanged."""
        self._set(uuid, interval)
        self._note([one for one in self._left if one != uuid])

    def put_back(self, uuid: str) -> None:
        """Put the default slice back. Never raises; after a failure `finish` repeats it."""
        try:
            self._set(uuid, DEFAULT)
        except ClaimError as error:
            if uuid not in self._left:
                log.warning("the time slice of %s stays for now: %s", uuid, error)
            self._note([*self._left, uuid])
        else:
            self._note([one for one in self._left if one != uuid])

    def finish(self, present: Collection[str], in_use: Collection[str]) -> None:
        """Put back the remaining slices of GPUs that are present and have no claim with a slice of its own. Ends at the
        first failure: its cause affects the others, too."""
        for uuid in self._left:
            if uuid in present and uuid not in in_use:
                self.put_back(uuid)
                if uuid in self._left:
                    return

    def _note(self, left: Sequence[str]) -> None:
        unique = tuple(dict.fromkeys(left))
        if unique == self._left:
            return
        self._left = unique
        try:
            self._checkpoint.write(unique)
        except CheckpointError as error:
            log.warning("a restart will forget which time slices to put back: %s", error)


def set_slice(nvidia_smi: Sequence[str], uuid: str, interval: int) -> None:
    """Set the slice of a GPU by nvidia-smi. Raises ClaimError; NotSet if the slice is certainly unchanged."""
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
        output = (error.stdout + error.stderr).strip() or f"it ended with status {error.returncode} without output"
        raise NotSet(f"timeSlicingConfig.interval: {words}: {output}") from None
