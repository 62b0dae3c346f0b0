# SPDX-License-Identifier: Apache-2.0
"""Every record of the core comes back from its bytes as it was, and what is no such record is named."""

from __future__ import annotations

from functools import cache
from typing import Any, get_args, get_origin, get_type_hints

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.core.bargaining.record import Bargaining
from dovetail.core.checkpoint import Checkpoint
from dovetail.core.decisions import Decision
from dovetail.core.devices.kubelet.inventory import Cpu, DevicePool, Inventory, ManagedDevice, MemoryPool
from dovetail.core.devices.kubelet.pods import Asked, ManagedContainer, ManagedKind
from dovetail.core.devices.kubelet.pods import ManagedPod as ManagedPod
from dovetail.core.devices.layout import BOARD, SYS, Layout, Nic
from dovetail.core.devices.mig.geometry import Geometry
from dovetail.core.devices.mig.instances import states
from dovetail.core.devices.mig.products import GEOMETRIES
from dovetail.core.devices.mig.static import Card
from dovetail.core.dra.types import Value, Version
from dovetail.core.events import Event, PodChanged, PodRemoved
from dovetail.core.json_text import JsonError
from dovetail.core.model import GPU, Pod, Request, Toleration
from dovetail.core.placing.expected_fill import ExpectedFill
from dovetail.core.policy import Policy
from dovetail.core.reasons import Reason, Refusal, When
from dovetail.recording.coding import Coder
from tests.breadth import BREADTH

EVENTS = Coder[tuple[Event, ...]](tuple[Event, ...])
DECISIONS = Coder[tuple[Decision, ...]](tuple[Decision, ...])
POD = Pod("u", "ns", "p", Request(((GPU, 1),), tolerations=(Toleration("k", "Exists"),)))

# The core counts in 64 bits.
st.register_type_strategy(int, st.integers(-(2**63), 2**63 - 1))
st.register_type_strategy(
    Layout,
    st.builds(
        lambda count, links, nics: Layout(
            numa=(0,) * count,
            pcie=tuple(tuple(BOARD if i == j else SYS for j in range(count)) for i in range(count)),
            nvlinks=tuple(tuple(0 if i == j else links for j in range(count)) for i in range(count)),
            nics=tuple(Nic((SYS,) * count) for _ in range(nics)),
        ),
        st.integers(1, 4), st.integers(0, 12), st.integers(0, 2),
    ),
)  # fmt: skip
st.register_type_strategy(Geometry, st.sampled_from(GEOMETRIES))
st.register_type_strategy(
    Card,
    st.builds(
        lambda gpu, geometry, chosen, assumed: Card(gpu, geometry, sorted(states(geometry).classes)[chosen], assumed),
        st.integers(0, 7), st.sampled_from(GEOMETRIES[:2]), st.integers(0, 75), st.booleans(),
    ),
)  # fmt: skip
st.register_type_strategy(
    Inventory,
    st.builds(
        lambda policy, options, count, healthy: Inventory(
            numa=(0, 1),
            topology_policy=policy,
            cpu_options=options,
            cpus=tuple(Cpu(i, i - i % 2, 0, 0, 0) for i in range(count)),
            reserved_cpus=frozenset(range(min(1, count))),
            memory=(MemoryPool(1, "memory", 2**40, 2**30),),
            devices=(DevicePool(GPU, (ManagedDevice("0", (0,), healthy), ManagedDevice("1")), prefers=healthy),),
        ),
        st.sampled_from([None, "none", "restricted"]),
        st.frozensets(st.just("full-pcpus-only")),
        st.integers(0, 4),
        st.booleans(),
    ),
)
st.register_type_strategy(
    ManagedPod,
    st.builds(
        lambda kind, amounts, whole: ManagedPod(
            (ManagedContainer(amounts, kind=kind), ManagedContainer(limits=amounts)), whole
        ),
        st.sampled_from(ManagedKind),
        st.just((("cpu", 2000),)),
        st.sampled_from([None, Asked((("cpu", 1),))]),
    ),
)


@pytest.mark.slow
@given(st.lists(st.from_type(Event), max_size=3).map(tuple))  # type: ignore[arg-type]
def test_events_come_back(events: tuple[Event, ...]) -> None:
    data = EVENTS.encode(events)
    assert EVENTS.decode(data) == events
    assert EVENTS.encode(EVENTS.decode(data)) == data


@pytest.mark.slow
@given(st.lists(st.from_type(Decision), max_size=3).map(tuple))  # type: ignore[arg-type]
def test_decisions_come_back(decisions: tuple[Decision, ...]) -> None:
    data = DECISIONS.encode(decisions)
    assert DECISIONS.decode(data) == decisions
    assert DECISIONS.encode(DECISIONS.decode(data)) == data


CHECKPOINTS = Coder[Checkpoint](Checkpoint)


TYPES = get_type_hints(Checkpoint)


TABLES = get_type_hints(Bargaining)


@cache
def few(of: Any) -> st.SearchStrategy[Any]:
    """Values of a type; of a tuple of any length two items at most, as more take long to draw and show no more. Of the
    tables of leases one has entries."""
    if of == TYPES["bargaining"]:
        return st.sampled_from(sorted(TABLES)).flatmap(
            lambda name: few(TABLES[name]).map(lambda found: Bargaining(**{name: found}))
        )
    if get_origin(of) is tuple and get_args(of)[1:] == (...,):
        return st.lists(st.from_type(get_args(of)[0]), max_size=2).map(tuple)
    return st.from_type(of)


