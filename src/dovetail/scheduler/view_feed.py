# SPDX-License-Identifier: Apache-2.0
"""The calls of the core, and the objects that views show, sent to the process that answers views. The scheduler never
waits for it.

Rules: a call is only appended to a queue; a thread encodes and sends. A process that does not keep up is cut off: its
socket is closed, so that it ends, and the next one begins with all objects and a checkpoint.
"""

from __future__ import annotations

import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from dovetail.core.checkpoint import Checkpoint
from dovetail.core.policy import Policy
from dovetail.kube.api.changes import Change
from dovetail.kube.api.resources import Resource
from dovetail.kube.translate.read_notes import ReadNotes
from dovetail.kube.translate.reported import RESOURCES, batch_of, notes_batch, of_interest
from dovetail.recording.calls import CoreCall
from dovetail.recording.format import raised_as
from dovetail.recording.stream import REPORTED, begun, called, framed, renewed

MOST_CALLS = 5_000
MOST_EVENTS = 200_000
"""The most calls, and events in them, that wait to be sent: some seconds of a busy scheduler."""
_NOTED = ("Node ", "Pod ")
"""The objects of which notes are shown."""
TOGETHER_S = 0.02
"""Calls wait so long for those that follow."""
_MOST_TOGETHER = 100
STALLED_S = 10.0
"""A process that takes no byte for so long does not keep up."""


class ViewFeed:
    """An observer of the calls. Without a process it takes none."""

    def __init__(self, policy: Policy, scheduler_name: str = "dovetail") -> None:
        self._policy = policy
        self._scheduler_name = scheduler_name
        self._channel: _Channel | None = None
        self._begins = self._begun = False

    @property
    def due(self) -> bool:
        """Whether a process waits for a checkpoint."""
        return self._begins

    def connect(self, process: socket.socket, cut_off: Callable[[str], object]) -> None:
        """Send to this process: changes of objects from now on, and calls once it was begun. `cut_off` is called once
        with the reason, from any thread, if it is cut off."""
        self.disconnect()
        self._channel = _Channel(process, cut_off)

    def want_checkpoint(self) -> None:
        """All objects are sent: send the calls from the next checkpoint on."""
        self._begins = self._channel is not None

    def disconnect(self) -> None:
        """Send no more."""
        channel, self._channel = self._channel, None
        self._begins = self._begun = False
        if channel is not None:
            channel.close()

    def report(self, resource: Resource, changes: Iterable[Change[Any]]) -> None:
        """Objects have changed."""
        if self._channel is None or resource not in RESOURCES:
            return
        if found := of_interest(resource, changes, self._scheduler_name):
            self._channel.put(lambda: framed(REPORTED, batch_of(resource, found)), len(found))

    def report_notes(self, notes: Iterable[tuple[str, ReadNotes]]) -> None:
        """What is noted of these objects has changed, or is all that is noted."""
        if self._channel is not None and (found := [one for one in notes if one[0].startswith(_NOTED)]):
            self._channel.put(lambda: framed(REPORTED, notes_batch(found)), len(found))

    def begin(self, checkpoint: Checkpoint) -> None:
        if self._channel is None or not (self._begins or self._begun):
            return
        begins, self._begins, self._begun = self._begins, False, True
        # A copy that is equal makes the same checkpoint by itself.
        self._channel.put(lambda: begun(self._policy, checkpoint) if begins else renewed())

    def cannot_begin(self, why: str) -> None:
        if self._channel is not None:
            self._begins = False
            self._channel.cut(why)

    def observe(self, call: CoreCall) -> None:
        if self._channel is not None and self._begun and not self._begins:
            line = call.line
            self._channel.put(lambda: called(call), len(line.events) + len(line.applied))


class _Channel:
    """The queue to one process, and its thread."""

    def __init__(self, process: socket.socket, cut_off: Callable[[str], object]) -> None:
        self._socket = process
        self._cut_off = cut_off
        self._waiting: deque[tuple[Callable[[], bytes], int]] = deque()
        self._put_events = self._sent_events = 0
        self._open = True
        self._ending = threading.Lock()
        self._news = threading.Event()
        self._socket.settimeout(STALLED_S)
        threading.Thread(target=self._work, name="views", daemon=True).start()

    def put(self, encode: Callable[[], bytes], events: int = 0) -> None:
        if not self._open:
            return
        self._put_events += events
        self._waiting.append((encode, events))
        self._news.set()
        if len(self._waiting) > MOST_CALLS or self._put_events - self._sent_events > MOST_EVENTS:
            self.cut(f"it does not keep up: {len(self._waiting)} calls wait")

    def cut(self, why: str) -> None:
        if self.close():
            self._cut_off(why)

    def close(self) -> bool:
        """Close it; False if it was closed before."""
        with self._ending:
            if not self._open:
                return False
            self._open = False
        self._waiting.clear()
        self._news.set()
        # Ends a write that is under way.
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        return True

    def _work(self) -> None:
        try:
            while self._open:
                self._news.wait()
                # One bind is several calls: both processes wake up once for all of them.
                time.sleep(TOGETHER_S)
                self._news.clear()
                while self._open and self._waiting:
                    taken = [self._waiting.popleft() for _ in range(min(len(self._waiting), _MOST_TOGETHER))]
                    self._socket.sendall(b"".join(encode() for encode, _ in taken))
                    self._sent_events += sum(events for _, events in taken)
        except OSError as error:
            self.cut(f"it cannot be written to: {error}")
        except IndexError:
            pass  # It was closed, and the queue with it.
        except Exception as error:
            # A bug here must not end the scheduler.
            self.cut(raised_as(error))
        finally:
            self._socket.close()
