"""Every reader that is fuzzed, by name."""

from fuzzing import (
    archive_files,
    array_files,
    list_files,
    model_files,
    pickles,
    pictures,
    run_files,
    tree_files,
)
from fuzzing.guard import Reader

MODULES = (pictures, archive_files, pickles, array_files, list_files, tree_files, model_files, run_files)
READERS: dict[str, Reader] = {reader.name: reader for module in MODULES for reader in module.READERS}
