# SPDX-License-Identifier: Apache-2.0
"""Encode records of the core as JSON and decode them, from their type hints alone. A new record or field needs no code
here.

Each record is one JSON object. Fields at their default are omitted. A record of a union (events, decisions) carries its
class name in `kind`. An enum is written as its `code`, or else its value. Sets are sorted. Equal records therefore have
equal bytes. The decoder checks each field: an unknown field, kind or type is an error that names the path. A choice
that is a class without data is written as its name; an instance with parameters is an error.

Each record class gets a second Struct with the same fields, which msgspec encodes and decodes. Equal requests,
descriptions of work, claim specs, layouts and inventories are one shared object after decoding, as in a cluster, and
are converted once.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from enum import Enum
from functools import cache
from operator import attrgetter
from typing import Any, Generic, Literal, NamedTuple, TypeVar, Union, get_args, get_origin

import msgspec
from msgspec import structs

from dovetail.core.bounded_cache import Remembered
from dovetail.core.devices.kubelet.inventory import Inventory
from dovetail.core.devices.layout import Layout
from dovetail.core.devices.mig.geometry import Geometry
from dovetail.core.devices.mig.products import GEOMETRIES
from dovetail.core.dra.types import ClaimSpec
from dovetail.core.json_text import JsonError, decode_json_by
from dovetail.core.model import Request, Work
from dovetail.core.placing.expected_fill import ExpectedFill
from dovetail.core.placing.scores import Scoring, Tightest
from dovetail.core.policy import Policy

T = TypeVar("T")
Convert = Callable[[Any], Any]
_SHARED = {Request: 16384, Work: 4096, ClaimSpec: 4096, Layout: 16384, Inventory: 16384}
"""Record classes with many equal instances: KiB of distinct instances to cache for each."""
_WHOLE = {Policy}
"""Records whose fields are all written, because the defaults may differ between versions."""
_NAMED = {Scoring: {one.__name__: one for one in (Tightest, ExpectedFill)}}
"""Choices that are classes without data, by the name that is written."""
_KEYED = {Geometry: {geometry.key: geometry for geometry in GEOMETRIES}}
"""Records of a closed table, by the key that is written."""
_encoder = msgspec.json.Encoder(order="deterministic")


class Coder(Generic[T]):
    """Encodes and decodes values of one type hint. `decode` raises JsonError, which names the path of the
    field."""

    def __init__(self, hint: Any) -> None:
        way = _way(hint)
        self._write, self._read = way.write or _same, way.read or _same
        self._decoder = msgspec.json.Decoder(way.kind)

    def encode(self, value: T) -> bytes:
        return _encoder.encode(self._write(value))

    def decode(self, data: bytes | msgspec.Raw) -> T:
        try:
            value: T = self._read(decode_json_by(self._decoder, data))
        except JsonError:
            raise
        except Exception as error:
            # The constructor of a record rejected the values.
            raise JsonError(str(error)) from error
        return value


class _Way(NamedTuple):
    """The encoding of a type: the type that msgspec sees, and the conversions to and from it (None: not needed)."""

    kind: Any
    write: Convert | None = None
    read: Convert | None = None


def _same(value: Any) -> Any:
    return value


def _way(hint: Any) -> _Way:
    origin, args = get_origin(hint), get_args(hint)
    if hint in _KEYED:
        return _keyed(_KEYED[hint])
    if _is_record(hint):
        return _record(hint, "")
    if isinstance(hint, type) and issubclass(hint, Enum) and not issubclass(hint, str):
        return _enum(hint)
    if hint in _NAMED:
        return _named(_NAMED[hint])
    if origin in (types.UnionType, Union):
        return _union([_way(arg) for arg in args if arg is not type(None)], args)
    if origin is tuple and args[-1] is Ellipsis:
        item = _way(args[0])
        return _Way(tuple[item.kind, ...], _each(item.write), _each(item.read))  # type: ignore[name-defined]
    if origin is tuple:
        return _fixed([_way(arg) for arg in args])
    if any(_way(arg).write for arg in args):
        raise TypeError(f"{hint}: records and enums can stand in tuples only")
    return _Way(hint)


def _is_record(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, msgspec.Struct)


def _each(convert: Convert | None) -> Convert | None:
    return None if convert is None else lambda values: tuple(map(convert, values))


def _fixed(ways: list[_Way]) -> _Way:
    """The encoding of a tuple of fixed length with one type per item."""
    kind: Any = tuple[tuple(way.kind for way in ways)]  # type: ignore[misc]
    if not any(way.write for way in ways):
        return _Way(kind)
    writes, reads = [way.write or _same for way in ways], [way.read or _same for way in ways]
    return _Way(
        kind,
        lambda values: tuple([write(value) for write, value in zip(writes, values, strict=True)]),
        lambda values: tuple([read(value) for read, value in zip(reads, values, strict=True)]),
    )


def _enum(hint: type[Enum]) -> _Way:
    by_code = {getattr(member, "code", member.value): member for member in hint}
    codes = {member: code for code, member in by_code.items()}
    return _Way(Literal[tuple(by_code)], codes.__getitem__, by_code.__getitem__)


def _named(choices: Mapping[str, type]) -> _Way:
    names = {choice: name for name, choice in choices.items()}

    def name_of(value: Any) -> str:
        if type(value) not in names or value != type(value)():
            raise TypeError(f"{type(value).__name__} cannot be recorded: it is none of {', '.join(choices)}")
        return names[type(value)]

    return _Way(Literal[tuple(choices)], name_of, lambda name: choices[name]())


def _keyed(table: Mapping[str, Any]) -> _Way:
    return _Way(Literal[tuple(table)], attrgetter("key"), table.__getitem__)


def _union(ways: list[_Way], args: tuple[Any, ...]) -> _Way:
    """The encoding of a union: types that JSON distinguishes, or records tagged with their `kind`."""
    optional = type(None) in args
    records = [arg for arg in args if _is_record(arg)]
    if len(records) > 1:
        tagged = {record: _record(record, record.__name__) for record in records}
        writes = {record: way.write or _same for record, way in tagged.items()}
        reads = {way.kind: way.read or _same for way in tagged.values()}
        kind: Any = Union[tuple(way.kind for way in tagged.values())]  # noqa: UP007 - of a computed tuple
        return _Way(kind, lambda value: writes[type(value)](value), lambda value: reads[type(value)](value))
    kind = Union[tuple(way.kind for way in ways) + ((None,) if optional else ())]  # noqa: UP007
    if len(ways) == 1:
        return _Way(kind, _unless_none(ways[0].write), _unless_none(ways[0].read))
    kinds = [get_origin(arg) or arg for arg in args if arg is not type(None)]
    return _Way(
        kind,
        _by_type({one: way.write for one, way in zip(kinds, ways, strict=True) if way.write}),
        _by_type({get_origin(way.kind) or way.kind: way.read for way in ways if way.read}),
    )


def _by_type(converts: dict[Any, Convert]) -> Convert | None:
    """A conversion chosen by the type of the value. Values of other types stay unchanged."""
    return (lambda value: converts.get(type(value), _same)(value)) if converts else None


def _unless_none(convert: Convert | None) -> Convert | None:
    return None if convert is None else lambda value: None if value is None else convert(value)


@cache
def _record(hint: Any, tag: str) -> _Way:
    fields = structs.fields(hint)
    ways = [_way(field.type) for field in fields]
    kind = msgspec.defstruct(
        hint.__name__,
        [_field(field, way) for field, way in zip(fields, ways, strict=True)],
        tag_field="kind" if tag else None,
        tag=tag or None,
        frozen=True,
        omit_defaults=hint not in _WHOLE,
        forbid_unknown_fields=True,
        rename={field.name: field.encode_name for field in fields},
    )
    names = [field.name for field in fields]
    write = _copy(names, kind, [way.write for way in ways])
    read = _copy(names, hint, [way.read for way in ways])
    if hint in _SHARED:
        write, read = Remembered(_SHARED[hint], write), Remembered(_SHARED[hint], read)
    return _Way(kind, write, read)


def _field(field: structs.FieldInfo, way: _Way) -> Any:
    if field.required:
        return field.name, way.kind
    default = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
    return field.name, way.kind, default if way.write is None else way.write(default)


def _copy(names: list[str], make: Callable[..., Any], converts: list[Convert | None]) -> Convert:
    """A function that reads these attributes from an object, converts them and passes them to `make` in order."""
    if len(names) == 1:
        (name,), (convert,) = names, converts
        get_one = attrgetter(name)
        return (lambda value: make(get_one(value))) if convert is None else lambda value: make(convert(get_one(value)))
    get = attrgetter(*names)
    steps = [(index, convert) for index, convert in enumerate(converts) if convert is not None]
    if not steps:
        return lambda value: make(*get(value))

    def copy(value: Any) -> Any:
        values = list(get(value))
        for index, convert in steps:
            values[index] = convert(values[index])
        return make(*values)

    return copy
