"""Backbones: where a policy's features and action chunks come from."""
