"""Picks the off-screen OpenGL backend: EGL, else OSMesa, else one sentence that names the missing packages."""

import ctypes
import importlib
import os
from typing import Any

from libero_pro.record import RecordError

BACKENDS = ("egl", "osmesa")
_NO_GL = (
    "no off-screen OpenGL: neither EGL nor OSMesa can be loaded; "
    "on Debian or Ubuntu run `apt-get install libegl1 libgl1-mesa-dri libosmesa6`"
)


def configure() -> str | None:
    """Sets MUJOCO_GL (unless the user did) and Mesa's thread count; returns the backend, None if there is none.

    Never raises, so that physics works on a machine without OpenGL. Software Mesa starts a thread a core by default,
    which is slower per image than drawing in the calling thread.
    """
    os.environ.setdefault("LP_NUM_THREADS", "0")
    chosen = os.environ.get("MUJOCO_GL", "").lower().strip()
    if chosen in BACKENDS:
        return chosen
    backend = "egl" if _egl_devices() > 0 else "osmesa" if _loads("libOSMesa.so.8", "libOSMesa.so") else None
    os.environ["MUJOCO_GL"] = backend or "disable"
    return backend


def context(width: int, height: int) -> Any:
    """A new off-screen OpenGL context (`make_current()`, `free()`); RecordError if the machine offers none."""
    backend = configure()
    if backend is None:
        raise RecordError(_NO_GL)
    try:
        return importlib.import_module(f"mujoco.{backend}").GLContext(width, height)
    except (ImportError, RuntimeError, AttributeError) as error:
        raise RecordError(f"the OpenGL backend '{backend}' (MUJOCO_GL) does not start: {error}; {_NO_GL}") from None


def _loads(*libraries: str) -> Any:
    for library in libraries:
        try:
            return ctypes.CDLL(library)
        except OSError:
            continue
    return None


def _egl_devices() -> int:
    """How many devices EGL can draw on without a display; 0 if it is not installed."""
    egl = _loads("libEGL.so.1", "libEGL.so")
    if egl is None:
        return 0
    egl.eglGetProcAddress.restype = ctypes.c_void_p
    egl.eglGetProcAddress.argtypes = [ctypes.c_char_p]
    address = egl.eglGetProcAddress(b"eglQueryDevicesEXT")
    if not address:
        return 0
    query = ctypes.CFUNCTYPE(ctypes.c_uint, ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int))(address)
    found = ctypes.c_int(0)
    return found.value if query(0, None, ctypes.byref(found)) else 0
