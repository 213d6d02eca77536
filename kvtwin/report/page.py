"""One HTML file that needs no network: text, tables, charts, Plotly and the style inline."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from typing import Any

from core.errors import InputError
from kvtwin.report.figure import Chart
from kvtwin.report.verdict import Verdict

# Plotly 7 adds an upload button; the server address is emptied as well, so nothing can leave the page.
PLOTLY_CONFIG = {
    "displaylogo": False,
    "plotlyServerURL": "",
    "showSendToCloud": False,
    "modeBarButtonsToRemove": ["sendChartToCloud", "select2d", "lasso2d", "zoomIn2d", "zoomOut2d", "autoScale2d"],
}
# The browser itself refuses any request, whatever a script asks for.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data: blob:"

_MOST_NARROW_COLUMNS = 6  # that fit beside each other on a telephone
_MOST_TINY_COLUMNS = 4  # on the narrowest


@dataclass(frozen=True)
class Section:
    """A heading, a line of explanation, and HTML that is already safe."""

    title: str
    lead: str
    body: str


@dataclass(frozen=True)
class Tile:
    """A key figure: its label, its value, and a quieter line below."""

    label: str
    value: str
    detail: str = ""


def plotly_source() -> str:
    """Plotly's JavaScript from the installed package; raises InputError when it is not installed."""
    try:
        from plotly.offline import get_plotlyjs  # imported here: the simulator runs without plotly
    except ImportError:
        raise InputError("report.html needs plotly: pip install 'kvtwin[report]'") from None
    return str(get_plotlyjs())


def render_page(
    title: str,
    verdict: Verdict,
    notices: Sequence[str],
    sentence: str,
    warnings: Sequence[str],
    sections: Sequence[Section],
    charts: Sequence[Chart],
    footer: str,
) -> str:
    """The whole document; `notices` stand in the headline, `warnings` in a list under it."""
    figures = {chart.key: {"data": chart.data, "layout": chart.layout} for chart in charts}
    script = _asset("page.js").replace("__FIGURES__", _script_json(figures))
    script = script.replace("__CONFIG__", _script_json(PLOTLY_CONFIG))
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            f"<title>{escape(title)}</title>",
            f"<style>{_asset('style.css')}</style></head><body><main>",
            _header(verdict, notices, sentence, warnings),
            *(_section(section) for section in sections),
            f"<footer>{escape(footer)}</footer></main>",
            f"<script>{plotly_source()}\n{script}</script></body></html>",
        ]
    )


def tiles(figures: Sequence[Tile]) -> str:
    """Key figures side by side."""
    items = "".join(
        f'<li><span class="label">{escape(tile.label)}</span><strong>{escape(tile.value)}</strong>'
        f'<span class="detail">{_prose(tile.detail)}</span></li>'
        for tile in figures
    )
    return f'<ul class="tiles">{items}</ul>'


def table(header: Sequence[str], rows: Sequence[Sequence[str]], marked: Sequence[int] = ()) -> str:
    """A table whose first column names the row; rows in `marked` are shown as good.

    On a narrow screen rows of many cells become blocks, in which each cell bears its column's name. On the narrowest,
    the name of a row of five or six goes above its cells.
    """
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in header)
    is_wide = len(header) > _MOST_NARROW_COLUMNS
    names = [f' data-column="{escape(cell)}"' if is_wide else "" for cell in header]
    body = "".join(
        f"<tr{' class=good' if index in marked else ''}>"
        f'<th scope="row"{names[0]}>{escape(row[0])}</th>{_cells(names[1:], row[1:])}</tr>'
        for index, row in enumerate(rows)
    )
    is_medium = _MOST_TINY_COLUMNS < len(header) <= _MOST_NARROW_COLUMNS
    kind = f' class=medium style="--num-cells: {len(header) - 1}"' if is_medium else " class=wide" if is_wide else ""
    whole = f"<table{kind}><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="scroll" tabindex="0">{whole}</div>'


def _cells(names: Sequence[str], cells: Sequence[str]) -> str:
    return "".join(f"<td{name}>{escape(cell)}</td>" for name, cell in zip(names, cells, strict=True))


def chart_grid(charts: Sequence[Chart]) -> str:
    """Charts as cards, as many side by side as fit."""
    return f'<div class="grid">{"".join(map(_card, charts))}</div>'


def code(text: str, summary: str) -> str:
    """Folded preformatted text."""
    return f"<details><summary>{escape(summary)}</summary><pre>{escape(text)}</pre></details>"


def _header(verdict: Verdict, notices: Sequence[str], sentence: str, warnings: Sequence[str]) -> str:
    pills = "".join(f'<span class="pill notice">{escape(notice)}</span>' for notice in notices)
    items = "".join(f"<li>{_prose(warning)}</li>" for warning in warnings)
    return (
        f'<header><h1>{escape(verdict.subject)} <span class="pill {verdict.tone}">{escape(verdict.finding)}</span>'
        f"{pills}</h1><p>{_prose(sentence)}</p>{f'<ul class=warnings>{items}</ul>' if items else ''}</header>"
    )


def _section(section: Section) -> str:
    lead = f"<p>{_prose(section.lead)}</p>" if section.lead else ""
    return f"<section><h2>{escape(section.title)}</h2>{lead}{section.body}</section>"


def _card(chart: Chart) -> str:
    """A chart with its legend below: check boxes, because Plotly's own legend cannot be reached by keyboard."""
    boxes = "".join(
        f'<label><input type="checkbox" checked data-chart="{chart.key}" '
        f'data-traces="{",".join(map(str, entry.traces))}">'
        f'<span class="swatch" style="background:{entry.color}"></span>{escape(entry.name)}</label>'
        for entry in chart.legend
    )
    note = f'<p class="note">{escape(chart.note)}</p>' if chart.note else ""
    return (
        f'<figure class="card"><figcaption>{escape(chart.title)}</figcaption>'
        f'<div class="plot" id="{chart.key}" style="min-height:{chart.layout["height"]}px"></div>'
        f'<div class="legend">{boxes}</div>{note}'
        f"<details><summary>Data</summary>{table(chart.header, chart.rows)}</details></figure>"
    )


def _prose(text: str) -> str:
    """Escaped text in which no line breaks between a figure and its per cent sign."""
    return escape(text).replace(" %", "&nbsp;%")


def _asset(name: str) -> str:
    return (files("kvtwin.report") / name).read_text(encoding="utf-8")


def _script_json(value: Any) -> str:
    """JSON that cannot close the script element it stands in."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
