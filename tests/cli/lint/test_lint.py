# SPDX-License-Identifier: Apache-2.0
"""`dovetail lint` as its user runs it."""

from __future__ import annotations

import errno
import gzip
import json
import os
import re
import stat
import xml.etree.ElementTree as ET
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from dovetail.cli import cli
from tests.kube.manifests.deep_folder import too_deep
from tests.paths import ROOT

BAD = """\
# The nightly run.
apiVersion: v1
kind: Pod
metadata: {name: night}
spec:
  containers:
  - name: train
    image: "train:1.4"   # pinned
    resources:
      requests:
        nvidia.com/gpu: '2'
"""
MENDED = BAD + '      limits:\n        nvidia.com/gpu: "2"\n'
GOOD = MENDED
ONLY = ("--only", "G01,G02,G03,G04,G05,G15")


def lint(*args: str | Path, stdin: str | bytes | None = None) -> Result:
    return CliRunner().invoke(cli, ["lint", *map(str, args)], input=stdin)


def found(*args: str | Path, stdin: str | bytes | None = None) -> list[dict[str, Any]]:
    answer: list[dict[str, Any]] = json.loads(lint(*args, "-o", "json", stdin=stdin).stdout)
    return answer


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    path = tmp_path / "night.yaml"
    path.write_text(BAD)
    return path


def test_a_finding_has_place_rule_message_and_effect(bad: Path) -> None:
    result = lint(bad, *ONLY)
    assert result.exit_code == 1
    where = "Pod night: spec.containers[0].resources.requests[nvidia.com/gpu]"
    assert result.stdout.splitlines() == [
        f"{bad}:11:9: error G01: {where}: nvidia.com/gpu has a request and no limit: set the limit to the same amount",
        "    effect: The API server refuses the pod: `spec.containers[0].resources.limits: Required value: Limit must "
        "be set for non overcommitable resources`.",
        '    patch: {"op": "add", "path": "/spec/containers/0/resources/limits", "value": {"nvidia.com/gpu": "2"}}',
        "1 error in 1 object of 1 file",
        "--fix fixes 1 of them; --diff shows how",
    ]


def test_json_is_a_list_of_findings(bad: Path) -> None:
    (one,) = found(bad, *ONLY)
    assert {key: one[key] for key in ("rule", "level", "file", "line", "column", "path", "fixable")} == {
        "rule": "G01", "level": "error", "file": str(bad), "line": 11, "column": 9,
        "path": "spec.containers[0].resources.requests[nvidia.com/gpu]", "fixable": True,
    }  # fmt: skip
    assert one["message"].startswith("nvidia.com/gpu has a request")


POD = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  containers: [{name: a, image: b, resources: %s}]\n"
WRONG = POD % "{requests: {nvidia.com/gpu: 2}}"


def test_findings_in_the_output_of_helm_name_the_template() -> None:
    """As `helm template` prints it: one comment for each document."""
    text = f"---\n# Source: c/templates/a.yaml\n{POD % '{}'}---\n# Source: c/charts/d/templates/b.yaml\n\n{WRONG}"
    (one,) = json.loads(lint("-", *ONLY, "-o", "json", stdin=text).stdout)
    assert text.splitlines()[one["line"] - 1].startswith("  containers:")
    assert (one["template"], one["template_line"]) == ("c/charts/d/templates/b.yaml", 6)
    shown = lint("-", *ONLY, stdin=text).stdout.splitlines()
    assert shown[1] == "    template: c/charts/d/templates/b.yaml, line 6 of what it renders"
    broken = f"{text}---\n# Source: c/templates/e.yaml\na: [\n"
    last = json.loads(lint("-", *ONLY, "-o", "json", stdin=broken).stdout)[-1]
    assert (last["rule"], last["template"]) == ("G00", "c/templates/e.yaml")


@pytest.mark.parametrize(
    "comment", ["# Source: https://example.com/pods", "# c/templates/a.yaml", "a: 1 # Source: c/templates/a"]
)
def test_other_comments_name_no_template(comment: str) -> None:
    (one,) = json.loads(lint("-", *ONLY, "-o", "json", stdin=f"{comment}\n{WRONG}").stdout)
    assert (one["template"], one["template_line"]) == ("", 0)


