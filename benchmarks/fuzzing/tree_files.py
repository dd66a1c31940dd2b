"""Trees that people write: YAML, JSON, policies, configurations, catalogues, plans; by word and by value."""

import json
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import yaml

from fuzzing.guard import Reader
from fuzzing.mutate import TRAP, encoded, json_text, mutate_text, mutate_tree
from sla.augment.policy import make_policy, read_policy
from sla.datasets.catalogue import read_catalogue
from sla.errors import InputError
from sla.reproduce.plan import read_plan
from sla.runs.config import read_config, write_config
from sla.tasks.registry import make_config
from sla.trees import parse_json, parse_yaml

YAML_SEEDS = (
    "a: 1\nb: [x, 2.5, {c: null}]\nd: |\n  text\n",
    "- &one {a: 1, b: 2}\n- <<: *one\n  c: 3\n- [*one, *one]\n",
    "? [a, b]\n: !!set {x, y}\nd: 2020-01-02\ne: 0x1F\n",
    "run:\n  seed: 3\n  iterations: 10\nmethod: {name: sla, views: rot4}\n",
)
TAGS = (
    "!!int",
    "!!float",
    "!!bool",
    "!!timestamp",
    "!!binary",
    "!!set",
    "!!omap",
    "!!pairs",
    "!!null",
    "!!map",
    "!!seq",
)
TAGS += (
    "!!str",
    "!!merge",
    "!!value",
    "!!python/object/apply:os.system",
    f"!!python/name:{TRAP}.Name",
    "!own",
)
TOKENS = (
    *TAGS,
    "&a ",
    "*a",
    "*one",
    "<<: ",
    "? ",
    ": ",
    "- ",
    "\n",
    "  ",
    "[",
    "]",
    "{",
    "}",
    "'",
    '"',
    "|",
    ">",
    "---\n",
)
TOKENS += (
    "...\n",
    "%YAML 9.9\n",
    "#",
    "2020-13-45",
    "2020-01-01T25:61:61Z",
    "1:99:99",
    ".inf",
    ".nan",
    "0b2",
    "0o9",
    "~",
)


def make_yaml(rng: Random) -> bytes:
    kind = rng.random()
    if kind < 0.15:
        return _laughs(rng).encode()
    if kind < 0.3:
        words = (
            *TAGS,
            "a",
            "1",
            "''",
            "[]",
            "{}",
            "{a: 1}",
            "[1]",
            "&x",
            "*x",
            "? a",
            ": b",
            "\n",
            "- ",
            " ",
        )
        return encoded(rng, " ".join(rng.choice(words) for _ in range(rng.randrange(1, 15))))
    return encoded(rng, mutate_text(rng, rng.choice(YAML_SEEDS), TOKENS))


def _laughs(rng: Random) -> str:
    """Anchors that repeat each other, wide or deep, in lists, keys or merges, the last one first."""
    count, width = rng.choice(((4, 3), (9, 9), (30, 2), (60, 1), (110, 1), (200, 1)))
    form = rng.choice(("[{}]", "{{<<: [{}]}}", "{{k: [{}]}}", "{{? [{}] : 1}}", "!!set {{{}}}"))
    lines = ["- - - &a0 {x: 1}"]
    lines += [f"    - &a{i} " + form.format(", ".join([f"*a{i - 1}"] * width)) for i in range(1, count)]
    last = rng.choice((f"- *a{count - 1}", f"- {{<<: *a{count - 1}}}", f"- ? *a{count - 1}\n  : 1"))
    return "\n".join([*lines, last])


def open_yaml(_: Path):
    def read(path: Path) -> None:
        try:
            tree = parse_yaml(path.read_text(encoding="utf-8"))
        except ValueError as error:  # as those who call it report it
            raise InputError(f"{path}: {error}") from None
        repr(tree)  # what an error message does with it

    return read


def make_json(rng: Random) -> bytes:
    tree = {"a": [1, 2.5, "x", None, True], "b": {"c": {"d": []}}}
    return encoded(rng, json_text(rng, mutate_tree(rng, tree)))


def open_json(_: Path):
    def read(path: Path) -> None:
        try:
            tree = parse_json(path.read_bytes())
        except ValueError as error:
            raise InputError(f"{path}: {error}") from None
        repr(tree)
        json.dumps(tree)

    return read


