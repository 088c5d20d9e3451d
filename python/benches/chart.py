"""Draws the pictures of the documentation, and panels side by side with curves over time."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

TOP = 34


@dataclass(frozen=True)
class Panel:
    """A panel: its place in the picture, and its scales."""

    left: float
    width: float
    height: float
    seconds: float
    highest: float

    def at(self, second: float, value: float) -> tuple[float, float]:
        """The position of a value at an instant."""
        return self.left + self.width * second / self.seconds, TOP + self.height * (1 - value / self.highest)

    def axes(self, title: str, every_second: int, every_value: int) -> list[str]:
        """The title, a line at each multiple of `every_value`, and a label at each of `every_second`."""
        lines = [f'<text x="{self.left:g}" y="18" font-weight="bold">{title}</text>']
        for value in range(0, int(self.highest) + 1, every_value):
            x, y = self.at(0, value)
            lines.append(f'<path d="M{x:g} {y:.1f}h{self.width:g}" stroke="#8886" stroke-width="0.5"/>')
            lines.append(f'<text x="{x - 6:g}" y="{y + 4:.1f}" text-anchor="end">{value:,}</text>')
        for second in range(0, int(self.seconds) + 1, every_second):
            x, y = self.at(second, 0)
            lines.append(f'<text x="{x:.1f}" y="{y + 16:g}" text-anchor="middle">{second} s</text>')
        return lines

    def curve(self, points: Iterable[tuple[float, float]], colour: str) -> str:
        """A line through values at instants."""
        places = " ".join("{:.1f},{:.1f}".format(*self.at(second, value)) for second, value in points)
        return f'<polyline points="{places}" fill="none" stroke="{colour}" stroke-width="1.8"/>'


def picture(width: float, height: float, lines: Iterable[str]) -> str:
    """The whole picture."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" '
        'font-family="sans-serif" font-size="11" fill="#777">\n' + "\n".join(lines) + "\n</svg>\n"
    )


def main(description: str | None, draw: Callable[[], str]) -> None:
    """The main function of a program that draws a picture into the file that `--picture` names."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--picture", type=Path, required=True, help="where to draw it")
    parser.parse_args().picture.write_text(draw())
