"""How far a synthetic table may be trusted, from paid measurements; distances to the real table are private."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

import numpy as np
import numpy.typing as npt

from sfumato.display import visible
from sfumato.synthesis.cells import CellColumn
from sfumato.synthesis.counting import Clique
from sfumato.synthesis.inference import Measurement
from sfumato.synthesis.synthesizer import Synthesis

Floats = npt.NDArray[np.float64]

_HALF_WIDTH = 1.96  # of a 95% interval, in σ
_MEAN_NOISE = 0.7979  # E|Z|
_SHOWN = 600  # cells of a marginal of several columns that are listed one by one
GOOD_FOR = (
    "shares and averages of single columns",
    "how the pairs and triples listed as measured go together",
    "writing and testing software, queries and models before they are run on the real table",
)
NOT_GOOD_FOR = (
    "single rows: none of them is a person",
    "small groups: counts below the noise stated here mean nothing",
    "how three or more columns go together where that was not measured",
    "intervals of statistics computed on it as if its rows were real: they leave out the noise",
)


def report(
    found: Synthesis, asked: Sequence[Clique], notes: Sequence[str], *, target: str | None = None
) -> dict[str, Any]:
    """One- and two-way distributions: the model beside the measurements, with the noise.

    Columns together come with the target first, and so do those of `asked` that were not measured. Of a column
    that was only counted as missing or not, the values were not.
    """
    total = found.model.total
    joined = [_joint(found, item, total) for item in found.measurements if len(item.clique) > 1]
    return {
        "rows_measured": round(total),
        "target": target,
        "columns": [_single(found, item, total) for item in found.measurements if len(item.clique) == 1],
        "measured": sorted(joined, key=lambda item: target not in item["columns"]),
        "not_measured": [
            list(clique)
            for clique in sorted(asked, key=lambda clique: target not in clique)
            if clique not in found.measured
        ],
        "good_for": list(GOOD_FOR),
        "not_good_for": list(NOT_GOOD_FOR),
        "notes": list(notes),
    }


def _single(found: Synthesis, item: Measurement, total: float) -> dict[str, Any]:
    name = item.clique[0]
    bucket = found.buckets[name]
    model = found.model.marginal((name,))
    half = _HALF_WIDTH * bucket.spread(item.sigma) / total
    shares = item.counts / total
    return {
        "column": name,
        "values": _labels(found, name),
        "synthetic": [round(float(value), 6) for value in model],
        "measured": [round(float(value), 6) for value in shares],
        "low": [round(float(value), 6) for value in np.clip(shares - half, 0, 1)],
        "high": [round(float(value), 6) for value in np.clip(shares + half, 0, 1)],
    }


def _label(column: CellColumn, places: npt.NDArray[np.int64]) -> str:
    if column.values is None and places[-1] - places[0] + 1 == len(places) and places[-1] != column.missing:
        return column.label(int(places[0]), int(places[-1]))
    shown = [column.label(int(place)) for place in places[:3]]
    return ", ".join(shown) + (f" and {len(places) - 3} more" if len(places) > 3 else "")


def _joint(found: Synthesis, item: Measurement, total: float) -> dict[str, Any]:
    """Half the L1 distance of model and measurement, beside that of the noise alone."""
    model = found.marginal(item.clique)
    shares = item.counts / total
    away = 0.5 * float(np.abs(model - shares).sum())
    shown = {
        "shape": list(model.shape),
        "synthetic": [round(float(value), 6) for value in model.ravel()],
        "measured": [round(float(value), 6) for value in np.ravel(shares)],
        "labels": [_labels(found, name) for name in item.clique],
    }
    return {
        "columns": list(found.columns_of(item.clique)),
        "cells": int(model.size),
        "half_width": round(_HALF_WIDTH * item.sigma / total, 6),
        "distance_to_measurement": round(away, 4),
        "distance_by_noise_alone": round(0.5 * _MEAN_NOISE * item.sigma * model.size / total, 4),
        **(shown if model.size <= _SHOWN else {}),
    }


def _labels(found: Synthesis, name: str) -> list[str]:
    bucket = found.buckets[name]
    column = next(column for column in found.model.columns if column.name == bucket.column)
    return [_label(column, np.nonzero(shares > 0)[0]) for shares in bucket.shares]


def in_words(data: Mapping[str, Any]) -> str:
    """The report as plain text."""
    lines = [f"About {data['rows_measured']:,} rows (noisy).", "", "Columns: share in the model [95% interval]"]
    for column in data["columns"]:
        lines.append(f"  {column['column']}")
        for place, value in enumerate(column["values"]):
            low, high = column["low"][place], column["high"][place]
            lines.append(f"    {value}: {column['synthetic'][place]:.2%} [{low:.2%}, {high:.2%}]")
    lines += ["", "Measured together: distance of model and measurement (of noise alone)"]
    for item in data["measured"]:
        away, noise = item["distance_to_measurement"], item["distance_by_noise_alone"]
        lines.append(f"  {', '.join(item['columns'])}: {away:.3f} ({noise:.3f})")
    if data["not_measured"]:
        lines += [
            "",
            f"Not measured: {len(data['not_measured'])} combinations. They are inferred, without intervals.",
            *(f"  {', '.join(clique)}" for clique in data["not_measured"]),
        ]
    for title, key in (("Good for", "good_for"), ("Not good for", "not_good_for"), ("Notes", "notes")):
        if data[key]:
            lines += ["", title, *(f"  {line}" for line in data[key])]
    return "\n".join(map(visible, lines)) + "\n"


def distances(found: Synthesis, exact: Mapping[Clique, Floats]) -> dict[str, Any]:
    """Half the L1 distances of the model to the private table: PRIVATE, for the holder only."""
    each = {
        ",".join(found.columns_of(clique)): round(0.5 * float(np.abs(found.marginal(clique) - shares).sum()), 5)
        for clique, shares in exact.items()
    }
    return {"private": "not paid for: for the holder of the table only", "distances": each}


# The report as one page

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
h2 { margin-top: 2.5rem } h3 { margin: 1.5rem 0 .3rem }
table { border-collapse: collapse } th { font-weight: 400; text-align: left; padding-right: 1rem }
td { padding: 1px } td.number { padding: 0 .8rem; text-align: right; font-variant-numeric: tabular-nums }
.bar { width: 16rem } .bar i { display: block; height: .6rem; background: #2f6f8f }
.bar i + i { background: #d9a441 }
.pair { display: flex; gap: 2rem; flex-wrap: wrap }
.pair td { width: 1rem; height: 1rem; border: 1px solid #eee }
.key::before { content: "■ "; color: #2f6f8f } .key.measured::before { color: #d9a441 }
.pair th { font-size: .7rem; line-height: 1; white-space: nowrap }
@media (max-width: 40rem) { .bar { width: 6rem } }
"""

