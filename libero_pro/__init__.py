"""LIBERO-Pro as a data engine."""
