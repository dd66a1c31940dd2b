"""The package as others get it: its version, its citation, and a wheel that works in an empty environment."""

import inspect
import re
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
import yaml

import sla

REPOSITORY = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]


def test_version_is_typed_alike_everywhere():
    citation = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text())
    assert sla.__version__ == PROJECT["version"] == str(citation["version"])


def test_citation_names_the_paper():
    citation = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
    assert citation["license"] == PROJECT["license"]
    released = f"## {citation['version']} ({citation['date-released']})"
    assert released in (REPOSITORY / "CHANGELOG.md").read_text().splitlines()
    paper = citation["preferred-citation"]  # what GitHub and Zenodo give as the work to cite
    assert paper["title"] == "Self-supervised Label Augmentation via Input Transformations"
    assert [author["family-names"] for author in paper["authors"]] == ["Lee", "Hwang", "Shin"]
    assert paper["year"] == 2020


def test_public_names_load_and_are_documented():
    typed = re.findall(r"(\w+) as \1\b", Path(sla.__file__).read_text())  # for type checkers
    assert sorted([*typed, "__version__"]) == sla.__all__
    assert dir(sla) == sla.__all__
    for name in sla.__all__:
        value = getattr(sla, name)
        assert name == "__version__" or value.__doc__, name
    with pytest.raises(AttributeError, match="nothing_of_this_name"):
        _ = sla.nothing_of_this_name


def run(*command, cwd):
    result = subprocess.run([str(word) for word in command], cwd=cwd, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.mark.slow
@pytest.mark.network
def test_wheel_runs_the_demo_and_trains_in_an_empty_environment(tmp_path):
    """Dependencies come from this environment, by a path file; the package from the wheel alone."""
    run(sys.executable, "-m", "pip", "wheel", REPOSITORY, "--no-deps", "-w", tmp_path, cwd=tmp_path)
    (wheel,) = tmp_path.glob("sla_torch-*.whl")
    held = set(zipfile.ZipFile(wheel).namelist())
    source = REPOSITORY / "src"
    there = {path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file()}
    assert {name for name in there if "__pycache__" not in name} <= held
    assert {"sla/py.typed", "sla/datasets/digits.npz", "sla/datasets/class_lists.json"} <= held

    home = tmp_path / "empty"
    venv.create(home, with_pip=True)
    python = home / "bin" / "python"
    run(python, "-m", "pip", "install", "--no-deps", "--no-index", wheel, cwd=tmp_path)
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = Path(run(python, "-c", code, cwd=tmp_path).strip())
    # A path file adds the folder of dependencies but does not read the path files in it: no editable sla.
    (site / "dependencies.pth").write_text(f"{Path(pytest.__file__).parents[1]}\n")
    where = run(python, "-c", "import sla; print(sla.__file__)", cwd=tmp_path).strip()
    assert Path(where).is_relative_to(home)
    said = run(home / "bin" / "sla", "demo", "--seeds", "2", cwd=tmp_path)
    assert "joint labels" in said
    assert (tmp_path / "sla-demo.html").stat().st_size > 10_000
    words = ["--recipe", "cifar10:smoke", "--iterations", "3", "--out", "run", "--set", "run.compile=false"]
    said = run(home / "bin" / "sla", "train", "digits", *words, cwd=tmp_path)
    assert "distilled" in said
    assert "<style>" in (tmp_path / "run" / "report.html").read_text()


USER_SCRIPT = REPOSITORY / "tests" / "typed" / "public_names.py"


def test_the_users_script_uses_every_public_name():
    text = USER_SCRIPT.read_text()
    assert [name for name in sla.__all__ if f"sla.{name}" not in text] == []


@pytest.mark.slow
def test_a_users_script_passes_mypy_strict(tmp_path):
    """The package as a user has it: its types are followed, its own files are not reported."""
    pytest.importorskip("mypy")
    (tmp_path / "mypy.ini").write_text("[mypy]\n")
    flags = ["--strict", "--follow-imports", "silent", "--config-file", tmp_path / "mypy.ini"]
    said = run(sys.executable, "-m", "mypy", *flags, USER_SCRIPT, cwd=REPOSITORY)
    assert "Success" in said


@pytest.mark.parametrize(
    "name", ["SLA", "Classifier", "create", "load", "fit", "open_run", "Objects", "StepContext", "Views"]
)
def test_help_explains_every_argument(name):
    value = getattr(sla, name)
    text = inspect.getdoc(value)
    for argument in inspect.signature(value).parameters:
        assert re.search(rf"^ +(\w+, )*{argument}(, \w+)*:", text, re.M), argument