_KEY = (
    "<p>Darker is more frequent; the first column goes down, the others across. The distance is half the sum "
    "of differences.</p>"
)


def page(data: Mapping[str, Any]) -> str:
    """One self-contained HTML page from the report's JSON; names from the policy are escaped.

    >>> nothing = {"rows_measured": 5, "good_for": [], "not_good_for": [], "notes": ["<b>"]}
    >>> "&lt;b&gt;" in page({**nothing, "columns": [], "measured": [], "not_measured": []})
    True
    """
    parts = [
        f"<p>The table has about {data['rows_measured']:,} rows; the number is noisy. All figures on this page "
        "were paid for or follow from such: the page may be shown with the synthetic table.</p>",
        *(
            f"<h3>{title}</h3>{_list(data[key])}"
            for title, key in (
                ("Good for", "good_for"),
                ("Not good for", "not_good_for"),
                ("Notes", "notes"),
            )
            if data[key]
        ),
        *_with_target(data),
        "<h2>Single columns</h2><p><span class='key'>synthetic</span> &ensp; "
        "<span class='key measured'>measured,</span> with the interval that holds the true share with 95%</p>",
        *map(_column, data["columns"]),
        f"<h2>Columns together</h2>{_KEY}",
        *(_joint_table(item) for item in data["measured"] if data.get("target") not in item["columns"]),
        _rest(data["not_measured"]),
    ]
    title = "How far this synthetic table may be trusted"
    head = f"<meta charset='utf-8'><meta name='viewport' content='width=device-width'><title>{title}</title>"
    return (
        f"<!doctype html><html lang='en'>{head}<style>{_STYLE}</style><h1>{title}</h1>{''.join(parts)}</html>\n"
    )


