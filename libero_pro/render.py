"""Renderer: images on demand, from a live simulator or stored frames; faithful to robosuite, or 2-3 times faster."""

import atexit
import contextlib
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from libero_pro import gl, looks, unseen
from libero_pro.episode import Episode
from libero_pro.record import RecordError
from libero_pro.scene import Look

Profile = Literal["faithful", "fast"]
CAMERAS = {"agentview": "agentview", "wrist": "robot0_eye_in_hand"}  # our name -> name in the model


@dataclass(frozen=True)
class Frame:
    """What determines an image: positions, and the model arrays that differ between scenes or instants.

    qpos (nq,), body_pos (nbody, 3), site_rgba (nsite, 4); body_quat (nbody, 4), None to keep the model's. `look` is
    the scene's, None for the model's own camera, lamps and colors.
    """

    qpos: np.ndarray
    body_pos: np.ndarray
    body_quat: np.ndarray | None
    site_rgba: np.ndarray
    look: Look | None = None

    @classmethod
    def of(cls, episode: Episode, step: int) -> "Frame":
        """The image instant `step` (0 = start) of a stored episode."""
        rgba = episode.site_rgba[min(step, len(episode.site_rgba) - 1)]
        return cls(episode.frame_qpos[step], episode.body_pos, episode.body_quat, rgba, episode.scene.look)


