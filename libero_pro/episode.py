"""Episode: one rollout as the truth that everything else is derived from."""

import json
from dataclasses import dataclass, field, fields, replace
from io import BytesIO
from pathlib import Path

import numpy as np

from libero_pro.record import RecordError, write_atomically
from libero_pro.scene import SceneSpec

SCHEMA_VERSION = 1
_ARRAYS = (
    "actions", "qpos", "frame_qpos", "site_rgba", "body_pos", "body_quat", "proprio", "object_pos", "object_quat",
    "eef_pos", "held", "goal_holds", "executed", "camera",
)  # fmt: skip
_LATER = ("expert_actions", "part_pos", "part_range", "part_point", "region_pos", "region_half", "touched")


@dataclass(frozen=True)
class Episode:
    """T control steps (20 Hz) in one scene. Arrays carry T+1 instants: index 0 is the start, t+1 follows action t.

    scene        where it happened
    actor        who acted: "expert", "policy:<checkpoint id>"
    success      the goal held after the last step;  `terminated` is the same event seen by a learner
    terminated   the task ended (success, or a true failure terminal);  `truncated` the horizon cut it
    invalid      infrastructure or physics error in one sentence, else None: such an episode is never a failure
    object_names order of the object axis
    actions      (T, 7) float32, executed OSC deltas in [-1, 1], gripper -1 open / +1 close
    expert_actions  (T, 7) what the expert would have done where it acted under disturbance, else equal to actions
    qpos         (T+1, nq) float64 MuJoCo positions after each step
    frame_qpos   (T+1, nq) float64 positions whose rendering equals robosuite's image of that instant
    site_rgba    (T+1, nsite, 4) float32, only where it changes over the episode, else (1, nsite, 4)
    body_pos     (nbody, 3) float64 model positions (fixtures are drawn per reset and are not in qpos)
    body_quat    (nbody, 4) float64 model orientations, likewise
    proprio      (T+1, 8) float32 eef position (3), eef axis-angle (3), gripper joints (2)
    object_pos   (T+1, n, 3) float64 world metres;  object_quat (T+1, n, 4) wxyz
    eef_pos      (T+1, 3) float64 grip site, world metres
    held         (T+1,) int16 index of the object touched by both finger pads, -1 for none
    goal_holds   (T+1, n_goal) bool, each goal predicate by itself
    executed     (number of chunks,) int16 control steps each action chunk really ran (sums to T)
    camera       (3, 4) projection of the agentview camera, see libero_pro.camera

    Not in files of earlier versions, None there:
    part_names   articulated parts by the names that goals give them (`libero_pro.parts`), p of them
    part_pos     (T+1, p) float64 their joints' positions, m or rad;  part_range (p, 2) where closed or off begins, and
                 where open or on
    part_point   (T+1, p, 3) float64 where each is taken hold of, world metres
    region_names regions (sites), then fixtures, m of them;  region_pos (T+1, m, 3) float64 their centers
    region_half  (m, 3) float64 half sizes along the world's axes at the start, 0 for fixtures
    touched      (T+1, n + p) bool whether the gripper touches each object, then each part
    """

    scene: SceneSpec
    actor: str
    success: bool
    terminated: bool
    truncated: bool
    object_names: tuple[str, ...]
    actions: np.ndarray
    qpos: np.ndarray
    frame_qpos: np.ndarray
    site_rgba: np.ndarray
    body_pos: np.ndarray
    body_quat: np.ndarray
    proprio: np.ndarray
    object_pos: np.ndarray
    object_quat: np.ndarray
    eef_pos: np.ndarray
    held: np.ndarray
    goal_holds: np.ndarray
    executed: np.ndarray
    camera: np.ndarray
    expert_actions: np.ndarray | None = None
    invalid: str | None = None
    wall_s: float = 0.0
    tags: dict[str, str] = field(default_factory=dict)
    part_names: tuple[str, ...] = ()
    part_pos: np.ndarray | None = None
    part_range: np.ndarray | None = None
    part_point: np.ndarray | None = None
    region_names: tuple[str, ...] = ()
    region_pos: np.ndarray | None = None
    region_half: np.ndarray | None = None
    touched: np.ndarray | None = None

    @classmethod
    def unrun(cls, scene: SceneSpec, actor: str, reason: str) -> "Episode":
        """An invalid episode without a single instant, for a scene that could not be run."""
        none = np.zeros
        return cls(
            scene=scene,
            actor=actor,
            success=False,
            terminated=False,
            truncated=False,
            object_names=(),
            actions=none((0, 7), np.float32),
            qpos=none((0, 0)),
            frame_qpos=none((0, 0)),
            site_rgba=none((0, 0, 4), np.float32),
            body_pos=none((0, 3)),
            body_quat=none((0, 4)),
            proprio=none((0, 8), np.float32),
            object_pos=none((0, 0, 3)),
            object_quat=none((0, 0, 4)),
            eef_pos=none((0, 3)),
            held=none(0, np.int16),
            goal_holds=none((0, len(scene.goal)), bool),
            executed=none(0, np.int16),
            camera=none((3, 4)),
            invalid=reason,
        )

    def __len__(self) -> int:
        """Number of control steps."""
        return len(self.actions)

    def save(self, path: Path) -> None:
        """Writes one npz (no pickled objects) with a JSON header; atomic."""
        header = {
            "schema_version": SCHEMA_VERSION,
            "scene": self.scene.model_dump(mode="json"),
            **{f.name: getattr(self, f.name) for f in fields(self) if f.name not in (*_ARRAYS, *_LATER, "scene")},
        }
        arrays = {name: getattr(self, name) for name in _ARRAYS}
        arrays |= {name: getattr(self, name) for name in _LATER if getattr(self, name) is not None}
        buffer = BytesIO()
        np.savez_compressed(buffer, header=np.frombuffer(json.dumps(header).encode(), np.uint8), **arrays)
        write_atomically(path, buffer.getvalue())

    @classmethod
    def load(cls, path: Path) -> "Episode":
        """Reads an episode; RecordError if the file is damaged or of another schema."""
        try:
            with np.load(path, allow_pickle=False) as data:
                arrays = {name: data[name] for name in data.files if name != "header"}
                header = json.loads(data["header"].tobytes())
            version = header.pop("schema_version", None)
            header["object_names"] = tuple(header["object_names"])
            header |= {name: tuple(header.get(name, ())) for name in ("part_names", "region_names")}
            scene = header.pop("scene")
        except Exception as error:  # damaged zip, deflate, npy and JSON data fail in a dozen ways; all mean the same
            raise RecordError(f"{path} is not a readable episode ({error}); delete it and record it again") from None
        if version != SCHEMA_VERSION:
            raise RecordError(
                f"{path} was written with episode schema {version}, not {SCHEMA_VERSION}; record it again"
            )
        try:
            episode = cls(scene=SceneSpec.parse(scene), **header, **arrays)
        except (TypeError, RecordError) as error:
            raise RecordError(f"{path} is not an episode: {error}") from None
        problem = episode.inconsistency()
        if problem:
            raise RecordError(f"{path} is not an episode: {problem}")
        return episode

    def inconsistency(self) -> str | None:
        """Which array does not have the length that the number of actions implies, or None (invalid: may be empty)."""
        if self.invalid is not None:
            return None
        steps, objects, goals = len(self.actions), len(self.object_names), len(self.scene.goal)
        wanted: dict[str, tuple[int | None, ...]] = {
            "actions": (steps, 7),
            "qpos": (steps + 1, None),
            "frame_qpos": (steps + 1, None),
            "body_pos": (None, 3),
            "proprio": (steps + 1, 8),
            "object_pos": (steps + 1, objects, 3),
            "object_quat": (steps + 1, objects, 4),
            "eef_pos": (steps + 1, 3),
            "held": (steps + 1,),
            "goal_holds": (steps + 1, goals),
        }
        parts, regions = len(self.part_names), len(self.region_names)
        later: dict[str, tuple[int | None, ...]] = {
            "expert_actions": (steps, 7),
            "part_pos": (steps + 1, parts),
            "part_range": (parts, 2),
            "part_point": (steps + 1, parts, 3),
            "region_pos": (steps + 1, regions, 3),
            "region_half": (regions, 3),
            "touched": (steps + 1, objects + parts),
        }
        wanted |= {name: shape for name, shape in later.items() if getattr(self, name) is not None}
        for name, shape in wanted.items():
            found = getattr(self, name).shape
            if len(found) != len(shape) or any(w not in (None, f) for w, f in zip(shape, found, strict=True)):
                return f"{name} has shape {found}, expected {tuple('any' if w is None else w for w in shape)}"
        if len(self.site_rgba) not in (1, steps + 1):
            return f"site_rgba has {len(self.site_rgba)} instants, expected 1 or {steps + 1}"
        return None

    def tagged(self, **tags: str) -> "Episode":
        """The same episode with more tags (program, round, purpose)."""
        return replace(self, tags={**self.tags, **tags})
