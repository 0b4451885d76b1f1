"""Imported by LeRobot's plugin discovery, by its distribution name; registers policy `coda` and env `libero_pro`.

It stays light: every `lerobot-*` command and every environment worker imports it.
"""

import lerobot_coda.configuration_coda  # noqa: F401
import libero_pro.env  # noqa: F401
