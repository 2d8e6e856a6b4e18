"""The documentation says what the code does: generated pages are fresh, named things exist."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tandem.spec import LakeTable, load, load_text

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    ROOT / "benchmarks" / "measurements.md",
    *sorted((ROOT / "tests").rglob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]


def generator() -> ModuleType:
    path = ROOT / "tools" / "generate_docs.py"
    spec = importlib.util.spec_from_file_location("generate_docs", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)


def requirements() -> Iterator[str]:
    for file in sorted((ROOT / "requirements").glob("*.in")):
        for line in file.read_text().splitlines():
            if line and not line.startswith(("#", "-")):
                yield re.split(r"[<>=!~\[; ]", line)[0].lower()


def make_targets() -> set[str]:
    text = (ROOT / "Makefile").read_text()
    return set(re.findall(r"^([a-z0-9-]+):", text, re.MULTILINE))


@pytest.mark.parametrize(
    "page",
    [
        "reasons.md",
        "resources.md",
        "troubleshooting.md",
        "cli.md",
        "metrics.md",
        "template-policy.md",
    ],
)
def test_generated_pages_are_fresh(page: str) -> None:
    assert (ROOT / "docs" / page).read_text() == generator().PAGES[page](), "run `make docs`"


def test_every_requirement_is_explained_and_nothing_else() -> None:
    explained = re.findall(
        r"^\| `([^`]+)` \|", (ROOT / "docs" / "dependencies.md").read_text(), re.MULTILINE
    )
    assert sorted(explained) == sorted(requirements())


def test_lock_files_name_no_address() -> None:
    for file in (ROOT / "requirements").glob("*.lock"):
        assert "://" not in file.read_text()
        assert "index-url" not in file.read_text()


def test_every_requirement_is_locked_with_hashes() -> None:
    files = ("dev.lock", "moto.lock", "part-copy.lock", "unity.lock")
    locked = "\n".join((ROOT / "requirements" / name).read_text() for name in files)
    names = {name.lower() for name in re.findall(r"^([\w.-]+)==", locked, re.MULTILINE)}
    assert set(requirements()) <= names
    entries = [entry for entry in re.split(r"\n(?=\S)", locked) if "==" in entry]
    assert all("--hash=sha256:" in entry for entry in entries)


def test_the_architecture_picture_matches_the_folders() -> None:
    picture = blocks(ROOT / "docs" / "architecture.md", "mermaid")[0]
    drawn = set(re.findall(r"(\w+)\[\"", picture))
    package = ROOT / "operator" / "tandem"
    layers = {
        path.stem
        for path in package.iterdir()
        if path.stem not in ("__init__", "__pycache__", "py") and path.name != "py.typed"
    }
    assert drawn == layers


def test_the_picture_allows_no_import_that_the_linter_forbids() -> None:
    """Every arrow of the picture goes down in the contract of `make check`."""
    import tomllib

    config = tomllib.loads((ROOT / "pyproject.toml").read_text())
    rank = {
        re.sub(r"[()]", "", name.strip()): depth
        for depth, line in enumerate(config["tool"]["importlinter"]["contracts"][0]["layers"])
        for name in line.split("|")
    }
    picture = blocks(ROOT / "docs" / "architecture.md", "mermaid")[0]
    arrows = re.findall(r"^\s*(\w+)(?:\[\".*?\"\])? --> (.+)$", picture, re.MULTILINE)
    assert arrows
    for source, targets in arrows:
        for target in targets.split(" & "):
            name = target.split("[")[0].strip()
            assert rank[source] < rank[name], f"{source} --> {name}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_paths_exist(page: Path) -> None:
    text = page.read_text()
    for link in re.findall(r"\]\(([^)#\s]+)\)", text):
        if "://" not in link:
            assert (page.parent / link).exists(), link
    for path in re.findall(r"`((?:docs|tools|tests|examples|operator|spark_apps)/[\w./-]+)`", text):
        assert (ROOT / path).exists(), path


def anchors(page: Path) -> set[str]:
    """GitHub's anchors of the headings of a page."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    found = set()
    for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE):
        shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        kept = "".join(c for c in shown if c.isalnum() or c in " -_")
        found.add(kept.replace(" ", "-"))
    return found


