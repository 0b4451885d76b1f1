"""Operations on places, applied to many candidate layouts at once."""

import numpy as np

from libero_pro.goals import player
from libero_pro.operations import Box, Crowd, Move, Offset, Permute, Place, Polar, Ray, Region, Resample
from libero_pro.placement import Arrangement
from libero_pro.scene import Goal


def apply(
    operation: Move, plan: Arrangement, goal: Goal, difficulty: float, xy: np.ndarray, rng: np.random.Generator
) -> None:
    """Changes candidates (count, n, 2), metres, in place."""
    match operation:
        case Resample():
            rows = list(plan.movable)
            xy[:, rows] += rng.uniform(-1.0, 1.0, (len(xy), len(rows), 2)) * operation.jitter_m * difficulty
        case Permute():
            _permute(operation, plan, difficulty, xy, rng)
        case Offset():
            _offset(operation, plan, goal, difficulty, xy, rng)
        case Place():
            _place(operation, plan, goal, difficulty, xy, rng)
        case Crowd():
            _crowd(operation, plan, goal, difficulty, xy, rng)


def _permute(
    operation: Permute, plan: Arrangement, difficulty: float, xy: np.ndarray, rng: np.random.Generator
) -> None:
    count = len(xy)
    rows = list(plan.movable) if operation.objects == "all" else [plan.names.index(n) for n in operation.objects]
    most = len(rows) if operation.count == "all" else min(operation.count, len(rows))
    chosen = rng.permuted(np.tile(rows, (count, 1)), axis=1)[:, : 2 + round(difficulty * (most - 2))]
    order = rng.permuted(np.tile(np.arange(chosen.shape[1]), (count, 1)), axis=1)
    same = np.all(order == np.arange(chosen.shape[1]), axis=1)
    order[same] = np.roll(order[same], 1, axis=1)
    each = np.arange(count)[:, None]
    xy[each, chosen] = xy[each, np.take_along_axis(chosen, order, axis=1)]


def _offset(
    operation: Offset, plan: Arrangement, goal: Goal, difficulty: float, xy: np.ndarray, rng: np.random.Generator
) -> None:
    row = _row(operation.target, plan, goal)
    if row is None:
        return
    angle = rng.uniform(0.0, 2.0 * np.pi, len(xy))
    radius = operation.radius_m * difficulty * rng.uniform(0.5, 1.0, len(xy))
    _shift(plan, xy, row, _around(angle, radius))


def _place(
    operation: Place, plan: Arrangement, goal: Goal, difficulty: float, xy: np.ndarray, rng: np.random.Generator
) -> None:
    row = _row(operation.target, plan, goal)
    if operation.target != "all" and row is None:
        return
    for one in plan.movable if row is None else (row,):
        wanted = _draw(operation.area, plan, goal, xy, one, rng)
        _shift(plan, xy, one, (wanted - xy[:, one]) * difficulty)


def _draw(
    area: Box | Region | Polar | Ray,
    plan: Arrangement,
    goal: Goal,
    xy: np.ndarray,
    row: int,
    rng: np.random.Generator,
) -> np.ndarray:
    """(count, 2) places for one object."""
    count = len(xy)
    match area:
        case Box():
            return rng.uniform(area.low, area.high, (count, 2))
        case Region():
            rectangle = plan.regions[area.name]
            return rng.uniform(rectangle[:2], rectangle[2:], (count, 2))
        case Polar():
            other = _row(area.around, plan, goal)
            center = plan.robot if other is None else xy[:, other]
            return center + _around(rng.uniform(*area.angle, count), rng.uniform(*area.radius, count))
        case Ray():
            away = xy[:, row] - plan.robot
            away = away / np.linalg.norm(away, axis=1, keepdims=True)
            return xy[:, row] + away * area.distance_m * rng.uniform(0.5, 1.0, (count, 1))


def _crowd(
    operation: Crowd, plan: Arrangement, goal: Goal, difficulty: float, xy: np.ndarray, rng: np.random.Generator
) -> None:
    center = _row(operation.near, plan, goal)
    if center is None:
        return
    held = {center, *plan.leaders(center)}
    others = [row for row in plan.movable if row not in held]
    count = min(len(others), max(1, round(operation.count * difficulty)))
    if operation.alike:
        chosen = np.tile(sorted(others, key=lambda row: _unlikeness(plan, center, row))[:count], (len(xy), 1))
    else:
        chosen = rng.permuted(np.tile(others, (len(xy), 1)), axis=1)[:, :count]
    each = np.arange(len(xy))
    for column in range(count):
        rows = chosen[:, column]
        nearest = float(np.linalg.norm(plan.sizes[center, :2])) / 2
        radius = rng.uniform(min(nearest, operation.radius_m), operation.radius_m, len(xy))
        wanted = xy[:, center] + _around(rng.uniform(0.0, 2.0 * np.pi, len(xy)), radius)
        xy[each, rows] += (wanted - xy[each, rows]) * difficulty


def _unlikeness(plan: Arrangement, a: int, b: int) -> tuple[bool, float]:
    """Orders objects by how little they resemble one: another class comes after the same, then by size."""
    other_class = plan.instances[a].rsplit("_", 1)[0] != plan.instances[b].rsplit("_", 1)[0]
    return other_class, float(np.abs(np.log(plan.sizes[a] / plan.sizes[b])).sum())


def _row(name: str, plan: Arrangement, goal: Goal) -> int | None:
    """Row of an instance or role; None if a (retargeted) goal has no such role among the placed objects."""
    if name in ("target", "receptacle"):
        name = player(goal, plan.names, name) or ""
    return plan.row(name)


def _shift(plan: Arrangement, xy: np.ndarray, row: int, by: np.ndarray) -> None:
    """Moves an object, or what it stands on or is named after."""
    for leader in plan.leaders(row):
        xy[:, leader] += by


def _around(angle: np.ndarray, radius: np.ndarray) -> np.ndarray:
    return np.stack([np.cos(angle), np.sin(angle)], axis=1) * radius[:, None]