def _with_target(data: Mapping[str, Any]) -> list[str]:
    target = data.get("target")
    if target is None:
        return []
    found = [_joint_table(item) for item in data["measured"] if target in item["columns"]]
    return [
        f"<h2>Columns with the target, {_text(target)}</h2>{_KEY}",
        *(found or ["<p>None was measured.</p>"]),
    ]


def _text(value: object) -> str:
    return escape(visible(str(value)))


def _list(lines: Iterable[str]) -> str:
    return f"<ul>{''.join(f'<li>{_text(line)}</li>' for line in lines)}</ul>"


def _column(item: Mapping[str, Any]) -> str:
    most = max([*item["synthetic"], *item["measured"], 1e-9])
    rows = []
    for at, value in enumerate(item["values"]):
        made, found = item["synthetic"][at], max(0.0, item["measured"][at])
        bars = "".join(f"<i style='width:{100 * share / most:.1f}%'></i>" for share in (made, found))
        interval = f"{item['low'][at]:.1%} to {item['high'][at]:.1%}"
        rows.append(
            f"<tr><th>{_text(value)}</th><td class='bar'>{bars}</td><td class='number'>{made:.1%}</td>"
            f"<td class='number'>{interval}</td></tr>"
        )
    return f"<h3>{_text(item['column'])}</h3><table>{''.join(rows)}</table>"


def _joint_table(item: Mapping[str, Any]) -> str:
    away, noise = item["distance_to_measurement"], item["distance_by_noise_alone"]
    title = _text(", ".join(item["columns"]))
    labels = item.get("labels", [])
    ends = f" Across: {_text(labels[1][0])}, … {_text(labels[1][-1])}." if len(labels) == 2 else ""
    words = f"<h3>{title}</h3><p>Distance {away:.3f}; noise alone makes {noise:.3f}.{ends}</p>"
    if "synthetic" not in item:
        return words + "<p>Too many cells to show.</p>"
    pictures = [
        f"<div>{name}{_cells(item[name], item['shape'], labels[0])}</div>" for name in ("synthetic", "measured")
    ]
    return f"{words}<div class='pair'>{''.join(pictures)}</div>"


def _cells(shares: Sequence[float], shape: Sequence[int], labels: Sequence[str]) -> str:
    """The first column downwards, all others across."""
    across, most = len(shares) // shape[0], max([*shares, 1e-9])
    lines = [shares[start : start + across] for start in range(0, len(shares), across)]
    tinted = [
        "".join(
            f"<td style='background:rgba(47,111,143,{max(0.0, share) / most:.2f})' title='{share:.2%}'></td>"
            for share in line
        )
        for line in lines
    ]
    rows = (f"<tr><th>{_text(label)}</th>{line}</tr>" for label, line in zip(labels, tinted, strict=True))
    return f"<table>{''.join(rows)}</table>"


def _rest(cliques: Sequence[Sequence[str]]) -> str:
    if not cliques:
        return ""
    names = "; ".join(", ".join(clique) for clique in cliques)
    return (
        "<h2>Not measured</h2><p>There are no intervals for these: the model infers them from what was "
        f"measured. {_text(names)}</p>"
    )
