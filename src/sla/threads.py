"""Threads that wait for each other give the processor back soon, where they are those of GNU OpenMP.

Every parallel part of a step ends when its slowest thread does, and by default the others spin for about a
millisecond before they sleep. If another program wants the processor meanwhile, it is the slowest thread that
has to wait. A shorter spin costs nothing on a quiet machine (docs/speed.md).
"""

import os

SPINS, POLICY = "GOMP_SPINCOUNT", "OMP_WAIT_POLICY"
SHORT = 20_000  # turns


def wait_briefly() -> None:
    """Shorten the spin of this process and of those it starts; a variable that is set already stays.

    The command line calls it at its start: OpenMP reads the variable when torch is imported.
    """
    if SPINS not in os.environ and POLICY not in os.environ:
        os.environ[SPINS] = str(SHORT)
