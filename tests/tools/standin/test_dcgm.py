# SPDX-License-Identifier: Apache-2.0
"""A client of a host engine: the stand-in libdcgm.so.4 through ctypes, with the structures of dcgm_structs.h."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator
from ctypes import Structure, Union, c_char, c_double, c_int, c_int64, c_longlong, c_uint, c_ushort, c_void_p
from typing import Any

import pytest

from tools.standin import Standin
from tools.standin.fixture import MakeStandin

SM, TENSOR, DRAM, PCIE_TX, UUID, INDEX = 1002, 1004, 1005, 1009, 54, 52
GPU, GPU_I = 1, 4
EMPTY, ALL_GPUS = 1, 0x7FFFFFFF
BADPARAM, VER_MISMATCH, UNKNOWN_FIELD, NO_DATA, NOT_WATCHED = -1, -12, -13, -14, -16
NOT_SUPPORTED, UNINITIALIZED, NOT_VALID, DUPLICATE, REQUIRES_ROOT, TOO_SMALL = -6, -10, -21, -26, -29, -31
BLANK, INT_BLANK = 2.0**47, 0x7FFFFFFFFFFFFFF0
LIVE = 1


class Pair(Structure):
    _fields_ = [("group", c_int), ("id", c_uint)]


class Params(Structure):
    _fields_ = [("version", c_uint), ("persist", c_uint), ("timeout_ms", c_uint), ("unix_socket", c_uint)]


class Number(Union):
    _fields_ = [("natural", c_int64), ("real", c_double), ("text", c_char * 256), ("blob", c_char * 4096)]


class Value(Structure):
    _fields_ = [
        ("version", c_uint), ("group", c_int), ("entity", c_uint), ("field", c_ushort), ("type", c_ushort),
        ("status", c_int), ("unused", c_uint), ("at_us", c_int64), ("value", Number),
    ]  # fmt: skip


class OldValue(Structure):
    _fields_ = [
        ("version", c_uint), ("field", c_ushort), ("type", c_ushort), ("status", c_int), ("at_us", c_int64),
        ("value", Number),
    ]  # fmt: skip


class Entry(Structure):
    _fields_ = [
        ("entity", Pair), ("parent", Pair), ("uuid", c_char * 128), ("index", c_uint), ("instance", c_uint),
        ("compute", c_uint), ("profile", c_uint), ("slices", c_uint),
    ]  # fmt: skip


class Hierarchy(Structure):
    _fields_ = [("version", c_uint), ("count", c_uint), ("entry", Entry * (32 * 14))]


class Failed(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class Client:
    """The calls that a reader of profiling fields makes."""

    def __init__(self, machine: Standin, address: str = "localhost") -> None:
        self.library = ctypes.CDLL(str(machine.dcgm))
        assert self.library.dcgmInit() == 0
        self.handle = c_void_p()
        params = Params(ctypes.sizeof(Params) | 2 << 24, 0, 1000, 0)
        self.call("dcgmConnect_v2", address.encode(), ctypes.byref(params), ctypes.byref(self.handle), bare=True)

    def call(self, name: str, *arguments: Any, bare: bool = False) -> None:
        code = getattr(self.library, name)(*(() if bare else (self.handle,)), *arguments)
        if code:
            raise Failed(code)

    def watch(self, *fields: int, group: int | c_void_p = ALL_GPUS, name: str = "exporter") -> None:
        ids, created = (c_ushort * len(fields))(*fields), c_void_p()
        self.call("dcgmFieldGroupCreate", len(fields), ids, name.encode(), ctypes.byref(created))
        where = group if isinstance(group, c_void_p) else c_void_p(group)
        self.call("dcgmWatchFields", where, created, c_longlong(1_000_000), c_double(5.0), 2)

    def update(self) -> None:
        self.call("dcgmUpdateAllFields", 1)

    def latest(self, entities: list[tuple[int, int]], *fields: int, flags: int = 0) -> list[Value]:
        out = (Value * (len(entities) * len(fields)))()
        pairs, ids = (Pair * len(entities))(*(Pair(*each) for each in entities)), (c_ushort * len(fields))(*fields)
        self.call("dcgmEntitiesGetLatestValues", pairs, len(entities), ids, len(fields), flags, out)
        assert {each.version for each in out} == {ctypes.sizeof(Value) | 2 << 24}
        return list(out)


@pytest.fixture
def a100(standin: MakeStandin) -> Standin:
    machine = standin("dgx-a100")
    machine.stop_clock()
    machine.start_engine()
    return machine


@pytest.fixture
def client(a100: Standin) -> Iterator[Client]:
    made = Client(a100)
    yield made
    made.library.dcgmShutdown()


def refused(client: Client, name: str, *arguments: Any) -> int:
    with pytest.raises(Failed) as failed:
        client.call(name, *arguments)
    return failed.value.code


def test_profiling_fields_are_means_between_updates(a100: Standin, client: Client) -> None:
    a100.load(2, sm=0.8, tensor=0.5, dram=0.3, pcie_tx_mbps=4)
    client.watch(SM, TENSOR, PCIE_TX)
    (first,) = client.latest([(GPU, 2)], SM)
    assert (first.status, first.value.real) == (NO_DATA, BLANK)
    a100.advance(1)
    a100.load(2, sm=0.4, pcie_tx_mbps=2)
    a100.advance(1)
    client.update()
    sm, tensor, pcie, dram = client.latest([(GPU, 2)], SM, TENSOR, PCIE_TX, DRAM)
    assert (sm.status, chr(sm.type), round(sm.value.real, 9)) == (0, "d", 0.6)
    assert round(tensor.value.real, 9) == 0.25
    assert (chr(pcie.type), pcie.value.natural) == ("i", 3 << 20)
    assert dram.status == NOT_WATCHED
    # Within the interval of the watch the value stays; the engine then updates it by itself.
    a100.advance(0.5)
    assert round(client.latest([(GPU, 2)], SM)[0].value.real, 9) == 0.6
    a100.advance(0.5)
    assert round(client.latest([(GPU, 2)], SM)[0].value.real, 9) == 0.4
    old = (OldValue * 1)()
    client.call("dcgmEntityGetLatestValues", GPU, 2, (c_ushort * 1)(SM), 1, old)
    assert (old[0].version, round(old[0].value.real, 9)) == (ctypes.sizeof(OldValue) | 1 << 24, 0.4)


def test_entities_are_the_gpus_and_their_instances(a100: Standin, client: Client) -> None:
    ids, count = (c_uint * 32)(), c_int()
    client.call("dcgmGetAllDevices", ids, ctypes.byref(count))
    assert list(ids[: count.value]) == list(range(8))
    uuid, index = client.latest([(GPU, 3)], UUID, INDEX, flags=LIVE)
    assert (uuid.value.text.decode(), index.value.natural) == (a100.description.gpus[3].uuid, 3)
    a100.divide(1, [("3g.20gb", 0), ("3g.20gb", 4)])
    left, right = (part.gi for part in a100.parts(1))
    hierarchy = Hierarchy(ctypes.sizeof(Hierarchy) | 2 << 24)
    client.call("dcgmGetGpuInstanceHierarchy", ctypes.byref(hierarchy))
    entries = hierarchy.entry[: hierarchy.count]
    assert [(entry.parent.id, entry.instance) for entry in entries] == [(1, left), (1, right)]
    assert {entry.uuid.decode() for entry in entries} == {a100.description.gpus[1].uuid}
    group = c_void_p()
    client.call("dcgmGroupCreate", EMPTY, b"instances", ctypes.byref(group))
    for entry in entries:
        client.call("dcgmGroupAddEntity", group, entry.entity.group, entry.entity.id)
    assert refused(client, "dcgmGroupAddEntity", group, GPU_I, entries[0].entity.id) == BADPARAM
    client.watch(SM, PCIE_TX, group=group)
    client.update()
    a100.load(1, gi=left, sm=0.75)
    a100.advance(2)
    client.update()
    values = client.latest([(GPU_I, entry.entity.id) for entry in entries], SM)
    assert [round(value.value.real, 9) for value in values] == [0.75, 0]
    assert client.latest([(GPU_I, entries[0].entity.id)], PCIE_TX)[0].value.natural >= INT_BLANK
    count = c_int(1)
    assert refused(client, "dcgmGetEntityGroupEntities", GPU_I, ids, ctypes.byref(count), 0) == TOO_SMALL
    assert count.value == 2


def test_only_a_running_engine_answers(a100: Standin, client: Client) -> None:
    for address, unix_socket in (("10.0.0.1", 0), ("localhost:5556", 0), ("/run/dcgm.sock", 1)):
        params, handle = Params(ctypes.sizeof(Params) | 2 << 24, 0, 0, unix_socket), c_void_p()
        code = client.library.dcgmConnect_v2(address.encode(), ctypes.byref(params), ctypes.byref(handle))
        assert code == NOT_VALID
    params = Params(ctypes.sizeof(Params) | 3 << 24)
    assert client.library.dcgmConnect_v2(b"localhost", ctypes.byref(params), ctypes.byref(handle)) == VER_MISMATCH
    a100.stop_engine()
    assert refused(client, "dcgmUpdateAllFields", 1) == NOT_VALID
    a100.start_engine(port=5556)
    assert refused(client, "dcgmUpdateAllFields", 1) == NOT_VALID
    again = Client(a100, "127.0.0.1:5556")
    again.update()
    again.library.dcgmShutdown()
    assert refused(again, "dcgmUpdateAllFields", 1) == UNINITIALIZED


def test_what_a_client_may_not_do_is_refused(a100: Standin, client: Client) -> None:
    bad = c_void_p()
    assert refused(client, "dcgmFieldGroupCreate", 1, (c_ushort * 1)(999), b"x", ctypes.byref(bad)) == UNKNOWN_FIELD
    client.watch(SM, name="one")
    assert refused(client, "dcgmFieldGroupCreate", 1, (c_ushort * 1)(SM), b"one", ctypes.byref(bad)) == DUPLICATE
    count = c_int(0)
    assert refused(client, "dcgmGetEntityGroupEntities", 3, None, ctypes.byref(count), 0) == NOT_SUPPORTED
    a100.start_engine(privileged=False)
    other = Client(a100)
    with pytest.raises(Failed) as failed:
        other.watch(SM, name="two")
    assert failed.value.code == REQUIRES_ROOT
    other.watch(INDEX, name="three")
    text = other.library.errorString
    text.restype = ctypes.c_char_p
    assert text(REQUIRES_ROOT) == b"The host engine must run as root"


def test_values_can_be_blank_wrong_or_of_a_lost_gpu(a100: Standin, client: Client) -> None:
    client.watch(SM, TENSOR)
    client.update()
    a100.advance(1)
    client.update()
    a100.profiling(0, SM)
    a100.profiling(0, TENSOR, code=NO_DATA)
    sm, tensor = client.latest([(GPU, 0)], SM, TENSOR)
    assert math.isnan(sm.value.real)
    assert tensor.status == NO_DATA
    a100.fail("dcgmUpdateAllFields", -3)
    assert refused(client, "dcgmUpdateAllFields", 1) == -3
    a100.clear()
    assert client.latest([(GPU, 0)], SM)[0].value.real == 0
    a100.lose(0)
    assert client.latest([(GPU, 0)], SM)[0].status == -18
