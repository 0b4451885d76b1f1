"""CPU threads: one function decides, for this process and for those it starts."""

import os
import subprocess
import sys

import pytest

from lerobot_coda.threads import set_threads, thread_environment, usable_cores


def test_a_started_process_really_has_that_many_threads() -> None:
    code = (
        "from lerobot_coda.threads import set_threads; set_threads(1)\n"
        "import numpy, torch, threadpoolctl\n"
        "print(torch.get_num_threads(), *[pool['num_threads'] for pool in threadpoolctl.threadpool_info()])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    counts = run.stdout.split()
    assert counts and set(counts) == {"1"}, run.stderr


def test_torch_is_told_when_it_is_loaded_already() -> None:
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    try:
        assert set_threads(2) == 2
        assert torch.get_num_threads() == 2
    finally:
        set_threads(1)
        torch.set_num_threads(before)


def test_default_is_the_usable_cores() -> None:
    if hasattr(os, "sched_getaffinity"):
        assert usable_cores() == len(os.sched_getaffinity(0))
    try:
        assert set_threads() == usable_cores()
    finally:
        set_threads(1)


def test_zero_threads_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        thread_environment(0)
