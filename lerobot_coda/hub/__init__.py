"""A run on the Hugging Face Hub: its datasets, checkpoints, memory and report, one complete revision at a time."""

from lerobot_coda.hub.push import Target, prepare, push, push_so_far

__all__ = ["Target", "prepare", "push", "push_so_far"]