def test_sarif(bad: Path) -> None:
    (run,) = json.loads(lint(bad, *ONLY, "-o", "sarif").stdout)["runs"]
    (result,) = run["results"]
    assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == result["ruleId"] == "G01"
    assert result["level"] == "error"
    place = result["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == str(bad)
    assert place["region"] == {"startLine": 11, "startColumn": 9}


def test_junit(bad: Path, tmp_path: Path) -> None:
    (tmp_path / "good.yaml").write_text(GOOD)
    root = ET.fromstring(lint(tmp_path, *ONLY, "-o", "junit").stdout)
    assert [(suite.get("name"), suite.get("failures")) for suite in root] == [
        (str(tmp_path / "good.yaml"), "0"), (str(bad), "1"),
    ]  # fmt: skip
    assert [case.get("name") for case in root.iter("testcase") if case.find("failure") is None] == ["no finding"]


def test_formats_can_be_read_whatever_the_name_of_a_file_has(bad: Path) -> None:
    odd = bad.rename(bad.parent / os.fsdecode(b"a\xff b.yaml"))
    known = bad.parent / "known.json"
    assert lint(odd, *ONLY, "--write-baseline", known).exit_code == 0
    assert lint(odd, *ONLY, "--baseline", known).exit_code == 0
    shown = f"{bad.parent}/a\\xff b.yaml"
    assert [one["file"] for one in found(odd, *ONLY)] == [shown]
    assert lint(odd, *ONLY).stdout.startswith(f"{shown}:11:9: ")
    assert [one.get("name") for one in ET.fromstring(lint(odd, *ONLY, "-o", "junit").stdout)] == [shown]
    (run,) = json.loads(lint(odd, *ONLY, "-o", "sarif").stdout)["runs"]
    place = run["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]
    assert place["uri"] == f"{bad.parent}/a%FF%20b.yaml"


def test_a_set_of_data_larger_than_the_memory_is_not_read(tmp_path: Path) -> None:
    large = tmp_path / "large.json"
    large.touch()
    os.truncate(large, 1 << 40)
    assert "skipped: 1 document that cannot be read" in lint(tmp_path).stdout
    assert "1048576 MiB is too large" in lint(large).stdout


def test_control_characters_of_names_reach_neither_a_terminal_nor_xml(bad: Path) -> None:
    bad.write_text(BAD.replace("name: night", r'name: "a\ab\nc"'))
    assert "\n" not in lint(bad, *ONLY).stdout.split("Pod a b c: ")[0]
    (case,) = ET.fromstring(lint(bad, *ONLY, "-o", "junit").stdout).iter("testcase")
    assert str(case.get("name")).startswith("G01 Pod a b c spec.containers")


def test_a_file_of_a_folder_that_cannot_be_read_is_reported(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").symlink_to("a.yaml")
    result = lint(tmp_path)
    assert result.exit_code == 1
    assert result.stdout.startswith(f"{tmp_path}/a.yaml: error G00: cannot be read: Too many levels of symbolic links")


def test_a_folder_that_cannot_be_listed_is_reported(bad: Path) -> None:
    folder = too_deep(bad.parent)
    (one, other) = found(bad.parent, *ONLY)
    assert (one["file"], one["message"]) == (str(folder), "cannot be read: File name too long")
    assert other["file"] == str(bad)
    bad.unlink()
    result = lint(bad.parent)
    assert result.exit_code == 1 and "error G00: cannot be read: File name too long" in result.stdout


def test_what_is_no_regular_file_is_refused_without_waiting_for_it(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.yaml"
    os.mkfifo(pipe)
    message = "is no regular file: pass it as standard input, with -"
    assert [one["message"] for one in found(pipe)] == [message]
    assert lint(pipe).exit_code == 1
    assert "/dev/zero: error G00: is no regular file" in lint("/dev/zero").stdout


@pytest.mark.parametrize(
    ("text", "message"), [(WRONG, ""), (b"# " + b"a" * (32 << 20), "more than 32 MiB is too large")]
)
def test_what_the_shell_opens_is_read_up_to_a_bound(text: str | bytes, message: str) -> None:
    # As `dovetail lint <(helm template .)` does it.
    data = text.encode() if isinstance(text, str) else text
    reader, writer = os.pipe()
    with ThreadPoolExecutor(1) as pool, os.fdopen(writer, "wb") as into:
        answer = pool.submit(found, f"/dev/fd/{reader}", *(() if message else ONLY))
        into.write(data)
        into.close()
        (one,) = answer.result(60)
    os.close(reader)
    assert one["file"] == f"/dev/fd/{reader}"
    assert (one["rule"], one["message"].startswith(message)) == ("G00" if message else "G01", True)


def test_standard_input_is_read_up_to_a_bound() -> None:
    assert "-: error G00: more than 32 MiB is too large: split it" in lint("-", stdin=b" " * (33 << 20)).stdout


def test_github(bad: Path) -> None:
    (line,) = lint(bad, *ONLY, "-o", "github").stdout.splitlines()
    assert line.startswith(f"::error file={bad},line=11,col=9,title=G01::Pod night: ")


def test_fix_writes_in_place_and_keeps_the_rest(bad: Path) -> None:
    bad.chmod(0o640)
    result = lint(bad, *ONLY, "--fix")
    assert result.exit_code == 0
    assert bad.read_text() == MENDED
    assert stat.S_IMODE(bad.stat().st_mode) == 0o640
    assert list(bad.parent.iterdir()) == [bad]
    assert lint(bad, *ONLY, "--fix").exit_code == 0
    assert bad.read_text() == MENDED


def test_fix_keeps_a_byte_order_mark_and_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "windows.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + BAD.replace("\n", "\r\n").encode())
    lint(path, *ONLY, "--fix")
    assert path.read_bytes() == b"\xef\xbb\xbf" + MENDED.replace("\n", "\r\n").encode()


def test_fix_of_standard_input_prints_it(bad: Path) -> None:
    result = lint("-", *ONLY, "--fix", stdin=BAD)
    assert result.stdout == MENDED
    assert "no finding in 1 object" in result.stderr


def test_fix_follows_a_link(bad: Path) -> None:
    link = bad.parent / "link.yaml"
    link.symlink_to(bad)
    lint(link, *ONLY, "--fix")
    assert link.is_symlink()
    assert bad.read_text() == MENDED


def test_fix_of_a_packed_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "packed.yaml.gz"
    path.write_bytes(gzip.compress(BAD.encode()))
    assert len(found(path, *ONLY)) == 1
    result = lint(path, *ONLY, "--fix")
    assert result.exit_code == 1
    assert "compressed files are not changed" in result.stderr


def test_diff_changes_nothing(bad: Path) -> None:
    result = lint(bad, *ONLY, "--diff")
    assert result.exit_code == 1
    assert [line for line in result.stdout.splitlines() if line.startswith("+")][1:] == [
        "+      limits:", '+        nvidia.com/gpu: "2"',
    ]  # fmt: skip
    assert bad.read_text() == BAD


def test_diff_of_a_file_without_a_last_newline(tmp_path: Path) -> None:
    path = tmp_path / "short.yaml"
    path.write_text(BAD.rstrip("\n"))
    result = lint(path, *ONLY, "--diff")
    assert "\\ No newline at end of file\n" in result.stdout


@pytest.mark.parametrize(("level", "code"), [("error", 1), ("warning", 1), ("info", 1), ("never", 0)])
def test_exit_code(bad: Path, level: str, code: int) -> None:
    assert lint(bad, *ONLY, "--fail-on", level).exit_code == code


def test_only_and_skip(bad: Path) -> None:
    assert [one["rule"] for one in found(bad, "--only", "g01,G02")] == ["G01"]
    assert [one["rule"] for one in found(bad, "--only", "G01,G02", "--skip", "G01")] == []


def test_items_of_lists_are_objects() -> None:
    pod = json.dumps({"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": {"containers": [
            {"name": "a", "resources": {"requests": {"nvidia.com/gpu": 1}}}]}}]}, indent="\t")  # fmt: skip
    (one,) = found("-", *ONLY, stdin=pod)
    assert one["path"].startswith("items[0].spec.containers[0]")
    assert one["line"] == 17


@pytest.mark.parametrize(
    ("text", "line", "column", "expected"),
    [
        ("a: [1,\n", 2, 1, "is not YAML or JSON"),
        ("a: 1\n---\nb: x: y\n", 3, 5, "mapping values are not allowed"),
        ("a: 1\na: 2\n", 2, 1, "'a' is there twice"),
        ("a: *b\n", 1, 4, "undefined alias"),
        ('{"a": 1,\n "b": }x\n', 2, 8, "is not YAML or JSON"),
    ],
)
def test_what_cannot_be_read(text: str, line: int, column: int, expected: str) -> None:
    (one,) = found("-", stdin=text)
    assert (one["rule"], one["line"], one["column"]) == ("G00", line, column)
    assert expected in one["message"]


def test_a_broken_document_hides_no_other() -> None:
    rules = [one["rule"] for one in found("-", *ONLY, stdin=f"a: [\n---\n{BAD}---\n{BAD}")]
    assert rules == ["G00", "G01", "G01"]


def test_a_finding_behind_others_has_its_line() -> None:
    (one,) = found("-", *ONLY, stdin=f"# nothing\n---\na: 1\n--- # here\n{BAD}")
    assert one["line"] == 4 + 11


def test_directives_belong_to_the_document_behind_them() -> None:
    (one,) = found("-", *ONLY, stdin=f"%YAML 1.1\n# about\n---\n{BAD}")
    assert one["line"] == 3 + 11


def test_what_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "binary.yaml").write_bytes(b"\x7fELF\0\0")
    (tmp_path / "latin.yaml").write_bytes("a: 1\nb: ü\n".encode("latin-1"))
    (tmp_path / "latin.json").write_bytes('{"a": "ü"}\n'.encode("latin-1"))
    (tmp_path / "large.yaml").write_bytes(b"a: 1\n" * (10 << 20))
    (tmp_path / "packed.yaml.gz").write_bytes(b"\x1f\x8bbroken")
    assert found(tmp_path) == []
    assert "skipped: 5 documents that cannot be read, without an apiVersion" in lint(tmp_path).stdout
    printed = {Path(one["file"]).name: (one["message"], one["line"]) for one in found(*tmp_path.iterdir())}
    assert printed["binary.yaml"] == ("is a binary file, no manifest", 0)
    assert printed["latin.yaml"] == ("is not UTF-8 text: invalid start byte", 2)
    assert printed["latin.json"] == ("is not UTF-8 text: invalid start byte", 1)
    assert printed["large.yaml"][0].startswith("50 MiB is too large: files up to 32 MiB")
    assert "gzip data" in printed["packed.yaml.gz"][0]


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    result = lint(tmp_path / "none.yaml")
    assert result.exit_code == 1
    assert "none.yaml: error G00: cannot be read: No such file or directory" in result.stdout


def test_a_folder_without_manifests(tmp_path: Path) -> None:
    result = lint(tmp_path)
    assert result.exit_code == 1
    assert "no file in this folder ends in .yaml" in result.stderr


def test_kinds_that_are_not_known_are_named() -> None:
    text = "apiVersion: example.com/v1\nkind: Foo\nmetadata: {name: a}\n---\nreplicas: 1\n---\nkind: Service\n"
    result = lint("-", stdin=text)
    assert result.exit_code == 0
    printed = "not checked: Foo.example.com (1), a document without apiVersion and kind (1)"
    assert result.stdout.splitlines() == ["no finding in 3 objects of 1 file", printed]


@pytest.mark.parametrize("text", ["apiVersion: example.com/v1\nkind: Foo\n", "kind: Pod\nspec: {{ .Values.spec }}\n"])
def test_what_is_not_checked_can_fail(text: str) -> None:
    assert lint("-", stdin=text).exit_code == 0
    result = lint("-", "--fail-unchecked", stdin=text)
    assert result.exit_code == 1
    assert any(line.startswith(("not checked: Foo", "skipped: 1 template")) for line in result.stdout.splitlines())
    assert lint("-", "--fail-unchecked", stdin="apiVersion: v1\nkind: Service\n").exit_code == 0


@pytest.mark.parametrize("group", ["scheduling.volcano.sh/v1beta1", "scheduling.x-k8s.io/v1alpha1"])
def test_pod_groups_are_checked(group: str) -> None:
    text = f"apiVersion: {group}\nkind: PodGroup\nmetadata: {{name: a}}\nspec: {{minMember: 2}}\n"
    assert lint("-", stdin=text).stdout.splitlines() == ["no finding in 1 object of 1 file"]


def test_a_pod_template_of_an_unknown_kind_is_checked() -> None:
    inner = "".join(f"  {line}\n" for line in BAD[BAD.index("spec:") :].splitlines())
    text = f"apiVersion: example.com/v1\nkind: Farm\nmetadata: {{name: a}}\ncow:\n{inner}"
    (one,) = found("-", *ONLY, stdin=text)
    assert one["path"].startswith("cow.spec.containers[0]")


@pytest.mark.parametrize(
    "text", ["spec: 3", "kind: Pod\nspec: {containers: {a: 1}}", "kind: Pod\nspec: {containers: [1, null, [x]]}",
             "kind: Pod\nspec: {containers: [{resources: [1], env: {a: b}, image: 3}]}", "[]", "3", "kind: [a]",
             "kind: ResourceQuota\nspec: {hard: [nvidia.com/gpu]}", "kind: List\nitems: [1, {kind: List, items: []}]",
             "metadata: {name: 3, labels: [1]}\nkind: Job\napiVersion: 1", "? [a, b]\n: 1\n", "1: {2: 3}"]
)  # fmt: skip
def test_odd_types_are_no_crash(text: str) -> None:
    assert lint("-", stdin=text).exit_code in (0, 1)
    assert lint("-", "--fix", stdin=text).exit_code in (0, 1)


@pytest.mark.parametrize(
    "args",
    [
        [],
        ["a.yaml", "--fix", "--diff"],
        ["a.yaml", "--diff", "-o", "json"],
        ["a.yaml", "--only", "G77"],
        ["a.yaml", "--deny", "G01"],
        ["--policy", "--deny", "G50"],
        ["a.yaml", "--policy"],
        ["a.yaml", "--cluster", "--inventory", "n.yaml"],
        ["a.yaml", "--context", "c"],
        ["-", "-"],
    ],
)
def test_contradictions_are_refused(args: list[str]) -> None:
    assert lint(*args).exit_code == 2


@pytest.mark.parametrize(
    ("inventory", "expected"),
    [("a: [", "is not YAML or JSON"), ("kind: Pod\n", "no Node found"), (None, "cannot be read")],
)
def test_an_inventory_that_cannot_be_read(tmp_path: Path, bad: Path, inventory: str | None, expected: str) -> None:
    path = tmp_path / "nodes.txt"
    if inventory is not None:
        path.write_text(inventory)
    result = lint(bad, "--inventory", path)
    assert result.exit_code == 3
    assert expected in result.stderr


@pytest.mark.slow
def test_a_cluster_that_cannot_be_reached(tmp_path: Path, bad: Path) -> None:
    config = tmp_path / "config"
    config.write_text(json.dumps({
        "current-context": "c", "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:9"}}], "users": [{"name": "u", "user": {}}],
    }))  # fmt: skip
    result = lint(bad, "--cluster", "--kubeconfig", config)
    assert result.exit_code == 3
    assert "127.0.0.1:9" in result.stderr