POLICY = [[["Rotate", 0.5, 0.3], ["Invert", 1, 0]], [["Color", 0.1, 0.9]]]


def make_policy_file(rng: Random) -> bytes:
    tree: Any = POLICY if rng.random() < 0.5 else {"scale": 10, "sub_policies": POLICY, "name": "x"}
    return encoded(
        rng, json_text(rng, mutate_tree(rng, tree, ("Rotate", "Posterize", "Cutout", [["Rotate", 1, 1]])))
    )


def open_policy(_: Path):
    def read(path: Path) -> None:
        policy = make_policy(read_policy(path), str(path))
        assert np.isfinite(policy._table).all()
        assert policy.plain()

    return read


@cache
def config_trees() -> list[dict[str, Any]]:
    """Full configurations of every task, as runs keep them."""
    data = {"source": "digits"}
    trees = [{"data": data}, {"task": "fewshot", "data": data}, {"task": "simclr", "data": data}]
    return [yaml.safe_load(write_config(make_config(tree))) | tree for tree in trees]


SHORT = 400  # characters: YAML is read slowly


def make_config_file(rng: Random) -> bytes:
    """A few branches, each with a few of its keys: reading a whole one takes ten times as long."""
    tree = rng.choice(config_trees())
    part: dict[str, Any] = {key: tree[key] for key in ("task", "data") if key in tree}
    for key in rng.sample(list(tree), 2):
        value = tree[key]
        part[key] = (
            {name: value[name] for name in rng.sample(list(value), min(3, len(value)))}
            if isinstance(value, dict)
            else value
        )
    tree = mutate_tree(
        rng, part, ("crop(4), flip", "mixup(0.2)", f"{TRAP}:Name", [0.5, 0.5], "cosine", {"width": 8})
    )
    try:
        text = yaml.safe_dump(tree) if rng.random() < 0.5 else json.dumps(tree)
    except (RecursionError, ValueError, yaml.YAMLError):
        text = "run: {seed: 0x" + "f" * 5000 + "}"
    return encoded(rng, (mutate_text(rng, text, TOKENS) if rng.random() < 0.3 else text)[:SHORT])


def open_config(_: Path):
    def read(path: Path) -> None:
        assert make_config(read_config(path), str(path)).model_dump(mode="json")

    return read


WEB = {
    "title": "site",
    "base": "https://example.org/",
    "files": [{"url": "a.zip", "checksum": "md5:" + "0" * 32, "bytes": 9}],
}
ENTRY: dict[str, Any] = {
    "title": "Birds",
    "num_classes": 2,
    "splits": {"train": 4, "test": 2},
    "shape": [3, 8, 8],
}
CATALOGUE = [
    {"birds": {**ENTRY, "routes": [WEB]}},
    {"birds": {**ENTRY, "mean": [0.5, 0.5, 0.5], "std": [0.2, 0.2, 0.2], "folders": ["b"]}},
    {
        "birds": {
            **ENTRY,
            "class_folders": {"splits": {"train": "train"}},
            "few_shot": True,
            "installed": ["x"],
        }
    },
]


def make_catalogue(rng: Random) -> bytes:
    return _yaml_bytes(
        rng, mutate_tree(rng, rng.choice(CATALOGUE), ("birds", {"train": 3}, [{"title": "x"}]))
    )


def _yaml_bytes(rng: Random, tree: Any) -> bytes:
    try:
        text = json.dumps(tree)
    except (RecursionError, ValueError):
        text = "[" * 200
    return encoded(rng, (mutate_text(rng, text, TOKENS) if rng.random() < 0.2 else text)[:SHORT])


def make_plan(rng: Random) -> bytes:
    tree = [
        {"experiment": "table1", "columns": ["cifar10"], "rows": [], "seeds": 3, "budget": "a"},
        {"experiment": "x"},
    ]
    return _yaml_bytes(rng, mutate_tree(rng, tree))


READERS = [
    Reader("YAML", make_yaml, open_yaml),
    Reader("JSON", make_json, open_json),
    Reader("policy", make_policy_file, open_policy, "p.json"),
    Reader("configuration", make_config_file, open_config, "config.yaml"),
    Reader("catalogue", make_catalogue, lambda _: read_catalogue, "catalogue.yaml"),
    Reader("plan of runs", make_plan, lambda _: read_plan, "plan.yaml"),
]
