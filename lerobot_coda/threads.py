"""One place that says how many CPU threads a process may use."""

import os
import sys

# Software OpenGL renders on the calling thread with 0; its default of one thread per core fights with the workers.
_SOFTWARE_GL = "LP_NUM_THREADS"
_LIBRARIES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS", "NUMBA_NUM_THREADS")


def usable_cores() -> int:
    """Cores this process may run on: fewer than the machine's under taskset or in many containers."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def thread_environment(threads: int) -> dict[str, str]:
    """Environment variables that hold a process started with them to `threads` threads per library."""
    if threads < 1:
        raise ValueError(f"threads is {threads}: a process needs at least one thread")
    return {**{name: str(threads) for name in _LIBRARIES}, _SOFTWARE_GL: "0"}


def set_threads(threads: int | None = None) -> int:
    """Holds this process and the processes it starts to `threads` threads (default: the usable cores); returns it.

    Call it before numpy is imported, which reads the environment once; torch is told as well where it is loaded.
    Worker processes pass 1: they are as many as there are cores.
    """
    threads = usable_cores() if threads is None else threads
    os.environ.update(thread_environment(threads))
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(threads)
    return threads
