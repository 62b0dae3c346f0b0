# SPDX-License-Identifier: Apache-2.0
"""Templates of JSONPath: what kubectl prints for them, and what is refused with a reason."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.cli.jsonpath import PathError, PathTemplate

ANSWER = {
    "kind": "JobList",
    "jobs": [
        {"job": "a/b", "state": "Waiting", "gpus": 3, "labels": {"dovetail.dev/user": "ada"}, "end": None, "nodes": []},
        {"job": "c/d", "state": "Running", "gpus": 8, "labels": {}, "end": {"at": "x"}, "nodes": ["n1", "n2"]},
        {"job": "e/\x1b[31m\nf", "state": "Running", "gpus": 0.5, "labels": {"it's": "1"}, "nodes": ["n2"]},
    ],
}


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("{.kind}", "JobList"),
        (".kind", "JobList"),
        ("$.kind", "JobList"),
        ("{.jobs[*].state}", "Waiting Running Running"),
        ("{.jobs.*.gpus}", "3 8 0.5"),
        ("{.jobs[0].job}", "a/b"),
        ("{.jobs[-1].gpus}", "0.5"),
        ("{.jobs[0:2].job}", "a/b c/d"),
        ("{.jobs[1:].gpus}", "8 0.5"),
        ("{.jobs[:-1].gpus}", "3 8"),
        ("{.jobs[7].job}", ""),
        ("{.jobs[*].nothing}", ""),
        ("{.jobs[2].job}", "e/ [31m f"),
        ("{.jobs[0].labels.dovetail\\.dev/user}", "ada"),
        ("{.jobs[0].labels['dovetail.dev/user']}", "ada"),
        ("{.jobs[2]['labels'][\"it's\"]}", "1"),
        ("{.jobs[1].nodes}", '["n1","n2"]'),
        ("{.jobs[1].nodes[*]}", "n1 n2"),
        ("{.jobs[0].end}", "null"),
        ("{..at}", "x"),
        ("{..nodes[0]}", "n1 n2"),
        ("{..*}", PathTemplate("{.*} {.jobs[*]} {.jobs[*].*} {.jobs[*].*.*}").text(ANSWER)),
        ('{.jobs[?(@.state=="Running")].gpus}', "8 0.5"),
        ("{.jobs[?(@.state!='Running')].gpus}", "3"),
        ("{.jobs[?(@.gpus>=3)].job}", "a/b c/d"),
        ("{.jobs[?(@.gpus<3)].gpus}", "0.5"),
        ("{.jobs[?( @.gpus == 8 )].job}", "c/d"),
        ("{.jobs[?(@.end==null)].job}", "a/b"),
        ("{.jobs[?(@.end.at)].job}", "c/d"),
        ('{.jobs[?(@.gpus>"x")].job}', ""),
        ('{.jobs[?(@.nodes[0]=="n2")].gpus}', "0.5"),
        ("{.jobs[?(@.labels['dovetail.dev/user']==\"ada\")].job}", "a/b"),
        ('{range .jobs[*]}{.state}{"\\t"}{.gpus}{"\\n"}{end}', "Waiting\t3\nRunning\t8\nRunning\t0.5\n"),
        ("{range .jobs[0:2]}{@.job}:{range .nodes[*]}<{.}{$.kind}>{end};{end}", "a/b:;c/d:<n1JobList><n2JobList>;"),
        ("jobs: {.jobs[*].gpus} GPUs", "jobs: 3 8 0.5 GPUs"),
        ("{'{}'}", "{}"),
    ],
)
def test_what_is_printed(expression: str, text: str) -> None:
    found = PathTemplate(expression).text(ANSWER)
    assert (sorted(found) if ".." in expression else found) == (sorted(text) if ".." in expression else text)


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("{}", "'' is not a path such as .jobs[*].job"),
        ("jobs", "'jobs' is not a path"),
        ("{.jobs", "a brace or a quote has no second one"),
        ("{.jobs['a]}", "a brace or a quote has no second one"),
        ("{.jobs[*}", "'[*' is not .name"),
        ("{.jobs[*]['job','state']}", "\"['job','state']\" is not .name"),
        ("{.jobs[0:9:2]}", "'[0:9:2]' is not .name"),
        ("{.jobs[?(@.gpus=1)]}", "is not .name"),
        ("{.jobs[?(@.gpus==x)]}", "'x' is not a number, a text in quotes, true, false or null"),
        (f"{{.jobs[?(@.gpus=={'[' * 5000})]}}", "is not a number, a text in quotes, true, false or null"),
        ("{range .jobs[*]}", "{range ...} without an {end} after it"),
        ("{end}", "{end} without a {range ...} before it"),
        ("{range}{end}", "is not a path"),
    ],
)
def test_what_is_refused(expression: str, message: str) -> None:
    with pytest.raises(PathError) as error:
        PathTemplate(expression)
    assert message in str(error.value)


def test_the_first_name_has_to_be_one_of_the_answer() -> None:
    for expression in ("{.jbos[*].job}", "{range $.jbos[*]}{end}"):
        with pytest.raises(PathError, match="an answer has no 'jbos', it has kind, jobs"):
            PathTemplate(expression).text(ANSWER)


@given(st.text(".[]{}()*?@$'\"=<>:,-01ab\\ ", max_size=40))
def test_any_text_is_a_template_or_refused(expression: str) -> None:
    try:
        assert isinstance(PathTemplate(expression).text(ANSWER), str)
    except PathError as error:
        assert str(error)
