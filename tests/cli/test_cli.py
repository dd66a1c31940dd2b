"""The command line from outside: exit codes, one line for a person, no stack of frames."""

import os
import re
import subprocess
import sys

import pytest
import typer.main
from typer.testing import CliRunner

import sla
from sla.cli import app, main
from sla.errors import InputError, SLAError, SLAWarning


def call(*words):
    return subprocess.run([sys.executable, "-m", "sla", *words], capture_output=True, text=True, timeout=120)


def test_wrong_input_is_one_line_and_exit_code_2(tmp_path):
    """`python -m sla` as a whole process; the folder of the page does not exist."""
    result = call("demo", "--seeds", "2", "--out", str(tmp_path / "nowhere" / "page.html"))
    assert result.returncode == 2
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("sla: ")
    assert "nowhere" in line


def test_a_page_that_cannot_be_written_is_refused_before_training(tmp_path, monkeypatch):
    monkeypatch.setattr("sla.demo.run", lambda *_: pytest.fail("it ran"))
    (tmp_path / "folder").mkdir()
    for place in (tmp_path / "folder", tmp_path / ("x" * 300 + ".html")):
        error = CliRunner().invoke(app, ["demo", "--seeds", "2", "--out", str(place)]).exception
        assert isinstance(error, InputError)
        assert str(error).startswith(str(place))
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def call_unread(*words):
    """The exit code and standard error of a command nobody reads the output of."""
    reader, writer = os.pipe()
    os.close(reader)
    command, rest = [sys.executable, "-m", "sla", *words], {"stderr": subprocess.PIPE, "timeout": 120}
    done = subprocess.run(command, stdout=writer, text=True, **rest)
    os.close(writer)
    return done.returncode, done.stderr


@pytest.mark.parametrize("words", [("--version",), ("data", "list"), ("demo", "--seeds", "2")], ids=" ".join)
def test_a_command_nobody_reads_ends_quietly(words, tmp_path):
    page = ("--out", str(tmp_path / "page.html")) if words[0] == "demo" else ()
    assert call_unread(*words, *page) == (1, "")


def test_training_goes_on_when_nobody_reads(tmp_path):
    out = tmp_path / "run"
    small = ("--backbone", "convnet4", "--set", "model.options={width: 8}", "--set", "run.compile=false")
    assert call_unread("train", "digits", "--out", str(out), "--iterations", "3", *small) == (0, "")
    assert (out / "result.json").is_file()


def test_unknown_command_and_version_from_outside():
    result = call("dmeo")
    assert result.returncode == 2
    assert "dmeo" in result.stderr
    assert "Traceback" not in result.stderr
    result = call("--version")
    assert (result.returncode, result.stdout.strip()) == (0, f"sla {sla.__version__}")


@pytest.mark.parametrize(
    "words", [["demo", "--seeds", "1"], ["demo", "--seeds", "two"], ["demo", "--sedes", "5"]]
)
def test_wrong_options_are_refused_before_anything_runs(words, monkeypatch):
    monkeypatch.setattr("sla.demo.run", lambda *_: pytest.fail("it ran"))
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 2
    assert words[1] in result.output


def commands(command, words=()):
    """Every command and group, with the words that call it."""
    yield words, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, (*words, name))


COMMANDS = dict(commands(typer.main.get_command(app)))


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_help_of_every_command_says_all(words):
    """Every option and every command below it, each with a word on what it is for."""
    result = CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "200"})
    assert result.exit_code == 0
    for parameter in COMMANDS[words].params:
        assert parameter.help, (words, parameter.name)
        for name in parameter.opts:
            shown = name if parameter.param_type_name == "option" else parameter.name.lower()
            assert shown in result.output.lower(), (words, name)
    for name, inner in getattr(COMMANDS[words], "commands", {}).items():
        assert inner.help
        assert name in result.output


@pytest.mark.parametrize(
    ("command", "others"),
    [
        ("predict", "anytime, distilled or flips"),
        ("serve", "anytime or distilled"),
        ("export", "or distilled"),
    ],
)
def test_help_names_the_inferences_that_the_command_takes(command, others):
    (option,) = (one for one in COMMANDS[(command,)].params if one.name == "inference")
    joint = " " if others.startswith("or") else ", "
    assert option.help.partition(".")[0] == f"single, aggregated{joint}{others}"


