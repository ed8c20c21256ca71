"""Every deliberately broken variant is caught, the intact code is not accused, and the published table is true.

Each audit decides at 1e-6, so that the intact code fails in fewer than one run of 100,000; each variant is far
from what its audits tolerate.
"""

from pathlib import Path

import pytest

from sfumato.audit.runs import randomiser as randomiser_audit
from sfumato.audit.runs import sabotage

pytestmark = pytest.mark.slow
PAGE = Path(__file__).parents[3] / "docs" / "audit-sabotage.md"


def test_all_ten_are_there():
    assert len(sabotage.SABOTAGES) == 10


def test_every_variant_is_caught_the_intact_code_is_not_accused_and_the_published_table_is_true():
    """One test, so that the audits run once and not on every worker."""
    rows = {row.sabotage.name if row.sabotage else "intact": row for row in sabotage.run()}
    assert rows["intact"].findings == {}
    assert [one.name for one in sabotage.SABOTAGES if not rows[one.name].findings] == []
    assert PAGE.read_text(encoding="utf-8") == sabotage.table(tuple(rows.values()))
    assert sabotage.replayed_step() is None  # all of it is undone
    assert randomiser_audit.unit_sphere_sensitivity() == 2.0
