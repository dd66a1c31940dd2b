"""Write the pages that are made from the code: `python docs/generate.py` (also `make docs`).

`api.md` has every public name with its signature and docstring, `keys.md` every key of a run's configuration.
A test compares both with what this makes.
"""

import inspect
import re
import textwrap
from pathlib import Path

import sla
from sla.runs.config import describe_keys
from sla.tasks.registry import TASKS

FOLDER = Path(__file__).parent
NOTE = "Made by `python docs/generate.py`; not edited by hand."


def api_page() -> str:
    """Every public name, by the module it lives in."""
    lines = ["# API", "", NOTE, "", "Everything here is imported as `sla.NAME`.", ""]
    for module, names in sla._HOME.items():
        lines += [f"## sla.{module}", ""]
        for name in names:
            lines += [*_entry(name, getattr(sla, name)), ""]
    return "\n".join(lines)


def _entry(name: str, value: object) -> list[str]:
    lines = [f"### {name}", "", "```text", _signature(name, value), "```", "", *_doc(value)]
    if inspect.isclass(value):
        for method, function in vars(value).items():
            documented = inspect.isfunction(function) or isinstance(function, (classmethod, property))
            if documented and not method.startswith("_") and inspect.getdoc(function):
                heading = (
                    method if isinstance(function, property) else _signature(method, getattr(value, method))
                )
                lines += ["", f"`{heading}`: {_first(function)}"]
    return lines


def _signature(name: str, value: object) -> str:
    try:
        text = f"{name}{inspect.signature(value)}"  # type: ignore[arg-type]
        return re.sub(r"<(?:function |.*\.)?(\w+)(?: object)? at 0x\w+>", r"\1", text)
    except (TypeError, ValueError):
        return name


def _doc(value: object) -> list[str]:
    """The docstring; what is indented in it, as it is."""
    first, *rest = (inspect.getdoc(value) or "").split("\n\n")
    lines = [" ".join(first.split())]
    for part in rest:
        indented = any(line.startswith(" ") for line in part.splitlines())
        block = ["```text", textwrap.dedent(part), "```"] if indented else [" ".join(part.split())]
        lines += ["", *block]
    return lines


def _first(value: object) -> str:
    return " ".join((inspect.getdoc(value) or "").split("\n\n")[0].split())


def keys_page() -> str:
    """Every key of every task, as `--set` and a configuration file take them."""
    lines = ["# Every key of a run", "", NOTE, ""]
    lines += [
        "`sla train --set KEY=VALUE`, a file given by `--config`, and `config.yaml` in a run's folder have",
        "the same keys. A key without a default is chosen to fit the images and the machine, and said",
        "before training.",
    ]
    for task in TASKS.values():
        lines += ["", f"## task: {task.name}", "", "| key | default | meaning |", "|---|---|---|"]
        for key, default, meaning in describe_keys(task.config_class):
            lines.append(f"| `{key}` | {f'`{default}`' if default else ''} | {meaning} |")
    return "\n".join(lines) + "\n"


PAGES = {"api.md": api_page, "keys.md": keys_page}

if __name__ == "__main__":
    for name, make in PAGES.items():
        (FOLDER / name).write_text(make(), encoding="utf-8")
        print(f"written: docs/{name}")
