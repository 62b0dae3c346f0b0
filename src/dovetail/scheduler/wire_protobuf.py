# SPDX-License-Identifier: Apache-2.0
"""Additions to ResourceClaims in protobuf. Pure.

For a patch of a claim, the server encodes opaque parameters again as JSON: without spaces, with `<`, `>` and `&`
escaped. If they were stored differently, the server sees a change of an immutable field and refuses the patch. Protobuf
keeps them unchanged. An addition to a message is appended: a field that occurs twice is merged, and repeated fields
grow.
Sources: k8s.io/apimachinery/pkg/runtime (Unknown), pkg/apis/meta/v1 and k8s.io/api/resource/v1 (generated.proto).
"""

from __future__ import annotations

CONTENT_TYPE = "application/vnd.kubernetes.protobuf"
_MAGIC = b"k8s\x00"
_RAW = 2
"""The field of the envelope that holds the object; the field before it is the type."""
_METADATA, _STATUS = 1, 3
_FINALIZERS = 14
_RESERVED_FOR = 2
_RESOURCE, _NAME, _UID = 3, 4, 5
_BYTES = 2
"""The wire type of all fields used here."""


def with_finalizer(stored: bytes, finalizer: str) -> bytes:
    """The claim with one more finalizer. Raises ValueError if `stored` is no object."""
    return _appended(stored, _field(_METADATA, _field(_FINALIZERS, finalizer.encode())))


def with_consumer(stored: bytes, pod: str, uid: str) -> bytes:
    """The claim reserved for one more pod. Raises ValueError if `stored` is no object."""
    consumer = b"".join(_field(n, text.encode()) for n, text in ((_RESOURCE, "pods"), (_NAME, pod), (_UID, uid)))
    return _appended(stored, _field(_STATUS, _field(_RESERVED_FOR, consumer)))


def _appended(stored: bytes, more: bytes) -> bytes:
    if not stored.startswith(_MAGIC):
        raise ValueError("is no Kubernetes object in protobuf")
    parts, at = [_MAGIC], len(_MAGIC)
    while at < len(stored):
        tag, at = _varint(stored, at)
        size, at = _varint(stored, at)
        value, at = stored[at : at + size], at + size
        if tag & 7 != _BYTES or at > len(stored):
            raise ValueError("is cut short, or of a version that is not known here")
        parts.append(_field(tag >> 3, value + more if tag >> 3 == _RAW else value))
    return b"".join(parts)


def _field(number: int, value: bytes) -> bytes:
    return _encoded(number << 3 | _BYTES) + _encoded(len(value)) + value


def _encoded(number: int) -> bytes:
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    found.append(number)
    return bytes(found)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """The number encoded at this offset, and the offset after it."""
    number = shift = 0
    for end, byte in enumerate(data[at : at + 10], at + 1):
        number |= (byte & 127) << shift
        if byte < 128:
            return number, end
        shift += 7
    raise ValueError("is cut short")
