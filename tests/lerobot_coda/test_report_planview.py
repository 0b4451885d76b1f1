"""An episode seen from above: well-formed, true to the stored positions, and without a word of markup from them."""

from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
from synthetic import START, T, episode, lost, path, scene

from lerobot_coda.report.planview import SCALE, plan_view
from libero_pro.episode import Episode

SVG = "{http://www.w3.org/2000/svg}"


def _drawn(shown: Episode) -> ElementTree.Element:
    return ElementTree.fromstring(str(plan_view(shown)).replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1))


def _carried() -> Episode:
    """The arm goes to the milk, and takes it to the basket."""
    way = path(START, (0.1, 0.2, 0.03), (0.1, 0.2, 0.3), (0.0, 0.0, 0.3))
    return episode(way, held={"milk_1": (31, T)}, where=scene(target="milk_1"))


def test_the_target_is_filled_and_goes_where_it_was_carried() -> None:
    drawing = _drawn(_carried())
    (target,) = [group for group in drawing.iter(f"{SVG}g") if group.find(f"{SVG}circle[@fill='#0072B2']") is not None]
    assert target.findtext(f"{SVG}text") == "milk"
    moved = target.find(f"{SVG}animateTransform")
    assert moved is not None
    first, *_, last = (np.array(point.split(), float) for point in moved.attrib["values"].split(";"))
    # The robot looks along x; its left, y, is to the left of the drawing.
    assert abs(first - [-0.2 * SCALE, -0.1 * SCALE]).max() <= 0.5 and abs(last).max() <= 0.03 * SCALE
    assert moved.attrib["dur"] == f"{T / 20:.1f}s"


def test_only_what_moves_is_moved_and_the_receptacle_is_a_square() -> None:
    drawing = _drawn(_carried())
    assert len(drawing.findall(f".//{SVG}animateTransform")) == 2, "the milk and the gripper"
    squares = [group for group in drawing.iter(f"{SVG}g") if group.find(f"{SVG}rect") is not None]
    assert [square.findtext(f"{SVG}text") for square in squares] == ["basket"]


def test_the_gripper_is_filled_while_it_holds_something() -> None:
    filled = _drawn(_carried()).find(f".//{SVG}animate[@attributeName='fill-opacity']")
    assert filled is not None
    values = filled.attrib["values"].split(";")
    assert values[0] == "0" and 0.5 < values.count("1") / len(values) < 0.8
    still = _drawn(lost(scene())).find(f".//{SVG}animate")
    assert still is not None and set(still.attrib["values"].split(";")) == {"0"}


def test_a_region_of_a_fixture_is_shown_where_it_is() -> None:
    shown = _carried()
    where = scene().model_copy(update={"goal": (("open", "cabinet_1_top_region"),)})
    moving = path((0.2, -0.3, 0.2), (0.05, -0.3, 0.2))
    opened = replace(
        shown,
        scene=where,
        goal_holds=shown.goal_holds[:, :1],
        region_names=("cabinet_1_top_region",),
        region_pos=moving[:, None],
        region_half=np.zeros((1, 3)),
    )
    squares = [group for group in _drawn(opened).iter(f"{SVG}g") if group.find(f"{SVG}rect") is not None]
    assert [square.findtext(f"{SVG}text") for square in squares] == ["cabinet 1 top region"]
    assert squares[0].find(f"{SVG}animateTransform") is not None


def test_names_are_escaped_and_an_episode_without_steps_is_nothing() -> None:
    shown = _carried()
    names = tuple(name.replace("basket", "<script>basket") for name in shown.object_names)
    goal = (("in", "milk_1", "<script>basket_1_contain_region"),)
    text = plan_view(replace(shown, object_names=names, scene=scene().model_copy(update={"goal": goal})))
    assert "<script>" not in text and "&lt;script&gt;basket" in text
    assert plan_view(Episode.unrun(scene(), "policy:test", "no renderer")) == ""
