# SPDX-License-Identifier: Apache-2.0
"""A pipeline, batch by batch and stage by stage: what a replica with pipeline parallelism does, from first principles.

A batch is made when the first stage is free and fewer are under way than there are stages: one token of each sequence
that is in none, and prompts up to the budget, first come first. It passes the stages one after the other, each of which
has one batch at a time. What comes out of the last stage has its tokens.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from msgspec import Struct

Arrival = tuple[float, int, int]
"""When (s), tokens of the prompt, tokens of output."""


class _Request(Struct, eq=False):
    number: int
    prompt: int
    output: int
    first_s: float = 0.0
    tokens: int = 0


def first_tokens(
    arrivals: Sequence[Arrival], stages: int, budget: int, stage_s: Callable[[int, int], float]
) -> tuple[list[float], list[float]]:
    """When each request has its first and its last token. `stage_s` is the time of a stage for so many sequences and
    tokens of prompts."""
    coming, waiting, idle = deque(enumerate(arrivals)), deque[_Request](), deque[_Request]()
    free_s, under_way = [0.0] * stages, deque[tuple[float, list[_Request]]]()
    first, last = [0.0] * len(arrivals), [0.0] * len(arrivals)
    now_s = 0.0
    while coming or waiting or idle or under_way:
        while coming and coming[0][1][0] <= now_s:
            number, (_, prompt, output) = coming.popleft()
            waiting.append(_Request(number, prompt, output))
        while under_way and under_way[0][0] <= now_s:
            out_s, members = under_way.popleft()
            for one in members:
                one.tokens += 1
                first[one.number] = first[one.number] or out_s
                last[one.number] = out_s
                if one.tokens < one.output:
                    idle.append(one)
        if now_s >= free_s[0] and len(under_way) < stages and (waiting or idle):
            members = list(idle)
            idle.clear()
            sequences, room, taken = len(members), budget - len(members), 0
            while waiting and room > 0:
                part = min(waiting[0].prompt, room)
                waiting[0].prompt -= part
                room, taken = room - part, taken + part
                if waiting[0].prompt == 0:
                    members.append(waiting.popleft())
            spent_s, at_s = stage_s(sequences, taken), now_s
            for i in range(stages):
                at_s = free_s[i] = max(at_s, free_s[i]) + spent_s
            under_way.append((at_s, members))
            continue
        next_s = [coming[0][1][0]] if coming else []
        next_s += [under_way[0][0]] if under_way else []
        next_s += [free_s[0]] if free_s[0] > now_s and (waiting or idle) and len(under_way) < stages else []
        now_s = min(next_s, default=now_s)
    return first, last