def test_merged_fields_are_found_where_they_stand() -> None:
    text = f"""\
x-part: &part
  image: train:1.4
  resources: {{requests: {{nvidia.com/gpu: 1}}}}
{BAD[: BAD.index("  containers:")].removeprefix("# The nightly run.").strip()}
  containers:
  - name: train
    <<: *part
"""
    (one,) = found("-", *ONLY, stdin=text)
    assert (one["rule"], one["line"], one["fixable"]) == ("G01", 3, False)
    assert (
        "x-part: &part\n  image: train:1.4\n  resources: {requests: {nvidia.com/gpu: 1}}\n"
        in lint("-", *ONLY, "--fix", stdin=text).stdout
    )


def test_fix_leaves_what_cannot_be_read_as_it_is(tmp_path: Path) -> None:
    for name, data in (("binary.yaml", b"\x7fELF\0\0"), ("broken.yaml", b"a: [\n---\nkind: Pod\n")):
        path = tmp_path / name
        path.write_bytes(data)
        assert lint(path, "--fix").exit_code == 1
        assert path.read_bytes() == data


def test_explain_and_list() -> None:
    result = lint("--explain", "g01")
    assert result.exit_code == 0
    assert result.stdout.startswith("G01: GPUs are requested without a limit\nlevel:   error\n")
    assert "Wrong:" in result.stdout
    assert "G15  error   --fix  " in lint("--list").stdout


