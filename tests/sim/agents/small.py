# SPDX-License-Identifier: Apache-2.0
"""Small worlds of agents, and a policy that is watched."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from dovetail.sim.agents.outcome import AgentOutcome
from dovetail.sim.agents.protocol import AgentReturns, Grants, Message, Ruling, SharingPolicy, TakenBack
from dovetail.sim.agents.tasks import AgentTask, AgentWorkload, BurstyAgent


def small(*tasks: AgentTask, nodes: tuple[int, ...] = (4,), agents: int = 2, until_ms: int = 100_000) -> AgentWorkload:
    names = tuple(BurstyAgent(f"agent-{i}") for i in range(agents))
    ordered = tuple(sorted(tasks, key=lambda task: task.at_ms))
    return AgentWorkload("small", nodes, names, ordered, until_ms)


def gang(agent: int, at_ms: int, gpus: int, ms: int, checkpoint_ms: int = 0, restart_ms: int = 0) -> AgentTask:
    """A gang that takes so long on its GPUs."""
    return AgentTask(agent, at_ms, gpus, gpus, gpus * ms, checkpoint_ms, restart_ms)


class Watched:
    """A policy, and the books of its leases as they follow from what is sent: no device is in two."""

    def __init__(self, policy: SharingPolicy) -> None:
        self.policy = policy
        self.lease_of: dict[int, int] = {}
        self.most_held = 0

    def wake_ms(self) -> int | None:
        return self.policy.wake_ms()

    def step(self, now_ms: int, messages: Sequence[Message]) -> list[Ruling]:
        for message in messages:
            if isinstance(message, AgentReturns | TakenBack):
                for device in message.devices:
                    assert self.lease_of.pop(device) == message.lease
        rulings = self.policy.step(now_ms, messages)
        for ruling in rulings:
            if isinstance(ruling, Grants):
                for device in ruling.devices:
                    assert device not in self.lease_of
                    self.lease_of[device] = ruling.lease
        self.most_held = max(self.most_held, len(self.lease_of))
        return rulings


class Scripted:
    """A policy that sends what it is made with, by the kind of the message, and keeps what it hears. None: nothing."""

    def __init__(self, *answers: tuple[type, Ruling | None], wake_ms: int | None = None) -> None:
        self.answers = list(answers)
        self.heard: list[tuple[int, Message]] = []
        self._wake_ms = wake_ms

    def wake_ms(self) -> int | None:
        return self._wake_ms

    def step(self, now_ms: int, messages: Sequence[Message]) -> list[Ruling]:
        self.heard += [(now_ms, message) for message in messages]
        rulings: list[Ruling] = []
        for message in messages:
            kinds = [kind for kind, _ in self.answers]
            if type(message) in kinds:
                ruling = self.answers.pop(kinds.index(type(message)))[1]
                rulings += [] if ruling is None else [ruling]
        return rulings


def hears(policy: Scripted, kind: type) -> list[tuple[int, Message]]:
    return [(at_ms, message) for at_ms, message in policy.heard if isinstance(message, kind)]


TASKS = st.lists(
    st.builds(
        lambda agent, at_s, least, more, work_s, checkpoint_s, restart_s, node: AgentTask(
            *(agent, at_s * 1000, least, least if node else least + more, work_s * 1000 + 7),
            *(checkpoint_s * 1000, restart_s * 1000, node),
        ),
        st.integers(0, 2),
        st.integers(0, 60),
        st.integers(1, 2),
        st.integers(0, 4),
        st.integers(1, 400),
        st.sampled_from((0, 3, 70)),
        st.integers(0, 20),
        st.booleans(),
    ),
    min_size=1,
    max_size=12,
)
"""Up to 12 tasks of three agents, for nodes of 4 and 2 GPUs."""


def check_accounts(outcome: AgentOutcome) -> None:
    """All work was done once, and all GPU time that was held is progress, lost, overhead or idle."""
    assert all(run.ended_ms is not None and run.saved == run.task.work_gpu_ms for run in outcome.runs)
    done, lost = sum(run.saved for run in outcome.runs), sum(run.lost for run in outcome.runs)
    overhead, idle = sum(run.overhead for run in outcome.runs), sum(use.idle for use in outcome.uses)
    assert sum(use.held for use in outcome.uses) == done + lost + overhead + idle
    assert sum(use.held for use in outcome.uses) <= outcome.workload.capacity * outcome.ended_ms
    assert all(use.uses == 0 for use in outcome.uses)
