"""The clip of the README: a run's `before.mp4` and `after.mp4` side by side, twice as fast, as an animated WebP.

python docs/scripts/clip.py runs/quickstart/report docs/images/before_after.webp "after one round"
"""

import sys
from pathlib import Path

import av
from PIL import Image, ImageDraw, ImageFont

EVERY, FRAME_MS, HOLD_MS = 2, 100, 2000  # every second frame of 10 a second, shown for 100 ms: twice as fast
BAR = 28  # pixels above the images, for the labels
_PAPER, _INK = (255, 255, 255), (20, 20, 20)


def frames(video: Path) -> list[Image.Image]:
    """The shown frames of a video, its last one too."""
    with av.open(str(video)) as container:
        images = [frame.to_image() for frame in container.decode(video=0)]
    return [*images[:-1:EVERY], images[-1]]


def beside(left: list[Image.Image], right: list[Image.Image], labels: tuple[str, str]) -> list[Image.Image]:
    """Frames of both videos next to each other; the shorter one stands still at its end."""
    width, height = left[0].size
    font = ImageFont.load_default(size=16)
    made = []
    for number in range(max(len(left), len(right))):
        sheet = Image.new("RGB", (2 * width + 4, height + BAR), _PAPER)
        draw = ImageDraw.Draw(sheet)
        for column, (film, label) in enumerate(zip((left, right), labels, strict=True)):
            x = column * (width + 4)
            sheet.paste(film[min(number, len(film) - 1)], (x, BAR))
            draw.text((x + 6, 5), label, fill=_INK, font=font)
        made.append(sheet)
    return made


def main(report: Path, out: Path, after: str) -> None:
    """Writes the clip."""
    made = beside(frames(report / "before.mp4"), frames(report / "after.mp4"), ("before", after))
    times = [FRAME_MS] * (len(made) - 1) + [HOLD_MS]
    made[0].save(out, save_all=True, append_images=made[1:], duration=times, loop=0, quality=60, method=4)
    print(f"{out}: {len(made)} frames, {out.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
