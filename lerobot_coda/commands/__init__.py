"""The commands of `lerobot-coda`, one a module: `add` puts it into the parser, `_run` does it."""
