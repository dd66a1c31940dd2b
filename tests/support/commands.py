"""Commands as a user types them, in this process."""

import json

from typer.testing import CliRunner

from sla.cli import app


def sla(*words):
    """What `sla WORDS` prints; it must succeed, and its errors are raised."""
    return _done(words).output


def sla_json(*words):
    """What `sla WORDS --json` prints, without the progress that a slow machine has on stderr."""
    return json.loads(_done([*words, "--json"]).stdout)


def _done(words):
    done = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done
