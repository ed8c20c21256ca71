"""The names that `sfumato.audit` offers, and what it may not know."""

import subprocess
import sys

from sfumato import audit


def test_names():
    assert sorted(audit.__all__) == sorted(set(audit.__all__))
    for name in audit.__all__:
        assert getattr(audit, name) is not None


def test_bounds_need_no_torch():
    code = "import sys, sfumato.audit; sys.exit('torch' in sys.modules or 'sfumato.training' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
