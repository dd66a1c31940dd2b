"""YAML and JSON that anyone may have written."""

import json

import pytest
import yaml

from refusals import refused
from sla.datasets.catalogue import read_catalogue
from sla.model_file import KEY, read_model_file
from sla.reproduce.plan import read_plan
from sla.runs.config import parse_assignment, read_config
from sla.trees import parse_json, parse_yaml, read_text

DEEP = "[" * 5000 + "]" * 5000
LAUGHS = "a: &a [x, x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1 or ''}, *a{i - 1 or ''}]\n" for i in range(1, 40))


@pytest.mark.parametrize("text", ["a: {b: [1, 2.5, null, yes, 'x']}", "&a [1, 2]", "- &b {c: 1}\n- *b", ""])
def test_plain_yaml_is_what_pyyaml_reads(text):
    assert parse_yaml(text) == yaml.safe_load(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (DEEP, "nested deeper than 100 levels in line 1"),
        ("{a: " * 5000, "nested deeper"),
        ("- " * 5000, "nested deeper"),
        ("a: 1\nb: 2\na: 3", "the key 'a' is there twice, in lines 1 and 3"),
        ("&a [*a]", "an anchor inside itself in line 1"),
        (LAUGHS, "more than 1,000,000 values"),
        ("a: [", "expected the node content"),
        ("!!python/object/apply:os.system [true]", "could not determine a constructor"),
    ],
)
def test_what_no_reader_should_follow_is_one_line(text, words):
    with pytest.raises(ValueError, match=words) as caught:
        parse_yaml(text)
    assert "\n" not in str(caught.value)


def test_every_reader_refuses_deep_nesting_and_keys_twice(tmp_path):
    path = tmp_path / "file.yaml"
    for text in (f"a: {DEEP}", "a: {b: 1, b: 2}"):
        for read in (read_config, read_plan, read_catalogue):
            path.write_text(text)
            refused("file.yaml: not .*(nested deeper|is there twice)", read, path)
    refused("--set augment: .* is not a value: nested deeper", parse_assignment, f"augment={DEEP}")


def test_deep_json_is_a_value_error(tmp_path):
    import torch
    from safetensors.torch import save_file

    assert parse_json('{"a": [1]}') == json.loads('{"a": [1]}')
    with pytest.raises(ValueError, match="nested deeper than 100"):
        parse_json("[" * 100_000)
    save_file({"x": torch.zeros(1)}, tmp_path / "model.safetensors", {KEY: "[" * 100_000})
    refused("not a model", read_model_file, tmp_path / "model.safetensors", "a model")


def test_a_file_without_an_end_is_refused(stopped):
    with pytest.raises(ValueError, match="more than 64 MiB of text"):
        read_text("/dev/zero")
    for words in (("train", "digits", "--config"), ("reproduce", "plan")):
        assert "more than 64 MiB of text" in stopped(2, *words, "/dev/zero")


def test_a_model_file_whose_description_is_null_is_none(tmp_path):
    path, header = tmp_path / "a.safetensors", b'{"__metadata__":null}'
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    refused("not a model", read_model_file, path, "a model")
