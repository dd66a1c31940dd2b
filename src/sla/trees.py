"""Trees of plain values from YAML and JSON that anyone may have written: of bounded size, each key once."""

import json
from typing import Any

import yaml

DEEPEST = 100  # levels
LARGEST = 1_000_000  # values, each as often as anchors repeat it


def parse_yaml(text: str) -> Any:
    """The tree of a YAML document; what is wrong with it is the one line of a ValueError.

    Refused, beside what is no YAML: a key that is there twice (YAML would take the last), deep nesting, and
    anchors that repeat their content into something huge.
    """
    try:
        return yaml.load(text, _Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = "" if mark is None else f" in line {mark.line + 1}"
        raise ValueError(f"{error.problem or error.context}{where}") from None
    except yaml.YAMLError as error:
        raise ValueError(str(error).partition("\n")[0]) from None


def parse_json(text: str | bytes) -> Any:
    """The tree of a JSON document; deep nesting is a ValueError too."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


class _Loader(yaml.SafeLoader):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.depth = 0
        self.sizes: dict[int, int] = {}  # of nodes, by identity

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """As PyYAML's own, to a limited depth and size."""
        self.depth += 1
        event = self.peek_event()
        mark = event.start_mark
        if self.depth > DEEPEST:
            raise yaml.composer.ComposerError(None, None, f"nested deeper than {DEEPEST} levels", mark)
        node = super().compose_node(parent, index)
        self.depth -= 1
        if node is not None and id(node) not in self.sizes:
            if isinstance(event, yaml.AliasEvent):
                raise yaml.composer.ComposerError(None, None, "an anchor inside itself", mark)
            below = node.value if isinstance(node, yaml.CollectionNode) else []
            parts = [part for one in below for part in (one if isinstance(one, tuple) else (one,))]
            self.sizes[id(node)] = 1 + sum(self.sizes[id(part)] for part in parts)
            if self.sizes[id(node)] > LARGEST:
                raise yaml.composer.ComposerError(None, None, f"more than {LARGEST:,} values", mark)
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """As PyYAML's own, each key once."""
        lines: dict[str, int] = {}
        for key, _ in node.value:
            name, line = str(key.value), key.start_mark.line + 1
            if name in lines:
                problem = f"the key {name!r} is there twice, in lines {lines[name]} and {line}"
                raise yaml.constructor.ConstructorError(problem=problem)
            lines[name] = line
        return super().construct_mapping(node, deep)
