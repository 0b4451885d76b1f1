"""Planted faults: what each is, and what the doctor must say of it."""
