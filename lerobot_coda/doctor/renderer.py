"""Draws one picture in a process of its own, since a broken OpenGL driver may take its process down."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

_SCENE = """<mujoco><worldbody>
<light pos="0 0 3" dir="0 0 -1"/><camera name="front" pos="0 -1 0" xyaxes="1 0 0 0 0 1"/>
<geom type="sphere" size=".2" rgba="1 0 0 1" group="1"/>
</worldbody></mujoco>"""


def probe(environment: Mapping[str, str] | None = None, timeout_s: float = 120.0) -> dict[str, Any] | str:
    """{backend, renderer, red} of a picture of a red ball (red: share of its pixels), or how drawing ended in one line.

    environment  of the process that draws; default: this one's
    """
    command = [sys.executable, "-m", "lerobot_coda.doctor.renderer"]
    environment = {**(os.environ if environment is None else environment)}
    try:
        run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        return f"no picture after {timeout_s:.0f} s"
    if run.returncode == 0:
        return json.loads(run.stdout.splitlines()[-1])
    if run.returncode < 0:
        return f"the driver crashes (signal {-run.returncode})"
    return (run.stderr.strip().splitlines() or ["no message"])[-1]


def draw() -> dict[str, Any]:
    """Draws the ball; RecordError where no OpenGL context opens."""
    from libero_pro import gl
    from libero_pro.render import Frame, Renderer

    backend = gl.configure()
    import mujoco

    model = mujoco.MjModel.from_xml_string(_SCENE)
    with Renderer(model, cameras=("front",), size=64) as renderer:
        frame = Frame(np.zeros(0), model.body_pos.copy(), None, model.site_rgba.copy())
        image = renderer.render(frame)["front"].astype(int)
        from OpenGL import GL

        name = GL.glGetString(GL.GL_RENDERER)
    red = (image[..., 0] > 60) & (image[..., 1] < 30)
    return {"backend": backend, "renderer": name.decode() if name else "unknown", "red": float(red.mean())}


if __name__ == "__main__":
    print(json.dumps(draw()))
