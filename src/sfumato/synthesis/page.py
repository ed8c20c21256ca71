"""The fidelity report of a synthetic table as one page: distributions of the model beside what was measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from sfumato.display import visible

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
        *(_joint(item) for item in data["measured"] if data.get("target") not in item["columns"]),
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
    found = [_joint(item) for item in data["measured"] if target in item["columns"]]
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


def _joint(item: Mapping[str, Any]) -> str:
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
