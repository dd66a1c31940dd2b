"""Freed memory stays with the process, in huge pages, where the C library is glibc.

A training step frees and takes the same tensors again and again. By default glibc returns large ones to the
system at once and the system clears each page when it is taken again, which costs more than the arithmetic of
small networks. Results stay the same to the byte; the process keeps the memory of its largest step.
"""

import ctypes
import os
import sys

from sla.errors import InputError, nearest

SWITCH = "SLA_ALLOCATOR"  # keep (default), or default: leave the C library as it is
CHOICES = ("keep", "default")
NEVER = -1
TOP_PAD = 64 << 20  # bytes that the heap grows by, beyond what was asked for
# mallopt's number, the variable that child processes read, and the value of each setting
SETTINGS = (
    (-4, "MALLOC_MMAP_MAX_", 0),  # no mapping of its own for a large block: it would be returned when freed
    (-1, "MALLOC_TRIM_THRESHOLD_", NEVER),
    (-2, "MALLOC_TOP_PAD_", TOP_PAD),
)
TUNABLES, HUGE_PAGES = "GLIBC_TUNABLES", "glibc.malloc.hugetlb=1"
MADV_HUGEPAGE = 14


def keep_memory() -> bool:
    """Make this process, and those it starts, keep the memory they free; True where that was possible.

    The command line calls it at its start. Your own program calls it before it trains; nothing is set by an
    import. SLA_ALLOCATOR=default turns it off, and a variable of glibc that is set already (MALLOC_TOP_PAD_)
    stays. On other systems and C libraries it does nothing.
    """
    chosen = os.environ.get(SWITCH) or CHOICES[0]
    if chosen not in CHOICES:
        raise InputError(f"{SWITCH} is {' or '.join(CHOICES)}, not {chosen!r}{nearest(chosen, CHOICES)}")
    libc = _glibc()
    if chosen == "default" or libc is None:
        return False
    for number, variable, value in SETTINGS:
        if variable not in os.environ:
            libc.mallopt(number, value)
            os.environ[variable] = str(value)
    if TUNABLES not in os.environ:  # read when a process starts: this one asks for its pages itself
        _ask_for_huge_pages(libc)
        os.environ[TUNABLES] = HUGE_PAGES
    return True


def _glibc() -> ctypes.CDLL | None:
    """The C library, if it is glibc: its own functions, also where another allocator was loaded before it."""
    if sys.platform != "linux":
        return None
    try:
        libc = ctypes.CDLL("libc.so.6")
        libc.gnu_get_libc_version  # noqa: B018  # AttributeError: another one
    except (OSError, AttributeError):
        return None
    return libc


def _ask_for_huge_pages(libc: ctypes.CDLL) -> None:
    """Grow the heap by half of the machine's memory, addresses only, and ask for huge pages in it.

    Nothing is taken from the system until it is written to. Where addresses are limited, nothing changes.
    """
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    libc.free.argtypes = [ctypes.c_void_p]
    page = os.sysconf("SC_PAGE_SIZE")
    size = os.sysconf("SC_PHYS_PAGES") * page // 2
    block = libc.malloc(size)
    if not block:
        return
    start = -(-block // page) * page
    libc.madvise(start, (block + size - start) // page * page, MADV_HUGEPAGE)
    libc.free(block)