def test_the_readme_lists_every_page() -> None:
    listed = set(re.findall(r"\]\((docs/[a-z0-9-]+\.md)[)#]", (ROOT / "README.md").read_text()))
    assert listed == {f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_headings_that_exist(page: Path) -> None:
    for link, anchor in re.findall(r"\]\(([^)#\s]*)#([^)\s]+)\)", page.read_text()):
        target = page.parent / link if link else page
        if "://" not in link and target.suffix == ".md":
            assert anchor in anchors(target), f"{link}#{anchor}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_make_commands_that_pages_name_exist(page: Path) -> None:
    for target in re.findall(r"`make ([a-z0-9-]+)", page.read_text()):
        assert target in make_targets(), target
    for block in blocks(page, "sh"):
        for target in re.findall(r"^make ([a-z0-9-]+)", block, re.MULTILINE):
            assert target in make_targets(), target


def test_commands_of_the_readme_are_understood() -> None:
    """Each `tandem` command of the README names a command and options that there are."""
    typed = [
        line.removeprefix(".venv/bin/tandem ")
        for block in blocks(ROOT / "README.md", "sh")
        for line in block.splitlines()
        if line.startswith(".venv/bin/tandem")
    ]
    assert typed
    for line in typed:
        words = line.split()
        end = 2 if words[0] == "table" else 1
        found = subprocess.run(
            [sys.executable, "-m", "tandem.cli.main", *words[:end], "--help"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert found.returncode == 0, line
        for option in (word for word in words[end:] if word.startswith("-")):
            assert option in found.stdout, line


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_with_commands_says_where_they_come_from(page: Path) -> None:
    """By the folder of the README's way, or by a link to the page of the command."""
    typed = re.compile(r"(\$ )?(kubectl tandem|tandem (?!operator)[a-z])")
    text = page.read_text()
    if any(typed.match(line) for block in blocks(page, r"\w*") for line in block.splitlines()):
        assert re.search(r"\.venv/bin|\((\.\./)?(cli|kubectl)\.md", text), page


def test_the_readme_makes_the_table_that_its_commands_use() -> None:
    """The table of `examples/flights` is there before the first command that needs it."""
    typed = next(block for block in blocks(ROOT / "README.md", "sh") if "tandem plan" in block)
    maker = typed.index(".venv/bin/python examples/flights/data.py")
    assert maker < typed.index("tandem plan")
    spec = importlib.util.spec_from_file_location(
        "flights_data", ROOT / "examples" / "flights" / "data.py"
    )
    assert spec is not None
    assert spec.loader is not None
    data = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(data)
    [table] = load([ROOT / "examples" / "flights" / "table.yaml"])
    assert isinstance(table, LakeTable)
    assert table.spec.location == data.LOCATION.as_uri()


def test_resources_in_pages_and_examples_are_right() -> None:
    for page in PAGES:
        for block in blocks(page, "yaml"):
            load_text(block, str(page))
    load([ROOT / "examples" / "flights"])


def test_the_continuous_integration_runs_the_test_command_of_the_readme() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    assert "make test" in script
    assert "make check" in script
    assert "make test" in "".join(blocks(ROOT / "README.md", "sh"))


def test_make_alone_lists_every_target() -> None:
    listed = subprocess.run(
        ["make"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    ).stdout
    for target in make_targets():
        assert f"make {target} " in listed


def test_the_product_imports_what_it_requires_and_no_more() -> None:
    """A package that is only needed by tests must not be installed with the product."""
    import ast

    names = {"pyyaml": "yaml", "grpcio": "grpc", "prometheus-client": "prometheus_client"}
    data = {"tzdata"}
    required = {
        names.get(name, name)
        for name in (
            re.split(r"[<>=]", line)[0]
            for line in (ROOT / "requirements" / "runtime.in").read_text().splitlines()
            if line and not line.startswith("#")
        )
    }
    imported = set()
    for file in [*(ROOT / "operator").rglob("*.py"), *(ROOT / "spark_apps").rglob("*.py")]:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                imported.add(node.module.split(".")[0])
    ours = set(sys.stdlib_module_names) | {"tandem"}
    # pydantic_core and annotated_types are parts of pydantic; py4j one of pyspark.
    parts = {"pydantic_core", "annotated_types", "py4j"}
    optional = {"botocore"}  # requirements/part-copy.in
    assert imported - ours - parts == (required - data) | optional
