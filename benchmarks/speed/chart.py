"""The cases in which a peer ran, as pairs of bars in one SVG: shorter is faster."""

from __future__ import annotations

from xml.sax.saxutils import escape

from speed.contender import COMPILED, OURS, Result
from speed.screen import ratio_to_peer

WIDTH, LEFT, RIGHT, GAP, BAR, TOP = 720, 190, 190, 12, 14, 40  # pixels
COLORS = {OURS: "#fdba74", COMPILED: "#f97316"}
PEER_COLOR, INK = "#94a3b8", "#334155"


def svg(cases: dict[str, dict[str, Result]]) -> str:
    """`cases` are results by title; bars are CPU-seconds on one linear axis."""
    most_s = max(result["cpu_s"] for results in cases.values() for result in results.values())
    height = TOP + sum(_height(results) for results in cases.values())
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        _text(12, 22, "CPU-seconds of all threads, from trace file to metrics (shorter is faster)", size=13),
    ]
    y = TOP
    for title, results in cases.items():
        parts.append(_text(LEFT - 10, y + BAR + 6, title, "end"))
        for line, (name, result) in enumerate(results.items()):
            width = result["cpu_s"] / most_s * (WIDTH - LEFT - RIGHT)
            top, color = y + line * (BAR + 3), COLORS.get(name, PEER_COLOR)
            parts.append(f'<rect x="{LEFT}" y="{top}" width="{width:.1f}" height="{BAR}" rx="2" fill="{color}"/>')
            parts.append(_text(LEFT + width + 6, top + BAR - 3, _told(name, result, results), size=11))
        y += _height(results)
    return "\n".join([*parts, "</svg>", ""])


def _height(results: dict[str, Result]) -> int:
    return len(results) * (BAR + 3) + GAP


def _told(name: str, result: Result, results: dict[str, Result]) -> str:
    ratio = ratio_to_peer(name, results)
    compared = f" ({ratio:.2f}x)" if ratio is not None else ""
    return f"{name} {result['cpu_s']:.2f} s{compared}"


def _text(x: float, y: float, text: str, anchor: str = "start", size: int = 12) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="{INK}">{escape(text)}</text>'