def test_help_is_grouped_by_purpose():
    """Every command is in a panel with others for the same purpose, and so is every option of `train`."""
    wide = {"COLUMNS": "200"}
    said = CliRunner().invoke(app, ["--help"], env=wide).output
    order = ["Train", "train", "Use a run", "predict", "Judge a run", "evaluate", "compare", "Images", "data"]
    places = [re.search(rf"─ {name} ─|^│ {name} ", said, re.M).start() for name in order]
    assert places == sorted(places)
    assert "─ Commands ─" not in said  # where commands without a panel would be
    said = CliRunner().invoke(app, ["train", "--help"], env=wide).output
    order = [
        "Method and model",
        "--method",
        "How long",
        "--minutes",
        "Compare",
        "--seeds",
        "Settings",
        "--set",
    ]
    places = [re.search(rf"─ {name} ─|^│ {name} ", said, re.M).start() for name in order]
    assert places == sorted(places)


def asked_by_bash(**environment):
    """What the command prints for a shell that completes; nothing heavy is loaded for it."""
    code = (
        "import sys; sys.argv[0] = 'sla'\n"
        "import sla.cli\n"
        "try: sla.cli.main([])\n"
        "finally: assert 'torch' not in sys.modules"
    )
    own = {"env": os.environ | environment, "capture_output": True, "text": True}
    done = subprocess.run([sys.executable, "-c", code], **own)
    assert done.returncode == 0, done.stderr
    return done.stdout


def completed(words):
    """What is offered for the last of these words."""
    asked = {"COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    return asked_by_bash(_SLA_COMPLETE="complete_bash", **asked).split()


def test_a_shell_completes_commands_options_and_names():
    assert completed("sla tr") == ["train"]
    assert completed("sla train --mi") == ["--mix", "--minutes"]
    assert completed("sla train --method sla+") == ["sla+sd", "sla+memory"]
    script = asked_by_bash(_SLA_COMPLETE="source_bash")
    assert "complete -o default -F _sla_completion sla" in script  # files where nothing else fits
    assert "--install-completion" in CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"}).output


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (InputError("7 is no colour"), 2, "sla: 7 is no colour"),
        (SLAError("the disk is full"), 1, "sla: the disk is full"),
        (KeyboardInterrupt(), 130, "sla: stopped"),
    ],
)
def test_errors_of_a_run(error, code, words, monkeypatch, capsys, tmp_path):
    def fail(*_):
        raise error

    monkeypatch.setattr("sla.demo.run", fail)
    monkeypatch.setattr("warnings.showwarning", None)  # put back after the test
    with pytest.raises(SystemExit) as caught:
        main(["demo", "--seeds", "2", "--out", str(tmp_path / "page.html")])
    assert caught.value.code == code
    assert capsys.readouterr().err.splitlines() == [words]
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_lost_another_does_not_wait_for_it(tmp_path):
    """Whatever of the group is taken apart at the end of a process may wait for an answer."""
    code = (
        "import sys, time, sla.cli, sla.demo\n"
        "from sla.errors import LostProcessError\n"
        "class Group:\n"
        "    def __del__(self): time.sleep(600)\n"
        "def lose(*_):\n"
        "    group = Group()\n"
        "    raise LostProcessError('process 1 was lost')\n"
        "sla.demo.run = lose\n"
        "sla.cli.main(sys.argv[1:])\n"
    )
    words = [sys.executable, "-c", code, "demo", "--seeds", "2", "--out", str(tmp_path / "page.html")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (1, "sla: process 1 was lost\n")


def test_a_warning_is_one_line(monkeypatch, capsys, tmp_path):
    import warnings

    def warn(*_):
        warnings.warn("class b has one image", SLAWarning)
        raise InputError("enough")

    monkeypatch.setattr("sla.demo.run", warn)
    monkeypatch.setattr("warnings.showwarning", None)
    warnings.simplefilter("default")  # pytest puts the filters back after each test
    with pytest.raises(SystemExit):
        main(["demo", "--seeds", "2", "--out", str(tmp_path / "page.html")])
    assert capsys.readouterr().err.splitlines() == ["sla: note: class b has one image", "sla: enough"]


def test_imports_and_help_are_light():
    """What answers at once loads no torch, and help not even numpy."""
    code = (
        "import sys, sla, sla.backbones, sla.cli, sla.cli.data\n"
        "try: sla.cli.main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'numpy', 'PIL'} & set(sys.modules)\n"
        "import sla.datasets.find\n"
        "sla.datasets.find.find('digits')\n"
        "heavy |= {'torch'} & set(sys.modules)\n"
        "sys.exit(f'loaded {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "demo" in done.stdout
