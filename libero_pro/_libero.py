"""The only module that imports LIBERO and robosuite: quietly, without a renderer, with the simulator's hooks."""

import contextlib
import importlib
import io
import logging
import os
import warnings
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from libero_pro import gl
from libero_pro.bddl import read_problem
from libero_pro.record import RecordError

_NO_CONTACTS = 1 << 4  # mujoco.mjtDisableBit.mjDSBL_CONTACT, without importing MuJoCo


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Drops what the libraries print while they are imported or build a scene."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


def quiet_import(name: str = "libero.libero.envs") -> Any:
    """Imports LIBERO (or one of its or robosuite's modules) without its prints and warnings, and returns it."""
    backend = gl.configure()
    logging.getLogger("robosuite_logs").setLevel(logging.ERROR)
    with _silence():
        macros: Any = importlib.import_module("robosuite.macros")
        if backend is None:
            # Else robosuite insists on EGL at import, and physics would need OpenGL.
            macros.MUJOCO_GPU_RENDERING = False
            os.environ["MUJOCO_GL"] = "disable"
        importlib.import_module("libero.libero.envs")
        return importlib.import_module(name)


def physics_env(bddl_path: Path) -> Any:
    """A robosuite environment of the BDDL file, without renderer or observables, that resets softly.

    `env.pristine` holds the model arrays that resets and episodes change, as compiled: a soft reset that starts from
    them equals LIBERO's hard reset bit for bit.
    """
    envs = quiet_import()
    problem = read_problem(bddl_path).name
    if problem not in envs.TASK_MAPPING:
        raise RecordError(f"{bddl_path}: problem class '{problem}' is unknown to LIBERO; use a released BDDL file")
    base = envs.TASK_MAPPING[problem]
    # LIBERO checks the class name against the BDDL file, so the subclass keeps it.
    lean = type(base)(base.__name__, (_LeanHooks, base), {})
    config = quiet_import("robosuite.controllers").load_controller_config(default_controller="OSC_POSE")
    with _silence():
        env = lean(
            str(bddl_path),
            robots=["Panda"],
            controller_configs=config,
            gripper_types="default",
            initialization_noise=None,
            use_camera_obs=False,
            has_renderer=False,
            has_offscreen_renderer=False,
            control_freq=20,
            ignore_done=True,
            hard_reset=False,
        )
    # Each of LIBERO's hard resets appends its drawer and knob samplers again, so the protocol's first reset after the
    # constructor draws them twice; to draw the same fixtures from the same seed, so must the soft reset.
    env.property_samplers = list(env.object_property_initializers)
    return env


def draw_reset(env: Any, seed: int) -> None:
    """`env.seed(seed); env.reset()` as the LIBERO protocol does it; the caller's global random state is kept."""
    randomization_error = quiet_import("robosuite.utils.errors").RandomizationError
    kept, options = np.random.get_state(), env.sim.model.opt
    flags = options.disableflags
    np.random.seed(seed)
    try:
        # Before they are placed all objects overlap at the origin; their thousand contacts influence no result.
        options.disableflags = flags | _NO_CONTACTS
        for resets in range(2, 102):
            for name, value in env.pristine.items():
                getattr(env.sim.model, name)[:] = value
            env.robots[0].gripper.current_action = np.zeros(1)
            env.object_property_initializers = env.property_samplers * resets
            try:
                env.reset()
                return
            except randomization_error:
                continue
    finally:
        options.disableflags = flags
        np.random.set_state(kept)
    raise RecordError(f"seed {seed}: LIBERO finds no free place for every object; use another seed")


class _LeanHooks:
    """Mixed into a LIBERO problem class: no observables, pristine arrays kept, contacts by geom number."""

    sim: Any
    pristine: dict[str, np.ndarray]

    def _initialize_sim(self, xml_string: str | None = None) -> None:
        super()._initialize_sim(xml_string)  # type: ignore[misc]
        self.pristine = {name: getattr(self.sim.model, name).copy() for name in ("body_pos", "body_quat", "site_rgba")}
        self._geom_sets: dict[tuple[str, ...], np.ndarray] = {}

    def _setup_observables(self) -> OrderedDict:
        return OrderedDict()

    def check_contact(self, geoms_1: Any, geoms_2: Any = None) -> bool:
        """robosuite's test (any geom of one group touches any of the other) without its per-contact name look-ups."""
        pairs = self.sim.data.contact.geom
        if not len(pairs):
            return False
        in_1 = self._geom_mask(geoms_1)[pairs]
        in_2 = self._geom_mask(geoms_2)[pairs] if geoms_2 is not None else np.ones_like(in_1)
        return bool(((in_1[:, 0] & in_2[:, 1]) | (in_1[:, 1] & in_2[:, 0])).any())

    def _geom_mask(self, geoms: Any) -> np.ndarray:
        """(ngeom,) bool, true for the geoms of a name, a list of names or a robosuite model."""
        names = (geoms,) if isinstance(geoms, str) else tuple(getattr(geoms, "contact_geoms", geoms))
        if names not in self._geom_sets:
            mask = np.zeros(self.sim.model.ngeom, bool)
            mask[[self.sim.model.geom_name2id(name) for name in names]] = True
            self._geom_sets[names] = mask
        return self._geom_sets[names]
