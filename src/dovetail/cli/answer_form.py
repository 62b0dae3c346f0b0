# SPDX-License-Identifier: Apache-2.0
"""The form of an answer: a table or text, or the whole answer as JSON, YAML or by a template of JSONPath.

Rules
- The whole answer has `apiVersion` and `kind`; one that is a list has them in each element.
- Control characters are escaped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click
import msgspec
from msgspec import Struct

from dovetail.cli.output import versioned, write_json
from dovetail.core.json_text import decode_json

if TYPE_CHECKING:
    from dovetail.cli.jsonpath import PathTemplate

TABLE, JSON, YAML, JSONPATH = "table", "json", "yaml", "jsonpath"
FORM_HELP = "Form of the answer; EXPR is a template as for kubectl."
_OUTPUTS = (TABLE, JSON, YAML)
_ENDLESS = 1 << 20


class AnswerForm(Struct, frozen=True):
    """The form that was asked for."""

    output: str = TABLE
    template: PathTemplate | None = None

    @property
    def whole(self) -> bool:
        """Whether the whole answer is written."""
        return self.output in (JSON, YAML, JSONPATH)


class _FormParam(click.ParamType[AnswerForm]):
    name = "form"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> AnswerForm:
        return value if isinstance(value, AnswerForm) else AnswerForm(*read_output(value, _OUTPUTS))


def metavar(outputs: Sequence[str]) -> str:
    return f"{'|'.join(outputs)}|{JSONPATH}=EXPR"


answer_option = click.option(
    "-o", "--output", "form", type=_FormParam(), metavar=metavar(_OUTPUTS), default=TABLE, show_default=True,
    help=FORM_HELP,
)  # fmt: skip
"""The option of commands that print one answer; the command gets a `form`."""


def read_output(text: str, outputs: Sequence[str]) -> tuple[str, PathTemplate | None]:
    """The value of -o: the form, and the template of jsonpath. Raises UsageError."""
    name, _, expression = text.partition("=")
    if name == JSONPATH and expression:
        from dovetail.cli.jsonpath import PathError, PathTemplate

        try:
            return name, PathTemplate(expression)
        except PathError as error:
            raise click.UsageError(f"-o jsonpath: {error}") from error
    if text in outputs:
        return text, None
    if name == JSONPATH:
        raise click.UsageError("-o jsonpath needs an expression: -o 'jsonpath={.jobs[*].job}'")
    raise click.UsageError(f"-o {text!r} is none of {', '.join(outputs)}, {JSONPATH}=EXPR")


def write_answer(form: AnswerForm, kind: str, answer: object) -> None:
    """Write the whole answer. `kind` is its kind, or that of its elements if it is a list. Raises ClickException."""
    write_whole(form, versioned(kind, answer))


def write_whole(form: AnswerForm, answer: object) -> None:
    """The same for an answer that has its version and kind. Raises ClickException."""
    if form.output == JSON:
        write_json(answer)
        return
    plain: Any = decode_json(msgspec.json.encode(answer), object)
    if form.template is not None:
        from dovetail.cli.jsonpath import PathError

        try:
            text = form.template.text(plain)
            click.echo(text, nl=not text.endswith("\n"))
        except PathError as error:
            raise click.ClickException(f"-o jsonpath: {error}") from error
    else:
        import yaml

        dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
        click.echo(yaml.dump(plain, Dumper=dumper, sort_keys=False, allow_unicode=True, width=_ENDLESS), nl=False)
