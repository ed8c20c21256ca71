"""The demo on MNIST, in stages: what `sfumato demo` runs and `sfumato report` draws.

Each stage is a small function that leaves a run folder of its own under `out/demo/STAGE/`, so that a stage that
is done is not run again, and one that fails does not stop the others. The MNIST stages charge one ledger.
"""

from sfumato_lab.demo.runner import StageOutcome, begin_again, folder_of, run_stages
from sfumato_lab.demo.size import FULL, QUICK, Size
from sfumato_lab.demo.stages import STAGES, Stage

__all__ = ["FULL", "QUICK", "STAGES", "Size", "Stage", "StageOutcome", "begin_again", "folder_of", "run_stages"]
