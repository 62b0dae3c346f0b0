# SPDX-License-Identifier: Apache-2.0
"""One replica of an engine under a stream of requests: its queue, its batches, its steps.

Rules (continuous batching, as the roofline of a plan has it)
- A step computes one token of each running sequence, and of prompts as many tokens as the budget leaves. A prompt that
  is longer takes several steps. Prompts are computed in the order of their arrival.
- Of groups of ranks with sequences of their own, each computes prompts of its own within its part of the budget, and
  the others wait for the one that has most.
- A pipeline has as many batches under way as it has stages, each with a part of the sequences and a budget of its own.
  So a step, in which each sequence gets a token, goes through all stages, and a prompt does so whole: it takes no less
  time than on one stage after the other. Prompts fill one batch after the other; what is in a later one comes out of
  the pipeline so much later. vLLM schedules so: a prompt goes on in the next batch while its first part is under way.
- A request starts if there is a free sequence, and room for the tokens that it will hold; an engine that reserves the
  output needs room for all of it, others for half of it in the mean, as in a plan.
- Between two events (an arrival, the end of a prompt or of a sequence) all steps are equal, so they are taken at once.
- Preemptions for lack of cache are not simulated.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush

from msgspec import Struct

from dovetail.advice.serve.roofline import StepBatch, StepModel

_CONTEXT_STEP, _PROMPT_STEP = 256, 256
"""Times of steps are worked out for batches rounded to so many tokens."""


class ReplicaLimits(Struct, frozen=True):
    """What a replica can hold: `sequences` at a time, tokens of cache, and tokens of a step. `part` is the part of its
    output for which a request needs room, `computed` that of its prompt which is not in the cache of prefixes. The
    `budget` of tokens is that of one batch of all `groups` of ranks together, of each of which a pipeline has as many
    as `stages` under way."""

    sequences: int
    tokens: float
    budget: int
    part: float
    computed: float
    groups: int = 1
    stages: int = 1


class QueuedRequest(Struct, gc=False):
    """A request in a replica. `prompt` is what is left to compute of it; the times are those of its arrival in this
    stage, of its first token and of its end, in seconds; 0 until then. `late_s` is how much later than the first batch
    its own comes out of the pipeline: earlier where it began in the middle of a step."""

    number: int
    at_s: float
    input: int
    output: int
    prompt: float
    first_s: float = 0.0
    end_s: float = 0.0
    late_s: float = 0.0


class StepTimes:
    """The times of steps of a model, remembered."""

    def __init__(self, model: StepModel) -> None:
        self._model = model
        self._known: dict[tuple[int, int, int, int], float] = {}

    def seconds(self, sequences: int, context: float, prompt: float, seen: float) -> float:
        """Of a batch of these sequences and prompt tokens."""
        key = sequences, round(context / _CONTEXT_STEP), -(-int(prompt) // _PROMPT_STEP), round(seen / _CONTEXT_STEP)
        found = self._known.get(key)
        if found is None:
            tokens = min(prompt, key[2] * _PROMPT_STEP) if prompt else 0.0
            batch = StepBatch(sequences, key[1] * _CONTEXT_STEP, tokens, key[3] * _CONTEXT_STEP)
            found = self._known[key] = self._model.seconds(batch) if sequences or prompt else 0.0
        return found


class ReplicaQueue:
    """A replica that exists from `since_s` on. `ended` gets each request that has its last token; of prompts alone, in
    a replica for prefill, that is the first."""

    def __init__(
        self, times: StepTimes, limits: ReplicaLimits, since_s: float, ended: Callable[[QueuedRequest], None],
        prefill_only: bool = False,
    ) -> None:  # fmt: skip
        self._times, self._limits, self._ended, self._prefill_only = times, limits, ended, prefill_only
        self.since_s, self._now_s = since_s, since_s
        self._waiting: deque[QueuedRequest] = deque()
        self._prompts: deque[QueuedRequest] = deque()
        self._running: list[tuple[int, int, QueuedRequest]] = []
        """By the step with the last token."""
        self._begun: list[QueuedRequest] = []
        """Those of them whose prompt was computed elsewhere and that have no token yet."""
        self._taken_s = since_s
        """From when on the first stage took more, of the step that is over."""
        self._steps = 0
        self._held = 0.0
        self._context = 0.0
        """Sum of the mean contexts of running sequences."""

    @property
    def load(self) -> int:
        """Requests in it."""
        return len(self._waiting) + len(self._prompts) + len(self._running)

    @property
    def queued(self) -> int:
        """Requests that have not started."""
        return len(self._waiting)

    def add(self, request: QueuedRequest) -> None:
        """A request that arrives now: `advance` was called for its time."""
        self._waiting.append(request)

    def advance(self, to_s: float) -> None:
        """Compute until this time. The step that is under way then is completed."""
        while self._now_s < to_s:
            self._start()
            if not self._prompts and not self._running:
                self._now_s = to_s
                return
            if self._prompts:
                self._step_with_prompts()
            else:
                self._equal_steps(to_s)

    def _start(self) -> None:
        limits = self._limits
        while self._waiting:
            one = self._waiting[0]
            room = one.input + one.output * limits.part
            alone = not self._prompts and not self._running
            full = len(self._prompts) + len(self._running) >= limits.sequences or self._held + room > limits.tokens
            if full and not alone:
                return
            self._waiting.popleft()
            self._held += room
            one.prompt = 0.0 if one.prompt == 0 else max(1.0, one.input * limits.computed)
            if one.prompt:
                # In a pipeline it began when it came, or when the first stage had taken what came before.
                one.late_s = min(0.0, max(one.at_s, self._taken_s) - self._now_s)
                self._prompts.append(one)
            else:
                self._run(one)

    def _run(self, one: QueuedRequest) -> None:
        heappush(self._running, (self._steps + one.output, one.number, one))
        self._context += one.input + one.output / 2
        self._begun.append(one)

    def _step_with_prompts(self) -> None:
        sequences = len(self._running)
        groups, stages = self._limits.groups, self._limits.stages
        each = max(1.0, (self._limits.budget - sequences / stages) / groups)
        rooms = [each * stages] * groups
        taken = seen = 0.0
        done: list[tuple[QueuedRequest, int]] = []
        rest: list[QueuedRequest] = []
        while self._prompts and (room := max(rooms)) > 0:
            one = self._prompts.popleft()
            part, group = min(one.prompt, room), rooms.index(room)
            rooms[group] -= part
            seen += part * (one.input - one.prompt + part / 2)
            one.prompt -= part
            taken += part
            if one.prompt > 0:
                rest.append(one)
            else:
                # In which of the batches under way its last token is.
                done.append((one, max(0, -int(-(each * stages - rooms[group]) // each) - 1)))
        self._prompts.extendleft(reversed(rest))
        context = self._context / sequences if sequences else 0.0
        most = min(each, each * stages - min(rooms))
        took_s = self._times.seconds(sequences, context, most * groups * stages, seen / taken)
        batches = -int(-(each * stages - min(rooms)) // each)
        self._taken_s = self._now_s + took_s * min(batches, stages) / stages
        self._now_s += took_s
        self._steps += 1
        self._end_sequences()
        for one, batch in done:
            one.late_s += batch * took_s / stages
            one.first_s = self._now_s + one.late_s
            # The step that completes a prompt has its first token.
            if self._prefill_only or one.output <= 1:
                self._finish(one)
            else:
                heappush(self._running, (self._steps + one.output - 1, one.number, one))
                self._context += one.input + one.output / 2

    def _equal_steps(self, to_s: float) -> None:
        sequences = len(self._running)
        each_s = self._times.seconds(sequences, self._context / sequences, 0.0, 0.0)
        until_end = self._running[0][0] - self._steps
        until_time = max(1, -int(-(to_s - self._now_s) // each_s))
        number = max(1, min(until_end, until_time))
        for one in self._begun:
            one.first_s = self._now_s + each_s
        self._begun.clear()
        self._now_s += number * each_s
        self._taken_s = self._now_s - each_s * (1 - 1 / self._limits.stages)
        self._steps += number
        self._end_sequences()

    def _end_sequences(self) -> None:
        while self._running and self._running[0][0] <= self._steps:
            _, _, one = heappop(self._running)
            self._context -= one.input + one.output / 2
            self._finish(one)
        if not self._running:
            self._context = 0.0

    def _finish(self, one: QueuedRequest) -> None:
        self._held -= one.input + one.output * self._limits.part
        one.end_s = self._now_s + one.late_s
        self._ended(one)
