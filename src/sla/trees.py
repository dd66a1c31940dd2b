"""Trees of plain values from YAML and JSON that anyone may have written: of bounded size, each key once."""

import json
import re
from pathlib import Path
from typing import Any

import yaml

DEEPEST = 100  # levels, also where anchors are followed
LONGEST = 400  # characters of a number
LONGEST_FILE = 2**26  # bytes
HALF = re.compile(r"[\ud800-\udfff]")  # of a pair, which alone is no character
ESCAPED_HALF = re.compile(r"\\u[dD][89a-fA-F]")
LARGEST = 1_000_000  # values, each as often as anchors repeat it


def read_text(path: str | Path) -> str:
    """The text of a file that a person wrote; a ValueError where it has no end, or is far too long."""
    with open(path, "rb") as file:
        content = file.read(LONGEST_FILE + 1)
    if len(content) > LONGEST_FILE:
        raise ValueError(f"more than {LONGEST_FILE // 2**20} MiB of text")
    return content.decode("utf-8")


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
    except (AttributeError, IndexError, KeyError, TypeError, OverflowError):  # of PyYAML, at `!!int ""`
        raise ValueError("a value that is not what its tag says") from None


def parse_json(text: str | bytes) -> Any:
    """The tree of a JSON document; deep nesting, and text that cannot be written, are a ValueError too."""
    if isinstance(text, bytes):
        text = text.decode(json.detect_encoding(text))
    try:
        tree = json.loads(text)
        if ESCAPED_HALF.search(text) or HALF.search(text):
            json.dumps(tree, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError(f"nested deeper than {DEEPEST} levels") from None
    level = [tree]
    for _ in range(DEEPEST):
        inner = (
            one.values() if isinstance(one, dict) else one for one in level if isinstance(one, dict | list)
        )
        level = [part for parts in inner for part in parts if isinstance(part, dict | list)]
        if not level:
            return tree
    raise ValueError(f"nested deeper than {DEEPEST} levels")


class _Loader(yaml.SafeLoader):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.depth = 0
        self.sizes: dict[int, int] = {}  # of nodes, by identity
        self.heights: dict[int, int] = {}  # levels below and with a node

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
            self.heights[id(node)] = 1 + max((self.heights[id(part)] for part in parts), default=0)
            if self.sizes[id(node)] > LARGEST:
                raise yaml.composer.ComposerError(None, None, f"more than {LARGEST:,} values", mark)
            if self.heights[id(node)] > DEEPEST:
                raise yaml.composer.ComposerError(None, None, f"nested deeper than {DEEPEST} levels", mark)
        return node

    def construct_yaml_str(self, node: yaml.ScalarNode) -> str:
        """As PyYAML's own, of characters that can be written."""
        found = super().construct_yaml_str(node)
        if HALF.search(found):
            raise yaml.constructor.ConstructorError(problem="half a character", problem_mark=node.start_mark)
        return found

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        """As PyYAML's own, of no more digits than Python writes again."""
        if len(node.value) > LONGEST:
            raise yaml.constructor.ConstructorError(
                problem=f"a number of more than {LONGEST} digits", problem_mark=node.start_mark
            )
        return super().construct_yaml_int(node)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """As PyYAML's own, each key once."""
        lines: dict[str, int] = {}
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            name, line = str(key.value), key.start_mark.line + 1
            if name in lines:
                problem = f"the key {name!r} is there twice, in lines {lines[name]} and {line}"
                raise yaml.constructor.ConstructorError(problem=problem)
            lines[name] = line
        return super().construct_mapping(node, deep)


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)
_Loader.add_constructor("tag:yaml.org,2002:str", _Loader.construct_yaml_str)
