"""Every reader that is fuzzed, by name."""

from fuzzing import archive_files, array_files, pictures, run_files, text_files
from fuzzing.guard import Reader

READERS: dict[str, Reader] = {
    reader.name: reader
    for module in (pictures, archive_files, array_files, text_files, run_files)
    for reader in module.READERS
}
