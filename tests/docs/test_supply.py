"""Every dependency is pinned and listed, also those that only others need; what else is installed is not."""

import json
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture
def supply(monkeypatch):
    monkeypatch.syspath_prepend(str(REPOSITORY / "docs"))
    import supply

    return supply


@pytest.fixture
def installed(supply):
    """What this package needs of what is installed, with versions; skipped where an extra is missing."""
    try:
        parts = supply.by_extra()
    except PackageNotFoundError as error:
        pytest.skip(f"not all extras are installed: {error}")
    return {name: supply.version_of(name) for part in parts.values() for name in part}


def test_every_installed_dependency_is_pinned_at_its_version(supply, installed):
    pins = supply.pins(supply.CONSTRAINTS.read_text(encoding="utf-8"))
    assert {
        "torch",
        "h11",
        "sqlalchemy",
    } <= installed.keys()  # its own, an extra's, and that one's
    assert installed == pins, "run: make supply"


def test_the_bill_lists_what_is_pinned_and_no_more(supply):
    found = json.loads(supply.SBOM.read_text(encoding="utf-8"))
    pins = supply.pins(supply.CONSTRAINTS.read_text(encoding="utf-8"))
    assert (found["bomFormat"], found["specVersion"]) == ("CycloneDX", "1.5")
    assert {one["name"]: one["version"] for one in found["components"]} == pins, "run: make supply"
    references = {one["bom-ref"] for one in (*found["components"], found["metadata"]["component"])}
    assert {one["ref"] for one in found["dependencies"]} == references
    assert {inner for one in found["dependencies"] for inner in one["dependsOn"]} <= references
    assert all(one["licenses"][0]["license"]["name"] != "not stated" for one in found["components"])
    assert {one["scope"] for one in found["components"]} == {"required", "optional"}


def test_the_bill_is_what_is_installed(supply, installed):
    assert json.loads(supply.SBOM.read_text(encoding="utf-8")) == supply.make_sbom(), "run: make supply"


def test_what_else_is_installed_does_not_matter(supply):
    names = supply.closure(["typer"])
    assert "typer" in names
    assert not {"torch", "pip", "pytest", "sla-torch"} & names.keys()
    assert supply.closure(["numpy"]) == {"numpy": set()}


def test_pins_by_hand_stay_above_those_of_what_they_need(supply, installed):
    text = supply.make_constraints(f"# why\nnumpy==1.0\n{supply.TRANSITIVE}\nold==3\n")
    assert text.startswith(f"# why\nnumpy==1.0\n{supply.TRANSITIVE}\nabsl-py==")
    assert "old" not in supply.pins(text)
    assert supply.pins(text)["numpy"] == "1.0"


def test_the_audit_says_what_it_could_not_check(supply, monkeypatch):
    records = {
        "a": {"info": {"version": "2"}, "vulnerabilities": []},
        "b/1": {"info": {"version": "1"}, "vulnerabilities": [{"id": "X-2"}, {"id": "X-1"}]},
        "c": {"info": {"version": "9"}, "vulnerabilities": []},
    }
    monkeypatch.setattr(supply, "_ask", records.get)
    found = supply.audit({"a": "2", "b": "1", "c": "1", "d": "1"})
    assert found.pop("date")
    assert found == {"records_of_versions": 1, "known": {"b": ["X-1", "X-2"]}, "unchecked": ["c", "d"]}
    said = supply._audit_text({"date": "today", **found}, 4)
    assert "of 2 packages, 1 have known vulnerabilities. b: X-1, X-2." in said
    assert "records of 1 of the 4 versions" in said
    assert "Not checked" in said
    assert "c, d" in said


def test_the_page_is_made_from_the_committed_files():
    code = "import runpy; print(runpy.run_path('docs/supply.py')['supply_page'](), end='')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=REPOSITORY)
    assert done.stdout == (REPOSITORY / "docs" / "supply.md").read_text(encoding="utf-8"), done.stderr