class Renderer:
    """Draws frames of one compiled model into uint8 images; owns an OpenGL context until `close()`.

    model     a MjModel, usually `Simulator(task).model`; it is shared, and left as it was after every call
    cameras   "agentview" and "wrist", or any camera name of the model
    size      height and width in pixels
    profile   "faithful": equal to robosuite's images pixel for pixel; "fast": visual meshes simplified by 0.2 mm
    Images are oriented as LeRobot feeds them to policies: robosuite's image flipped in both axes.
    Raises RecordError for an unknown camera or profile, and where no OpenGL is available.
    """

    def __init__(
        self,
        model: Any,
        cameras: Sequence[str] = ("agentview", "wrist"),
        size: int = 128,
        profile: Profile = "faithful",
    ) -> None:
        if profile not in ("faithful", "fast"):
            raise RecordError(f"profile '{profile}' is unknown; use 'faithful' or 'fast'")
        self.cameras = {name: camera_id(model, name) for name in cameras}
        self.size = size
        self._context: Any = None
        context = gl.context(size, size)
        import mujoco

        self._mujoco = mujoco
        self._gl = context
        self._gl.make_current()
        self._model = model
        self._data = mujoco.MjData(model)
        self._scene = mujoco.MjvScene(model, maxgeom=1000)
        self._camera = mujoco.MjvCamera()
        self._camera.type = mujoco.mjtCamera.mjCAMERA_FIXED
        self._perturb = mujoco.MjvPerturb()
        self._options = mujoco.MjvOption()
        self._options.geomgroup[0] = 0  # collision shapes are hidden, as in robosuite
        self._options.geomgroup[1] = 1
        self._viewport = mujoco.MjrRect(0, 0, size, size)
        with _reduced(model, profile), _buffer_size(model, size):
            self._context = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_150)
            self._faces = unseen.uploaded(model)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self._context)
        # OpenGL shuts down before the interpreter collects a forgotten renderer, which would then complain.
        reference = weakref.ref(self)
        self._at_exit = lambda: renderer.close() if (renderer := reference()) else None
        atexit.register(self._at_exit)

    def render(self, frame: Frame, cameras: Sequence[str] | None = None) -> dict[str, np.ndarray]:
        """Images (size, size, 3) uint8 of the frame by camera name; default: all cameras of the renderer."""
        names = list(self.cameras) if cameras is None else list(cameras)
        with self._showing(frame):
            return {name: self._draw(self._id(name))[::-1, ::-1] for name in names}

    def film(self, frames: Sequence[Frame]) -> dict[str, np.ndarray]:
        """Images (n, size, size, 3) uint8 of the frames of one episode by camera name, equal to those of `render`.

        Meant for many frames: for each camera OpenGL first loses what it can show in none of them, unless a mirror may.
        """
        with _worn(self._model, frames[0]):
            if unseen.mirrors(self._model):
                return {name: np.array([self.render(frame, [name])[name] for frame in frames]) for name in self.cameras}
        self._current()
        poses = [self._poses(frame) for frame in frames]
        geom_pos, geom_rot, camera_pos, camera_rot = (np.array(arrays) for arrays in zip(*poses, strict=True))
        model, samples = self._model, _sample_positions()
        images: dict[str, np.ndarray] = {}
        for name, index in self.cameras.items():
            series = unseen.Series(camera_pos[:, index], camera_rot[:, index], geom_pos, geom_rot)
            focal = self.size / 2 / np.tan(np.radians(model.cam_fovy[index]) / 2)
            lens = unseen.Lens(self.size, focal, model.vis.map.znear * model.stat.extent, samples)
            shots = []
            with unseen.left_out(model, self._context, self._faces, series, lens) as groups:
                for frame, shown in zip(frames, groups, strict=True):
                    with _grouped(model, shown):
                        shots.append(self.render(frame, [name])[name])
            images[name] = np.array(shots)
        return images

    def segment(self, frame: Frame, camera: str) -> np.ndarray:
        """(size, size) int32 ids of the geoms that each pixel of the camera's image shows, -1 for none."""
        flags, flag = self._scene.flags, self._mujoco.mjtRndFlag
        with self._showing(frame):
            flags[flag.mjRND_SEGMENT] = flags[flag.mjRND_IDCOLOR] = 1
            try:
                image = self._draw(self._id(camera)).astype(np.int64)
            finally:
                flags[flag.mjRND_SEGMENT] = flags[flag.mjRND_IDCOLOR] = 0
        numbers = image @ np.array([1, 1 << 8, 1 << 16])
        ids = np.full(self._scene.ngeom + 1, -1, np.int32)
        for geom in self._scene.geoms[: self._scene.ngeom]:
            if geom.segid >= 0 and geom.objtype == self._mujoco.mjtObj.mjOBJ_GEOM:
                ids[geom.segid + 1] = geom.objid
        return ids[np.where(numbers < len(ids), numbers, 0)][::-1, ::-1]

    def project(self, frame: Frame, camera: str, points: np.ndarray) -> np.ndarray:
        """Where world points (n, 3) appear in the camera's image of the frame, see `project`."""
        with self._showing(frame, draw=False):
            return project(self._model, self._data, camera, points)

    def close(self) -> None:
        """Frees the OpenGL context; the renderer cannot be used afterwards."""
        if self._context is not None:
            self._gl.make_current()
            self._context.free()
            self._context = None
            self._gl.free()
            atexit.unregister(self._at_exit)

    def __enter__(self) -> "Renderer":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_context", None) is not None:
            self.close()

    def _id(self, name: str) -> int:
        return self.cameras[name] if name in self.cameras else camera_id(self._model, name)

    def _draw(self, camera: int) -> np.ndarray:
        mujoco = self._mujoco
        self._camera.fixedcamid = camera
        mujoco.mjv_updateScene(
            self._model, self._data, self._options, self._perturb, self._camera, mujoco.mjtCatBit.mjCAT_ALL, self._scene
        )
        mujoco.mjr_render(self._viewport, self._scene, self._context)
        image = np.empty((self.size, self.size, 3), np.uint8)
        mujoco.mjr_readPixels(image, None, self._viewport, self._context)
        return image

    def _current(self) -> None:
        if self._context is None:
            raise RecordError("the renderer is closed; build a new one")
        self._gl.make_current()

    def _poses(self, frame: Frame) -> tuple[np.ndarray, ...]:
        """Places and rotations of geoms, then of cameras, in the frame."""
        with self._showing(frame, draw=False):
            data = self._data
            flat = data.geom_xpos, data.geom_xmat.reshape(-1, 3, 3), data.cam_xpos, data.cam_xmat.reshape(-1, 3, 3)
            return tuple(array.copy() for array in flat)

    @contextlib.contextmanager
    def _showing(self, frame: Frame, draw: bool = True) -> Iterator[None]:
        """Puts the frame into the renderer's data, and into the shared model until the block ends."""
        if draw:
            self._current()
        with _worn(self._model, frame):
            pose(self._model, self._data, frame)
            yield


