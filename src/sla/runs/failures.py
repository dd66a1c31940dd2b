"""Out of disk or memory, as one line instead of a traceback."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist

from sla.disk import explain
from sla.errors import LostProcessError, SLAError
from sla.runs.folder import any_stage_begun

NO_MEMORY = "can't allocate memory"  # torch says so of the CPU, in a RuntimeError
CONNECTION = "gloo"  # in what its connections raise, a plain RuntimeError
LOST = "the connection to another process of the run was lost: it has ended, or its machine cannot be reached"
LESS = "a smaller run.batch_size, data.stored_size or model.resolution needs less"


@contextmanager
def explaining_failures(folder: Path) -> Iterator[None]:
    """What trains in a run's folder: an error of the system is one line, with what is left and what to do."""
    try:
        yield
    except BrokenPipeError:  # whoever read the output is gone: the command line knows what to do
        raise
    except OSError as error:
        raise SLAError(f"{explain(error, folder)}{_what_is_left(folder)}") from error
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise SLAError(f"out of memory: {LESS}{_what_is_left(folder)}") from error
    except RuntimeError as error:
        if NO_MEMORY in str(error):
            raise SLAError(f"out of memory: {LESS}{_what_is_left(folder)}") from error
        if isinstance(error, dist.DistError) or CONNECTION in str(error).lower():
            raise LostProcessError(f"{LOST}{_what_is_left(folder)}") from error
        raise


def _what_is_left(folder: Path) -> str:
    try:
        resumes = any_stage_begun(folder)
        return "; the last checkpoint is complete: --resume continues from it" if resumes else ""
    except OSError:
        return ""
