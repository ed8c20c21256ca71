"""Names that others rely on, and what they must not drag in."""

import subprocess
import sys

import pytest

from sfumato import pate


def test_every_name_is_there():
    assert sorted(pate.__all__) == sorted(set(pate.__all__))
    for name in pate.__all__:
        assert getattr(pate, name) is not None
    assert set(pate.__all__) <= set(dir(pate))
    with pytest.raises(AttributeError):
        _ = pate.nonsense


def test_votes_need_no_torch():
    code = "import sys, sfumato.pate as p; p.aggregate, p.analyze, p.VotePlan; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
