"""Commands as a user types them, in this process."""

from typer.testing import CliRunner

from sla.cli import app


def sla(*words):
    """What `sla WORDS` prints; it must succeed, and its errors are raised."""
    done = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output
