# SPDX-License-Identifier: Apache-2.0
"""Generator of the reference page of the lint rules.

python -m tools.lint_rules > docs/reference/lint-rules.md
"""

from __future__ import annotations

from collections.abc import Iterator

from dovetail.advice.lint.rule import Rule
from dovetail.advice.lint.rules import RULES

_HEAD = """\
# Rules of dovetail lint

Made from the entries of the rules by `python -m tools.lint_rules`. How to use them: [linting](../how-to/lint.md);
levels and what silences a rule: [dovetail lint](lint.md).

| rule | level | mended | policy | what it finds |
|---|---|---|---|---|
"""


def page() -> str:
    """The text of the page."""
    return _HEAD + "".join(_row(rule) for rule in RULES) + "".join("\n" + "\n".join(_section(rule)) for rule in RULES)


def _row(rule: Rule) -> str:
    mended, policy = "yes" if rule.fixable else "", "yes" if rule.cel else ""
    return f"| [{rule.id}](#{rule.id.lower()}) | {rule.level.value} | {mended} | {policy} | {rule.title} |\n"


def _section(rule: Rule) -> Iterator[str]:
    yield f"## {rule.id}\n"
    yield f"{rule.title}. {rule.effect}\n"
    facts = [f"Level: {rule.level.value}."]
    facts += ["`--fix` mends it."] if rule.fixable else []
    facts += ["Needs nodes (`--inventory`, `--cluster`) to be exact."] if rule.needs_nodes else []
    facts += ["The API server can say it: `--policy`."] if rule.cel else []
    yield " ".join(facts) + "\n"
    if rule.source:
        yield f"Source: {rule.source}\n"
    yield f"Wrong:\n\n```yml\n{rule.bad}```\n"
    yield f"Right:\n\n```yml\n{rule.good}```\n"


if __name__ == "__main__":
    print(page(), end="")