@pytest.mark.slow
@pytest.mark.parametrize("field", TYPES)
@settings(max_examples=10 * BREADTH)
@given(data=st.data())
def test_checkpoints_come_back(field: str, data: st.DataObject) -> None:
    # Not by `builds`: for each example it would read the types of all fields anew.
    checkpoint = Checkpoint(**{"steps": 7, "now_ms": 9, field: data.draw(few(TYPES[field]))})
    assert CHECKPOINTS.decode(CHECKPOINTS.encode(checkpoint)) == checkpoint


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_comes_back(reason: Reason) -> None:
    coder = Coder[Refusal](Refusal)
    refusal = Refusal(reason, When.NOT_YET)
    assert coder.decode(coder.encode(refusal)) == refusal
    assert reason.code.encode() in coder.encode(refusal)


def test_equal_requests_are_one_object_after_reading() -> None:
    data = EVENTS.encode((PodChanged(POD), PodChanged(Pod("v", "ns", "q", Request(POD.request.resources)))) * 2)
    pods = [event.pod for event in EVENTS.decode(data) if isinstance(event, PodChanged)]
    assert pods[0].request is pods[2].request
    assert pods[1].request is pods[3].request
    assert pods[0].request != pods[1].request
    assert hash(pods[0].request) == hash(POD.request)


def test_what_is_at_its_default_takes_no_room() -> None:
    assert EVENTS.encode((PodChanged(Pod("u", "ns", "p", Request())),)) == (
        b'[{"kind":"PodChanged","pod":{"uid":"u","namespace":"ns","name":"p","request":{}}}]'
    )


def test_a_policy_is_written_whole_as_another_version_may_have_other_defaults() -> None:
    coder = Coder[Policy](Policy)
    written = msgspec.json.decode(coder.encode(Policy()))
    assert written.keys() == set(Policy.__struct_fields__)
    policy = Policy(fabric=("a",), search_limit=3)
    assert coder.decode(coder.encode(policy)) == policy


def test_a_choice_that_is_code_of_somebody_else_is_refused() -> None:
    class Mine:
        pass

    with pytest.raises(TypeError, match="Mine cannot be recorded"):
        Coder[Policy](Policy).encode(Policy(scoring=Mine()))  # type: ignore[arg-type]


def test_a_choice_is_written_by_its_name_and_only_as_it_comes() -> None:
    coder = Coder[Policy](Policy)
    policy = Policy(scoring=ExpectedFill())
    assert coder.decode(coder.encode(policy)) == policy != Policy()
    with pytest.raises(TypeError, match="ExpectedFill cannot be recorded"):
        coder.encode(Policy(scoring=ExpectedFill(learn_from=1)))


def test_a_type_that_would_be_written_wrongly_is_refused_at_once() -> None:
    with pytest.raises(TypeError, match="can stand in tuples only"):
        Coder[Any](dict[str, Request])


@pytest.mark.parametrize("value", [True, 1, "1.2", Version("1.2"), (1, 2), (Version("1"), Version("2")), ()])
def test_values_of_several_types_come_back_as_the_type_they_were(value: Value) -> None:
    coder = Coder[tuple[tuple[str, Value], ...]](tuple[tuple[str, Value], ...])
    found = coder.decode(coder.encode((("name", value),)))
    assert (found, type(found[0][1])) == ((("name", value),), type(value))


@given(st.from_type(Layout))
def test_layouts_come_back_as_one_object(layout: Layout) -> None:
    coder = Coder[Layout](Layout)
    assert coder.decode(coder.encode(layout)) == layout
    assert coder.decode(coder.encode(layout)) is coder.decode(coder.encode(layout))


def test_values_that_a_record_itself_refuses_are_an_error_of_the_input() -> None:
    with pytest.raises(JsonError, match=r"nvlinks: must have a row and a column for each of 1 GPUs"):
        Coder[Layout](Layout).decode(b'{"numa":[0],"pcie":[[0]],"nvlinks":[]}')


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b'[{"kind":"PodGone","uid":"u"}]', r"Invalid value 'PodGone' - at `\$\[0\]\.kind`"),
        (b'[{"uid":"u"}]', r"missing required field `kind` - at `\$\[0\]`"),
        (b'[{"kind":"PodRemoved"}]', r"missing required field `uid` - at `\$\[0\]`"),
        (b'[{"kind":"PodRemoved","uid":"u","why":1}]', r"unknown field `why` - at `\$\[0\]`"),
        (
            EVENTS.encode((PodRemoved("u"), PodChanged(POD))).replace(b'gpu",1', b'gpu","1"'),
            r"Expected `int`, got `str` - at `\$\[1\]\.pod\.request\.resources\[0\]\[1\]`",
        ),
        (
            EVENTS.encode((PodChanged(POD),)).replace(b"Exists", b"exists"),
            r"'exists' - at `\$\[0\]\.pod\.request\.toler",
        ),
        (b'[{"kind":"PodRemoved","uid":"\xff"}]', "utf-8"),
        (b"[", "truncated"),
    ],
)
def test_what_is_no_such_record_is_named(data: bytes, error: str) -> None:
    with pytest.raises(JsonError, match=error):
        EVENTS.decode(data)
