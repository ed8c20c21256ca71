"""The whole story on MNIST, in stages: what `sfumato demo` runs and `sfumato report` draws.

Each stage is a small function that leaves a run folder of its own under `out/demo/STAGE/`, so that a stage that
is done is not run again, and one that fails does not stop the others. The MNIST stages charge one ledger.
"""

from sfumato.experiments.story.size import FULL, QUICK, Size
from sfumato.experiments.story.stages import STAGES, Stage
from sfumato.experiments.story.telling import Told, begin_again, folder_of, tell

__all__ = ["FULL", "QUICK", "STAGES", "Size", "Stage", "Told", "begin_again", "folder_of", "tell"]
