"""A statement as a page for people: HTML that needs no other file, or PDF."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sfumato.errors import InvalidInput, MissingExtra
from sfumato.governance.hazards import Hazard
from sfumato.governance.statement import Statement
from sfumato.storage import write_whole

_SIZE = 10


def write_statement(statement: Statement, path: Path, hazards: list[Hazard] | None = None) -> None:
    """Write a statement as .html, .pdf or .json.

    Args:
        statement: The statement.
        path: Where; its ending says which.
        hazards: A checklist to append to a page.

    Raises:
        InvalidInput: If the ending is another.

    >>> import tempfile; from sfumato.ledger import Budget, Ledger
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with Ledger.open(f"{folder}/l.db", budget=Budget(epsilon=1)) as ledger:
    ...         write_statement(Statement.of(ledger), Path(folder, "statement.html"))
    """
    makers = {".html": _html, ".pdf": _pdf, ".json": _json}
    if path.suffix.lower() not in makers:
        raise InvalidInput(f"expected a file that ends in {', '.join(makers)}, got {path.name!r}")
    content = makers[path.suffix.lower()](statement, hazards or [])
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, content, readable=True)


def _json(statement: Statement, hazards: list[Hazard]) -> bytes:
    return json.dumps(statement.data, ensure_ascii=False, indent=2, allow_nan=False).encode()


def _html(statement: Statement, hazards: list[Hazard]) -> bytes:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("sfumato.governance", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page = environment.get_template("statement.html").render(
        book=statement.data, signer=_signed_by(statement), hazards=hazards, number=_number
    )
    return page.encode()


def _signed_by(statement: Statement) -> str:
    key = statement.signer
    return "Unsigned: whoever has the file can change it." if key is None else f"Signed by the key {key.id}."


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"


def _pdf(statement: Statement, hazards: list[Hazard]) -> bytes:
    """The same text on A4, in a typeface that has ε and δ."""
    try:
        from fpdf import FPDF
    except ImportError as error:
        raise MissingExtra(package="fpdf2", extra="desk") from error
    import matplotlib

    fonts = Path(matplotlib.get_data_path(), "fonts", "ttf")
    page = FPDF(format="A4")
    for style, file in (("", "DejaVuSans.ttf"), ("B", "DejaVuSans-Bold.ttf")):
        page.add_font("DejaVu", style, fonts / file)
    page.set_margins(20, 20)
    page.set_auto_page_break(True, 20)
    page.set_title("Privacy statement")
    page.add_page()
    for text, style, size in _lines(statement, hazards):
        page.set_font("DejaVu", style, size)
        page.multi_cell(0, size * 0.55, text, new_x="LMARGIN", new_y="NEXT", align="L")
        page.ln(1.5)
    return bytes(page.output())


def _lines(statement: Statement, hazards: list[Hazard]) -> list[tuple[str, str, int]]:
    book: Any = statement.data
    lines = [
        ("Privacy statement", "B", 18),
        (f"{book['name']}, {book['made'][:10]}", "", _SIZE),
        *([(f"Answered for by {book['holder']}.", "", _SIZE)] if book["holder"] else []),
        (book["promise"], "", _SIZE),
        (book["balance"], "B", _SIZE + 1),
        *([(book["meaning"], "", _SIZE)] if book["meaning"] else []),
        *((f"Warning: {text}", "B", _SIZE) for text in book["warnings"]),
        ("What was released", "B", 13),
        *((_charge(line), "", _SIZE - 1) for line in book["charges"]),
    ]
    if hazards:
        lines.append(("Hazards of NIST SP 800-226", "B", 13))
        lines += [(f"{item.status}: {item.hazard}. {item.answer}", "", _SIZE - 1) for item in hazards]
    head = book["head"]
    return [
        *lines,
        ("How to check it", "B", 13),
        (f"{_signed_by(statement)} Entry {head['sequence']} of the ledger has the hash {head['hash']}.", "", 8),
        (f"Made by {book['software']}.", "", 8),
    ]


def _charge(line: Any) -> str:
    cost = "paid with its plan" if line["drawn_from_plan"] else f"ε = {_number(line['epsilon'])}"
    return f"{line['entry']}. {line['time'][:10]}  {line['purpose']}  ({cost}, {line['status']})"
