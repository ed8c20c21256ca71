"""The stages of the demo on MNIST, which `sfumato demo` runs and `sfumato report` draws.

Each stage is a small function that leaves a run folder of its own under `out/demo/STAGE/`, so that a stage that
is done is not run again, and one that fails does not stop the others. The MNIST stages charge one ledger.
"""

from sfumato_lab.demo.context import FULL, QUICK, Size
from sfumato_lab.demo.runner import STAGES, Stage, StageOutcome, begin_again, folder_of, run_stages

__all__ = ["FULL", "QUICK", "STAGES", "Size", "Stage", "StageOutcome", "begin_again", "folder_of", "run_stages"]
