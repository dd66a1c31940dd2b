"""Options by their old names: they still work, with a note, for one version."""

from typing import Any

from typer.core import TyperCommand

from sla.renamed import warn_renamed

OLD_NAMES = {"--how": "--inference", "--which": "--checkpoint"}


class WithOldNames(TyperCommand):
    """A command that takes an option by the name it had before."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Old names become new ones, up to `--`."""
        known = {name for parameter in self.params for name in parameter.opts}
        end = args.index("--") if "--" in args else len(args)
        return super().parse_args(ctx, [*(_renamed(word, known) for word in args[:end]), *args[end:]])


def _renamed(word: str, known: set[str]) -> str:
    name, equals, value = word.partition("=")
    new = OLD_NAMES.get(name)
    if new is None or new not in known or name in known:
        return word
    warn_renamed(name, new)
    return new + equals + value
