"""Draws the explanatory pictures of the guide, light and dark: ``python docs/pictures.py``."""

from collections.abc import Callable
from pathlib import Path

GREEN, BLUE, ORANGE, RED = "#009E73", "#0072B2", "#E69F00", "#D55E00"
LOOKS = {"": ("#222222", "#6b6b6b", "#c4c8cf"), "-dark": ("#eeeeee", "#a8a8a8", "#5a5f68")}
FONT = 'font-family="system-ui, Segoe UI, Roboto, Arial, sans-serif"'


class Picture:
    """Shapes in pixels, in the colours of one variant."""

    def __init__(self, width: int, height: int, variant: str) -> None:
        self.ink, self.grey, self.line = LOOKS[variant]
        self.parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" {FONT}>']

    def text(self, x: float, y: float, words: str, size: int = 13, bold: bool = False, faint: bool = False) -> None:
        weight = ' font-weight="600"' if bold else ""
        colour = self.grey if faint else self.ink
        self.parts.append(f'<text x="{x}" y="{y}" font-size="{size}" fill="{colour}"{weight}>{words}</text>')

    def box(self, x: float, y: float, w: float, h: float, fill: str = "none", edge: str | None = None) -> None:
        stroke = "" if edge == "" else f' stroke="{edge or self.line}"'
        self.parts.append(f'<rect x="{x}" y="{y}" width="{w}" height="{h}" rx="2" fill="{fill}"{stroke}/>')

    def arrow(self, x: float, y: float, to: float) -> None:
        tip = f"M{to - 6} {y - 4} L{to} {y} L{to - 6} {y + 4}"
        self.parts.append(f'<path d="M{x} {y} H{to} {tip}" fill="none" stroke="{self.grey}" stroke-width="1.5"/>')

    def target(self, x: float, y: float, weights: tuple[float, ...], floor: float = 0, struck: bool = False) -> None:
        """Bars of a distribution over classes; the floor that all classes share is grey."""
        self.box(x, y, 74, 44, edge=self.line)
        for place, (weight, colour) in enumerate(zip(weights, (GREEN, BLUE, ORANGE, RED), strict=True)):
            left, grey = x + 8 + 16 * place, 40 * floor
            if grey:
                self.box(left, y + 42 - grey, 11, grey, self.grey, "")
            self.box(left, y + 42 - grey - 36 * weight, 11, 36 * weight, colour, "")
        if struck:
            self.parts.append(f'<path d="M{x + 4} {y + 38} H{x + 70}" stroke="{RED}" stroke-width="2"/>')

    def save(self, path: Path) -> None:
        path.write_text("".join([*self.parts, "</svg>\n"]), encoding="utf-8")


def k_free_step(p: Picture) -> None:
    p.text(10, 20, "features", bold=True)
    for row in range(4):
        p.box(10, 40 + 24 * row, 90, 18, "none")
    p.text(10, 156, "N rows of a batch", 12, faint=True)
    p.arrow(112, 88, 150)
    p.text(165, 20, "table of K classes", bold=True)
    used = {3: GREEN, 8: GREEN, 11: BLUE, 15: GREEN, 21: BLUE, 24: GREEN, 27: BLUE}
    for row in range(30):
        p.box(165, 32 + 6 * row, 120, 4, used.get(row, "none"), None if row not in used else "")
    p.text(165, 232, "read and updated: the coloured rows", 12, faint=True)
    p.arrow(297, 88, 335)
    p.text(350, 20, "logits, N × U", bold=True)
    for row in range(4):
        for place, colour in enumerate(used.values()):
            p.box(350 + 24 * place, 40 + 24 * row, 20, 18, colour, "")
    p.text(350, 156, "U classes: of the batch (green)", 12, faint=True)
    p.text(350, 173, "and drawn negatives (blue)", 12, faint=True)


def own_answers(p: Picture) -> None:
    labels = "ABAC"
    for left, title, drops in ((10, "InfoNCE()", False), (310, "drop_own_classes=True", True)):
        p.text(left, 20, title, bold=True)
        p.text(left + 62, 44, "candidates", 12, faint=True)
        for i, own in enumerate(labels):
            p.text(left, 80 + 30 * i, f"row {i + 1}: {own}", 12)
            p.text(left + 71 + 40 * i, 60, own, 12)
            for j, other in enumerate(labels):
                colour = GREEN if i == j else RED if own == other else BLUE
                gone = colour == RED and drops
                p.box(left + 62 + 40 * j, 66 + 30 * i, 32, 20, "none" if gone else colour, None if gone else "")
    for x, colour, words in ((10, GREEN, "own target"), (120, BLUE, "negative"), (220, RED, "right, yet a negative")):
        p.box(x, 204, 12, 12, colour, "")
        p.text(x + 18, 215, words, 12)
    p.box(380, 204, 12, 12)
    p.text(398, 215, "left out", 12)


def smoothing_idea(p: Picture) -> None:
    rows = ((0.7, 0, 0, 0), (0, 0.7, 0, 0), (0, 0, 0.45, 0.25))
    p.text(10, 20, "soft target InfoNCE", bold=True)
    for place, weights in enumerate(rows):
        p.target(10 + 88 * place, 36, weights, 0.25, struck=True)
    p.text(10, 104, "own target and candidates have the same", 12, faint=True)
    p.text(10, 121, "grey floor: it adds one number to every", 12, faint=True)
    p.text(10, 138, "score and cancels", 12, faint=True)
    p.text(320, 20, "expected InfoNCE, cross-entropy", bold=True)
    p.target(320, 36, rows[0], 0.25)
    p.text(320, 104, "every class of the floor is a label that", 12, faint=True)
    p.text(320, 121, "could be drawn: the floor holds back", 12, faint=True)
    p.text(320, 138, "the largest logit", 12, faint=True)


IN_THE_DARK = {"#fff": "none", "#1c1f23": "#eeeeee", "#5b6370": "#a8a8a8", "#111": "#eeeeee", "#e3e6ea": "#5a5f68"}
"""Colours of candidates.svg, which was drawn by hand."""

PICTURES: dict[str, tuple[Callable[[Picture], None], int, int]] = {
    "k-free-step": (k_free_step, 600, 244),
    "own-answers": (own_answers, 550, 226),
    "smoothing-idea": (smoothing_idea, 570, 150),
}

if __name__ == "__main__":
    figures = Path(__file__).parent / "figures"
    drawn = (figures / "candidates.svg").read_text(encoding="utf-8")
    for light, dark in IN_THE_DARK.items():
        drawn = drawn.replace(f'"{light}"', f'"{dark}"')
    (figures / "candidates-dark.svg").write_text(drawn, encoding="utf-8")
    for name, (draw, width, height) in PICTURES.items():
        for variant in LOOKS:
            picture = Picture(width, height, variant)
            draw(picture)
            picture.save(figures / f"{name}{variant}.svg")
