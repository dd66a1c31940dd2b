"""Methods, views, criteria and backbones of your own by name, as in `package.module:Name`.

A name is imported only after the person at the keyboard allowed it: by typing it as an option, by `--allow`,
or by `sla.allow` in Python. What a configuration, a run or a model file says is never reason enough.
"""

import contextlib
import importlib
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sla.errors import InputError, SLAError

NAME = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
KEYS = ("method.name", "method.views", "method.criterion", "model.backbone")  # that may have such a name
PASSED = "object."  # objects that were passed from Python: object.backbone:Name, object.views:Name, ...
_allowed: set[str] = set()
_passed: dict[str, Any] = {}


def allow(*names: str) -> None:
    """Let these names be imported, in this process."""
    for name in names:
        if not is_plugin_name(name):
            raise InputError(f"{name!r} is not the name of an object of your own: package.module:Name")
        _allowed.add(name)


def allow_typed(settings: Mapping[str, Any]) -> None:
    """Allow what a person typed as the value of a key, as in `--method mine:Class`."""
    for key in KEYS:
        allow(*filter(is_plugin_name, (term.strip() for term in str(settings.get(key) or "").split("*"))))


@contextlib.contextmanager
def passing(**objects: Any) -> Iterator[None]:
    """Within the block the names `object.ROLE:...` mean these objects, by role; None: not passed.

    Such a name stands in a configuration or a file for what only Python has: a module, a function.
    """
    before = dict(_passed)
    _passed.update({role: value for role, value in objects.items() if value is not None})
    try:
        yield
    finally:
        _passed.clear()
        _passed.update(before)


def passed_name(role: str, value: Any) -> str:
    """`object.backbone:TinyNet`, the name of an object that is passed from Python."""
    name = getattr(value, "__name__", type(value).__name__)
    return f"{PASSED}{role}:{re.sub(r'^(?=[^A-Za-z_])|[^A-Za-z0-9_]', '_', name)}"


def is_passed(name: str) -> bool:
    """Whether this is the name of an object that was passed from Python."""
    return name.startswith(PASSED) and is_plugin_name(name)


def is_plugin_name(name: str) -> bool:
    """Whether this reads as `package.module:Name`."""
    return NAME.fullmatch(name) is not None


def is_allowed(name: str) -> bool:
    """Whether this name may be imported."""
    return name in _allowed or is_passed(name)


def import_plugin(name: str) -> Any:
    """The object of this name, which must have been allowed; modules are found in the current folder too."""
    if is_passed(name):
        role, _, what = name.removeprefix(PASSED).partition(":")
        if role not in _passed:
            raise InputError(
                f"{role}: an object that was passed from Python ({what}): pass it again, {role}=..., to "
                "sla.fit, sla.open_run or sla.load"
            )
        return _passed[role]
    if not is_plugin_name(name):
        raise InputError(f"{name!r} is not the name of an object of your own: package.module:Name")
    if name not in _allowed:
        raise InputError(
            f"{name} is custom code, and you have not allowed it: add --allow {name} if you trust it "
            f"(in Python: sla.allow({name!r}))"
        )
    module, _, attribute = name.partition(":")
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise SLAError(f"{name}: importing {module} failed: {error}") from error
        raise InputError(f"{name}: no module {error.name!r} is installed, nor is it in {here}") from None
    except Exception as error:
        raise SLAError(f"{name}: importing {module} failed: {type(error).__name__}: {error}") from error
    finally:
        sys.path.remove(here)
    if not hasattr(found, attribute):
        raise InputError(f"{name}: {module} has no {attribute!r}")
    return getattr(found, attribute)


def name_of(kind: type) -> str:
    """The name under which an object of this class is saved: one to import, or one that Python must pass."""
    name = f"{kind.__module__}:{kind.__qualname__}"
    was_passed = isinstance(_passed.get("method"), kind) or kind.__module__ == "__main__"
    return passed_name("method", kind) if was_passed or not is_plugin_name(name) else name
