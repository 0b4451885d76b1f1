"""The states of an episode in a few numbers, as a model critic is told them beside the sheets.

What a camera shows badly (depth, contact); not whether the goal held, nor what the simulator critic makes of it.
"""

from typing import Any

import numpy as np

from libero_pro.episode import Episode

_MOVED = 0.01  # metres below which a resting object counts as untouched


def summarize(episode: Episode) -> dict[str, Any]:
    """What the hand and the things did, under names that a reader without this text understands.

    Distances are whole centimetres, times control steps (instants, for what holds at one).
    """
    names, positions, eef = episode.object_names, episode.object_pos, episode.eef_pos
    shift = positions[-1] - positions[0]
    moved = np.linalg.norm(shift, axis=-1) > _MOVED
    gaps = np.linalg.norm(positions[..., :2] - eef[:, None, :2], axis=-1)
    closed = episode.actions[:, 6] > 0
    turns = np.flatnonzero(np.diff(closed, prepend=False))
    late = np.diff(eef[len(eef) * 2 // 3 :], axis=0)
    parts = episode.part_pos
    return {
        "held_by_both_fingers": _intervals(episode.held, names),
        "moved_cm_horizontally_and_up": {
            name: [_centimetres(np.linalg.norm(shift[i, :2])), _centimetres(shift[i, 2])]
            for i, name in enumerate(names)
            if moved[i]
        },
        "joint_at_start_and_end": {
            name: [round(float(parts[t, i]), 3) for t in (0, -1)]
            for i, name in enumerate(episode.part_names)
            if parts is not None
        },
        "least_cm_of_hand_from_object_and_step": {
            name: [_centimetres(gaps[:, i].min()), int(gaps[:, i].argmin())] for i, name in enumerate(names)
        },
        "gripper_told_to_close_at_steps": [int(step) for step in turns if closed[step]],
        "gripper_told_to_open_at_steps": [int(step) for step in turns if not closed[step]],
        "cm_moved_by_hand_in_last_third": _centimetres(np.linalg.norm(late, axis=-1).sum()),
    }


def _intervals(held: np.ndarray, names: tuple[str, ...]) -> list[dict[str, Any]]:
    """Runs of one held object as instants, the last one included."""
    starts = [0, *(int(t) for t in np.flatnonzero(np.diff(held)) + 1)]
    runs = zip(starts, [*starts[1:], len(held)], strict=True)
    return [{"object": names[held[a]], "from": a, "to": b - 1} for a, b in runs if held[a] >= 0]


def _centimetres(metres: Any) -> int:
    return round(float(metres) * 100)
