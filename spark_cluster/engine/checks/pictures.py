"""Pictures to ask about, drawn the same every time: shapes, digits and a small scene."""

from __future__ import annotations

from spark_cluster.engine.text_checks import png_url

Colour = tuple[int, int, int]

WHITE: Colour = (255, 255, 255)
BLACK: Colour = (0, 0, 0)
RED: Colour = (220, 20, 30)
GREEN: Colour = (20, 150, 50)
BLUE: Colour = (30, 60, 220)
YELLOW: Colour = (255, 220, 0)
BROWN: Colour = (120, 70, 30)
SKY: Colour = (150, 210, 250)

SIDE = 336
"""Pixels; large enough for every vision tower, and small for the prompt."""

DIGITS = {
    "0": "abcdef", "1": "bc", "2": "abdeg", "3": "abcdg", "4": "bcfg", "5": "acdfg",
    "6": "acdefg", "7": "abc", "8": "abcdefg", "9": "abcdfg",
}  # fmt: skip
"""Segments of each digit on a display: a is the top, b to f follow clockwise, g is the middle."""


class Canvas:
    """A picture to draw on; the origin is its upper left corner, and sizes are in pixels."""

    def __init__(self, background: Colour = WHITE, width: int = SIDE, height: int = SIDE) -> None:
        self.width, self.height = width, height
        self._pixels = bytearray(bytes(background) * (width * height))

    @property
    def url(self) -> str:
        """The picture as a `data:` URL."""
        return png_url(self.width, self.height, bytes(self._pixels))

    def row(self, y: int, left: float, right: float, colour: Colour) -> None:
        """Draw a part of a row."""
        first, last = max(0, round(left)), min(self.width, round(right))
        if 0 <= y < self.height and first < last:
            start = 3 * (y * self.width + first)
            self._pixels[start : start + 3 * (last - first)] = bytes(colour) * (last - first)

    def rectangle(self, x: int, y: int, width: int, height: int, colour: Colour) -> None:
        """Draw a rectangle by its upper left corner."""
        for line in range(y, y + height):
            self.row(line, x, x + width, colour)

    def circle(self, x: int, y: int, radius: int, colour: Colour) -> None:
        """Draw a disc by its centre."""
        for line in range(y - radius, y + radius + 1):
            half = (radius**2 - (line - y) ** 2) ** 0.5
            self.row(line, x - half, x + half, colour)

    def triangle(self, x: int, y: int, width: int, height: int, colour: Colour) -> None:
        """Draw a triangle that stands on its side, by its tip."""
        for line in range(height):
            half = width / 2 * line / height
            self.row(y + line, x - half, x + half, colour)

    def digit(self, digit: str, x: int, y: int, size: int, colour: Colour) -> None:
        """Draw a digit as displays show it: `size` wide, twice as high."""
        thick = size // 5
        bars = {
            "a": (0, 0, size, thick),
            "b": (size - thick, 0, thick, size),
            "c": (size - thick, size, thick, size),
            "d": (0, 2 * size - thick, size, thick),
            "e": (0, size, thick, size),
            "f": (0, 0, thick, size),
            "g": (0, size - thick // 2, size, thick),
        }
        for segment in DIGITS[digit]:
            left, top, width, height = bars[segment]
            self.rectangle(x + left, y + top, width, height, colour)


def red() -> str:
    """A red picture."""
    return Canvas(RED).url


def circle() -> str:
    """A blue disc on white."""
    canvas = Canvas()
    canvas.circle(SIDE // 2, SIDE // 2, SIDE // 3, BLUE)
    return canvas.url


def squares() -> str:
    """Three black squares side by side."""
    canvas = Canvas()
    for x in (28, 134, 240):
        canvas.rectangle(x, 134, 68, 68, BLACK)
    return canvas.url


def number() -> str:
    """The number 407."""
    canvas = Canvas()
    for place, digit in enumerate("407"):
        canvas.digit(digit, 30 + 98 * place, 98, 70, BLACK)
    return canvas.url


def sides() -> str:
    """A green square on the left, a red disc on the right."""
    canvas = Canvas()
    canvas.rectangle(30, 118, 100, 100, GREEN)
    canvas.circle(250, 168, 55, RED)
    return canvas.url


def house() -> str:
    """A red house with a door and two windows, a tree, and the sun, on a green field."""
    canvas = Canvas(SKY)
    canvas.rectangle(0, 250, SIDE, 86, GREEN)
    canvas.circle(280, 55, 32, YELLOW)
    canvas.rectangle(50, 160, 130, 110, RED)
    canvas.triangle(115, 90, 160, 70, RED)
    canvas.rectangle(102, 215, 26, 55, BLACK)
    for x in (64, 140):
        canvas.rectangle(x, 178, 26, 26, SKY)
    canvas.rectangle(246, 190, 18, 80, BROWN)
    canvas.circle(255, 168, 42, (10, 110, 30))
    return canvas.url
