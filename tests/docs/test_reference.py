"""The reference pages: every field is in an example, every reason says what to check, every
label and annotation on its page, and every command that a page names is one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

import troubleshooting_page
from tandem.cli.app import app
from tandem.cli.kubectl.main import app as plugin
from tandem.errors import Reason
from tandem.spec import KINDS, common, load_all
from tandem.spec.common import API_VERSION, OPERATIONS, OperationSpec, plural
from tandem.spec.status import ENDED

ROOT = Path(__file__).resolve().parents[2]
KIND_FILES = ROOT / "examples" / "kinds"
PAGES = sorted((ROOT / "docs").glob("*.md"))


def documents(kind: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((KIND_FILES / f"{kind.lower()}.yaml").read_text()))


def test_the_examples_are_valid_together() -> None:
    assert {each.kind_name for each in load_all([KIND_FILES])} == set(KINDS)
    assert {file.stem for file in KIND_FILES.iterdir()} == {kind.lower() for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_the_example_of_a_kind_shows_every_field_of_its_own(kind: str) -> None:
    model = KINDS[kind].model_fields["spec"].annotation
    assert model is not None
    common = set(OperationSpec.model_fields) if kind in OPERATIONS else set()
    names = {
        field.alias or name for name, field in model.model_fields.items() if name not in common
    }
    assert {each["kind"] for each in documents(kind)} == {kind}
    shown = set().union(*(each["spec"] for each in documents(kind)))
    assert names <= shown


def test_an_example_shows_every_field_of_operations() -> None:
    fields = OperationSpec.model_fields
    [ingest] = documents("TableIngest")
    assert {field.alias or name for name, field in fields.items()} <= set(ingest["spec"])


def test_every_reason_names_where_to_look() -> None:
    assert set(troubleshooting_page.LOOK) == set(Reason)
    assert all(troubleshooting_page.LOOK.values())


def test_the_pages_that_list_kinds_list_all_of_them() -> None:
    def found(page: str, pattern: str) -> set[str]:
        return set(",".join(re.findall(pattern, (ROOT / page).read_text())).split(","))

    short = {model.short_name for model in KINDS.values()}
    assert found("docs/install.md", r"kubectl delete (\S+) --all ") == short
    assert found("crds/README.md", r"\| `\w+` \| `(\w+)` \|") == short
    assert found("docs/upgrading.md", r"kubectl get (\S+) -A -o json") == set(map(plural, KINDS))


def commands(known: typer.Typer) -> set[str]:
    return {
        command.name or (command.callback.__name__ if command.callback else "")
        for command in known.registered_commands
    } | {group.name or "" for group in known.registered_groups}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.name))
def test_commands_that_pages_name_are_there(page: Path) -> None:
    text = page.read_text()
    ours = {name.replace("_", "-") for name in commands(plugin)}
    assert set(re.findall(r"kubectl tandem ([a-z]+)(?![a-z<])", text)) <= ours
    typed = re.findall(r"(?:`|\$ |^)(?:\.venv/bin/)?tandem ([a-z][a-z-]+)", text, re.MULTILINE)
    assert set(typed) <= {name.replace("_", "-") for name in commands(app)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.name))
def test_resources_that_commands_name_are_kinds(page: Path) -> None:
    """`kubectl get|describe|delete|patch|annotate|wait … KIND/NAME` of kinds that there are."""
    short = {model.short_name for model in KINDS.values()}
    known = short | {kind.lower() for kind in KINDS} | {plural(kind) for kind in KINDS}
    for line in re.findall(r"kubectl [^`\n|]+", page.read_text()):
        for kind in re.findall(r"\s([a-z]+)/[A-Za-z]", line):
            if kind.startswith(("t", "lake", "seg")) and kind != "tandem":
                assert kind in known, line


def test_phases_of_an_end_are_three() -> None:
    """`docs/first-table.md` waits for them."""
    assert {str(phase) for phase in ENDED} == {"Succeeded", "Superseded", "Failed"}


LABELS = (ROOT / "docs" / "labels-and-annotations.md").read_text()


def test_labels_and_annotations_are_those_of_the_code() -> None:
    names = [text for text in vars(common).values() if isinstance(text, str)]
    used = {text for text in names if text.startswith(common.PREFIX)}
    used -= {common.PREFIX, common.API_VERSION}
    assert used
    assert set(re.findall(r"^\| `(tandem\.dev/[a-z-]+)`", LABELS, re.MULTILINE)) == used


def test_labels_and_annotations_are_named_in_one_module() -> None:
    for file in (ROOT / "operator").rglob("*.py"):
        names = re.findall(r"[\"',](tandem\.dev/[^\"']*)", file.read_text())
        # Pydantic needs the version of the API as a literal.
        assert set(names) <= ({API_VERSION} if file.name == "common.py" else set()), file


def test_labels_of_the_chart_are_those_of_its_templates() -> None:
    helpers = (ROOT / "charts" / "tandem" / "templates" / "_helpers.tpl").read_text()
    used = re.findall(r"^((?:app\.kubernetes\.io|helm\.sh)/[a-z-]+):", helpers, re.MULTILINE)
    table = re.findall(r"^\| `((?:app\.kubernetes\.io|helm\.sh)/[a-z-]+)`", LABELS, re.MULTILINE)
    assert set(table) == set(used)


def test_tests_that_pages_name_are_there() -> None:
    known = set[str]()
    for file in (ROOT / "tests").rglob("*_*.py"):
        known |= set(re.findall(r"^def (test_\w+)", file.read_text(), re.MULTILINE))
    for page in PAGES:
        assert set(re.findall(r"`(test_\w+)`", page.read_text())) <= known, page.name