def test_hooks_run_the_command() -> None:
    text = (ROOT / ".pre-commit-hooks.yaml").read_text()
    assert "entry: dovetail lint" in text


@pytest.mark.parametrize(
    "text",
    [
        "spec:\n  replicas: {{ .Values.replicas }}\n",
        'spec:\n  image: "{{ .Values.image }}"\n',
        "{{- if .x }}\na: 1\n{{- end }}\n",
        "{% if gpus %}\na: 1\n{% endif %}\n",
        "a: <%= @gpus %>: b\n<% end %>\n",
    ],
    ids=["helm", "quoted", "go", "jinja", "erb"],
)
def test_a_template_is_skipped_and_counted(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(f"{text}---\n{BAD}")
    for path in (tmp_path, tmp_path / "a.yaml"):
        result = lint(path, *ONLY)
        assert "1 error in 1 object of 1 file" in result.stdout
        assert (
            "skipped: 1 template not rendered yet; for Helm: `helm template CHART | dovetail lint -`" in result.stdout
        )
    result = lint(tmp_path, "-o", "json")
    assert "skipped: 1 template not" in result.stderr and json.loads(result.stdout)


@pytest.mark.parametrize("amount", ["${GPUS}", "$(GPUS)", '"{{inputs.gpus}}"', '"{% gpus %}"'])
def test_nothing_is_known_of_a_value_that_a_program_fills_in(amount: str) -> None:
    text = BAD.replace("requests", "limits").replace("'2'", amount)
    assert found("-", "--only", "G03", stdin=text) == []
    assert found("-", "--only", "G03", stdin=text.replace(amount, "two"))


def test_a_broken_file_of_a_folder_is_an_error_if_it_was_meant_as_a_manifest(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("apiVersion: v1\nkind: [\n")
    (tmp_path / "tsconfig.json").write_text('{\n  // not JSON\n  "a": 1\n}\n')
    assert [Path(one["file"]).name for one in found(tmp_path)] == ["a.yaml"]
    assert "skipped: 1 document that cannot be read, without an apiVersion" in lint(tmp_path).stdout
    assert found(tmp_path, "--skip", "G00") == []


def test_what_git_ignores_and_what_is_excluded_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a.yaml", "out/b.yaml", "charts/c.yaml", ".git/d.yaml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(BAD)
    (tmp_path / ".gitignore").write_text("out/\n")
    monkeypatch.chdir(tmp_path)
    assert [one["file"] for one in found(".", *ONLY)] == ["a.yaml", "charts/c.yaml"]
    assert [one["file"] for one in found(".", *ONLY, "--exclude", "charts")] == ["a.yaml"]
    assert [one["file"] for one in found("charts/c.yaml", "a.yaml", *ONLY, "--exclude", "charts/")] == ["a.yaml"]


def test_the_configuration_is_that_of_the_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a.yaml", "charts/c.yaml", "in/x"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(BAD)
    (tmp_path / ".git").mkdir()
    settings = tmp_path / ".dovetail-lint.yaml"
    settings.write_text("exclude: [/charts]\nonly: [G01, G20]\nskip: [G20]\nfailOn: never\n")
    monkeypatch.chdir(tmp_path / "in")
    assert lint("..").exit_code == 0
    assert [(one["file"], one["rule"]) for one in found("..")] == [("../a.yaml", "G01")]
    assert lint("..", "--fail-on", "error").exit_code == 1
    assert found("..", "--only", "G02") == []
    for text, message in (
        ("skip: [G99]", "there is no rule G99"),
        ("excludes: [a]", "unknown field `excludes`"),
        ("skip: [", "is not YAML"),
        ("failOn: bad", "Invalid enum value"),
    ):
        settings.write_text(text)
        result = lint("..")
        assert result.exit_code == 2 and message in result.stderr and ".dovetail-lint.yaml" in result.stderr
    assert "cannot read nothere" in lint("..", "--config", "nothere").stderr


def test_a_baseline_leaves_out_what_is_known(bad: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = bad.parent / "known.json"
    written = lint(bad, *ONLY, "--write-baseline", known)
    assert written.exit_code == 0 and "1 finding" in written.stderr
    bad.write_text("# A line more.\n" + BAD)
    result = lint(bad, *ONLY, "--baseline", known)
    assert result.exit_code == 0 and "left out: 1 finding of the baseline" in result.stdout
    monkeypatch.chdir(bad.parent)
    assert lint("night.yaml", *ONLY, "--baseline", known).exit_code == 0
    bad.write_text(f"{BAD}---\n{BAD}")
    assert [one["line"] for one in found(bad, *ONLY, "--baseline", known)] == [23]
    assert "--write-baseline writes it" in lint(bad, "--baseline", bad.parent / "nothere").stderr
    refused = lint(bad, "--baseline", bad.parent).stderr
    assert refused == f"Error: {bad.parent}: is a folder, not the file that --write-baseline writes\n"
    known.write_text("[1]")
    assert "is no baseline" in lint(bad, "--baseline", known).stderr


def test_a_baseline_is_replaced_as_a_whole(bad: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = bad.parent / "known.json"
    os.umask(mask := os.umask(0o022))
    assert lint(bad, *ONLY, "--write-baseline", known).exit_code == 0
    assert stat.S_IMODE(known.stat().st_mode) == 0o666 & ~mask
    old = known.read_text()
    known.chmod(0o640)
    link = bad.parent / "link.json"
    link.symlink_to(known)

    with monkeypatch.context() as full:
        full.setattr(Path, "replace", _no_room)
        bad.write_text(f"{BAD}---\n{BAD}")
        result = lint(bad, *ONLY, "--write-baseline", link)
    assert result.exit_code == 1 and f"cannot write {link}: No space left on device" in result.stderr
    assert known.read_text() == old
    assert sorted(bad.parent.iterdir()) == sorted([bad, known, link])

    assert "2 findings written" in lint(bad, *ONLY, "--write-baseline", link).stderr
    assert link.is_symlink() and len(json.loads(known.read_text())) == 2
    assert stat.S_IMODE(known.stat().st_mode) == 0o640


def _no_room(path: Path, target: Path) -> Path:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_baseline_may_go_to_what_is_no_regular_file(bad: Path) -> None:
    reader, writer = os.pipe()
    assert lint(bad, *ONLY, "--write-baseline", f"/dev/fd/{writer}").exit_code == 0
    os.close(writer)
    with os.fdopen(reader) as written:
        assert len(json.load(written)) == 1


def test_a_named_pipe_is_no_baseline_and_nobody_waits_for_it(bad: Path) -> None:
    pipe = bad.parent / "pipe"
    os.mkfifo(pipe)
    result = lint(bad, *ONLY, "--baseline", pipe)
    assert (result.exit_code, result.stderr) == (2, f"Error: {pipe}: is no regular file; --write-baseline writes it\n")
    result = lint(bad, *ONLY, "--write-baseline", pipe)
    assert result.exit_code == 1
    assert f"cannot write {pipe}: it is no regular file, and nobody reads it" in result.stderr


@pytest.mark.parametrize(
    ("file", "taken"),
    [
        ("jobs/train.yaml", True), ("deploy/values-job.yaml", False), (".github/workflows/ci.yml", False),
        ("chart/templates/job.yaml", False), ("charts/gpu/templates/job.yaml", False), ("templates/job.yaml", True),
        ("package.json", False), ("docker-compose.override.yml", False), ("k8s/compose/job.yaml", True),
        (".pre-commit-config.yaml", False), ("pod.json", True), ("pnpm-lock.yaml", False),
    ],
)  # fmt: skip
def test_the_hook_takes_what_can_hold_objects(file: str, taken: bool) -> None:
    for hook in yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text()):
        assert (re.search(hook["exclude"], file) is None) == taken


def test_a_diff_of_nothing_is_named(tmp_path: Path, bad: Path) -> None:
    assert "--fix would change nothing" not in lint(bad, *ONLY, "--diff").stderr
    bad.write_text(GOOD)
    result = lint(bad, *ONLY, "--diff")
    assert (result.stdout, result.exit_code) == ("", 0)
    assert result.stderr == "--fix would change nothing: no finding here has a fix\n"
