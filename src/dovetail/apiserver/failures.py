# SPDX-License-Identifier: Apache-2.0
"""Refusals, as the `Status` objects that a Kubernetes API server sends.

Source of codes, reasons and texts: k8s.io/apimachinery/pkg/api/errors/errors.go.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from dovetail.apiserver.objects import Object

REASONS = {
    400: "BadRequest", 401: "Unauthorized", 403: "Forbidden", 404: "NotFound", 405: "MethodNotAllowed", 409: "Conflict",
    410: "Expired", 413: "RequestEntityTooLarge", 415: "UnsupportedMediaType", 422: "Invalid", 429: "TooManyRequests",
    500: "InternalError", 501: "NotImplemented", 503: "ServiceUnavailable", 504: "Timeout",
}  # fmt: skip
"""The usual reason for a status code."""


class Cause(Struct, frozen=True):
    """One thing that is wrong, with the path of its field. Source of kinds and texts: field.Error.ErrorBody."""

    kind: str
    field: str
    message: str

    def document(self) -> Object:
        return {"reason": self.kind, "field": self.field, "message": self.message}


def missing(field: str, why: str = "") -> Cause:
    return Cause("FieldValueRequired", field, f"Required value: {why}" if why else "Required value")


def wrong(field: str, value: object, why: str) -> Cause:
    shown = f'"{value}"' if isinstance(value, str) else value
    return Cause("FieldValueInvalid", field, f"Invalid value: {shown}: {why}")


def not_allowed(field: str, why: str) -> Cause:
    return Cause("FieldValueForbidden", field, f"Forbidden: {why}")


class Failure(Exception):
    """A request that was refused. `retry_after_s` also becomes the Retry-After header."""

    def __init__(
        self, code: int, reason: str, message: str, *, group: str = "", kind: str = "", name: str = "",
        causes: Sequence[Cause] = (), retry_after_s: int = 0,
    ) -> None:  # fmt: skip
        super().__init__(message)
        self.code = code
        self.retry_after_s = retry_after_s
        details: Object = {"group": group, "kind": kind, "name": name, "retryAfterSeconds": retry_after_s}
        details["causes"] = [cause.document() for cause in causes]
        self.status: Object = {
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": message, "reason": reason, "code": code,
            "details": {field: value for field, value in details.items() if value},
        }  # fmt: skip


def success(group: str, kind: str, name: str, uid: str = "") -> Object:
    """The reply to a write that has no object to show."""
    details = {"name": name, "group": group, "kind": kind, "uid": uid}
    return {
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success",
        "details": {field: value for field, value in details.items() if value},
    }  # fmt: skip


def qualified(group: str, plural: str) -> str:
    """How messages name a resource: `pods`, `podgroups.scheduling.k8s.io`."""
    return f"{plural}.{group}" if group else plural


def not_found(group: str, plural: str, name: str) -> Failure:
    message = f'{qualified(group, plural)} "{name}" not found'
    return Failure(404, "NotFound", message, group=group, kind=plural, name=name)


def already_exists(group: str, plural: str, name: str) -> Failure:
    message = f'{qualified(group, plural)} "{name}" already exists'
    return Failure(409, "AlreadyExists", message, group=group, kind=plural, name=name)


def conflict(group: str, plural: str, name: str, why: str) -> Failure:
    message = f'Operation cannot be fulfilled on {qualified(group, plural)} "{name}": {why}'
    return Failure(409, "Conflict", message, group=group, kind=plural, name=name)


def forbidden(group: str, plural: str, name: str, why: str, causes: Sequence[Cause] = ()) -> Failure:
    message = f'{qualified(group, plural)} "{name}" is forbidden: {why}'
    return Failure(403, "Forbidden", message, group=group, kind=plural, name=name, causes=causes)


def invalid(group: str, kind: str, name: str, causes: Sequence[Cause]) -> Failure:
    """`causes` names every field that is wrong, not only the first."""
    errors = [f"{cause.field}: {cause.message}" for cause in causes]
    text = errors[0] if len(errors) == 1 else f"[{', '.join(errors)}]"
    message = f'{qualified(group, kind)} "{name}" is invalid: {text}'
    return Failure(422, "Invalid", message, group=group, kind=kind, name=name, causes=causes)


def bad_request(message: str) -> Failure:
    return Failure(400, "BadRequest", message)


def unauthorized() -> Failure:
    return Failure(401, "Unauthorized", "Unauthorized")


def too_large(why: str) -> Failure:
    return Failure(413, "RequestEntityTooLarge", f"Request entity too large: {why}")


def too_many_requests(why: str, retry_after_s: int) -> Failure:
    return Failure(429, "TooManyRequests", why, retry_after_s=retry_after_s)


class QuotaExceeded(Failure):
    """A write for which there is no room. There may be, when something has been deleted."""

    def __init__(self, group: str, plural: str, name: str, why: str) -> None:
        refusal = forbidden(group, plural, name, f"exceeded quota: {why}")
        super().__init__(403, "Forbidden", str(refusal), group=group, kind=plural, name=name)


def expired(message: str) -> Failure:
    return Failure(410, "Expired", message)


def too_large_version(requested: int, current: int) -> Failure:
    """Upstream waits three seconds for the version before it answers so."""
    causes = [Cause("ResourceVersionTooLarge", "", "Too large resource version")]
    message = f"Timeout: Too large resource version: {requested}, current: {current}"
    return Failure(504, "Timeout", message, causes=causes, retry_after_s=1)


def no_resource() -> Failure:
    """A path in a served group that leads nowhere; outside of them upstream answers with a page of text."""
    return Failure(404, "NotFound", "the server could not find the requested resource")


def method_not_allowed() -> Failure:
    return Failure(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")


def unsupported_media_type(message: str) -> Failure:
    return Failure(415, "UnsupportedMediaType", message)