def project(model: Any, source: Any, camera: str, points: np.ndarray) -> np.ndarray:
    """Where world points (n, 3) appear in a camera's returned image: (n, 2) of u, v in 0..1, v downwards.

    `source` is a MjData (positions up to date) or a Frame. The image is LeRobot's, mirrored left to right against
    what a person would see; u counts from its left edge. Points behind the camera give NaN; a point outside the
    image gives values below 0 or above 1.
    """
    if isinstance(source, Frame):
        source = posed(model, source)
    index = camera_id(model, camera)
    local = (np.asarray(points, float).reshape(-1, 3) - source.cam_xpos[index]) @ source.cam_xmat[index].reshape(3, 3)
    with np.errstate(divide="ignore", invalid="ignore"):
        plane = local[:, :2] / -local[:, 2:] / (2 * np.tan(np.radians(model.cam_fovy[index]) / 2))
    plane[local[:, 2] >= 0] = np.nan
    return 0.5 - plane


def posed(model: Any, frame: Frame) -> Any:
    """A new MjData with bodies, cameras and lights where the frame has them."""
    import mujoco

    data = mujoco.MjData(model)
    with _worn(model, frame):
        pose(model, data, frame)
    return data


def pose(model: Any, data: Any, frame: Frame) -> None:
    """Bodies, cameras and lights of `data` for the frame's positions: all that drawing needs of a forward pass."""
    import mujoco

    data.qpos[:] = frame.qpos
    mujoco.mj_kinematics(model, data)
    mujoco.mj_comPos(model, data)
    mujoco.mj_camlight(model, data)


def camera_id(model: Any, name: str) -> int:
    """The model's number of a camera, by our name or by the model's."""
    names = [model.camera(index).name for index in range(model.ncam)]
    known = CAMERAS.get(name, name)
    if known not in names:
        raise RecordError(f"camera '{name}' is not in the model; there are: {', '.join([*CAMERAS, *names])}")
    return names.index(known)


@contextlib.contextmanager
def _worn(model: Any, frame: Frame) -> Iterator[None]:
    """The model with the frame's arrays and look; put back afterwards because a simulator may share the model."""
    arrays = {"body_pos": frame.body_pos, "body_quat": frame.body_quat, "site_rgba": frame.site_rgba}
    kept = {name: getattr(model, name).copy() for name, value in arrays.items() if value is not None}
    try:
        for name in kept:
            getattr(model, name)[:] = arrays[name]
        with looks.worn(model, frame.look):
            yield
    finally:
        for name, value in kept.items():
            getattr(model, name)[:] = value


@contextlib.contextmanager
def _grouped(model: Any, groups: np.ndarray) -> Iterator[None]:
    """The model with its geoms in other groups, some of which are not drawn."""
    kept = model.geom_group.copy()
    model.geom_group[:] = groups
    try:
        yield
    finally:
        model.geom_group[:] = kept


def _sample_positions() -> np.ndarray:
    """Where in a pixel the current framebuffer takes its samples: (n, 2) from the lower left corner, or the center."""
    from OpenGL import GL

    count = int(GL.glGetIntegerv(GL.GL_SAMPLES))
    if count == 0:
        return np.full((1, 2), 0.5)
    return np.array([GL.glGetMultisamplefv(GL.GL_SAMPLE_POSITION, index) for index in range(count)]).reshape(count, 2)


@contextlib.contextmanager
def _buffer_size(model: Any, size: int) -> Iterator[None]:
    """An off-screen buffer of just the image's size, while the context is made."""
    kept = model.vis.global_.offwidth, model.vis.global_.offheight
    model.vis.global_.offwidth = model.vis.global_.offheight = size
    try:
        yield
    finally:
        model.vis.global_.offwidth, model.vis.global_.offheight = kept


def _reduced(model: Any, profile: Profile) -> contextlib.AbstractContextManager:
    if profile == "faithful":
        return contextlib.nullcontext()
    from libero_pro import lod

    return lod.reduced(model)
