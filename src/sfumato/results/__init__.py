"""What every kind of run leaves: a frozen result of its own type, written by one function and read by one.

>>> result = Training(epsilon=1.0, delta=1e-5, test_accuracy=0.98)
>>> from_json(result.to_json()) == result
True
"""

from sfumato.results.folders import (
    MODEL,
    RESULT,
    Run,
    find_runs,
    read_history,
    read_run,
    write_history,
    write_run,
)
from sfumato.results.kinds import KINDS, from_json
from sfumato.results.record import Record
from sfumato.results.result import FORMAT, Result
from sfumato.results.runs import (
    Audit,
    Ballot,
    ChargeLine,
    EpidemicCurve,
    Epoch,
    EpochReport,
    Failure,
    LedgerStatement,
    PlainTraining,
    Reports,
    Tracing,
    Training,
    Tuning,
    Votes,
)
from sfumato.results.several import SeveralHolders
from sfumato.results.studies import (
    AttackedNetwork,
    AverageAttack,
    Comparison,
    Differencing,
    FeatureMaps,
    Histogram,
    Membership,
    Network,
    NoisedDigits,
    NoiseLevel,
    PointEstimate,
    Reconstruction,
    Reproduction,
    Sweep,
    SweepRun,
    SyntheticDigits,
)

__all__ = [
    "FORMAT",
    "KINDS",
    "MODEL",
    "RESULT",
    "AttackedNetwork",
    "Audit",
    "AverageAttack",
    "Ballot",
    "ChargeLine",
    "Comparison",
    "Differencing",
    "EpidemicCurve",
    "Epoch",
    "EpochReport",
    "Failure",
    "FeatureMaps",
    "Histogram",
    "LedgerStatement",
    "Membership",
    "Network",
    "NoiseLevel",
    "NoisedDigits",
    "PlainTraining",
    "PointEstimate",
    "Reconstruction",
    "Record",
    "Reports",
    "Reproduction",
    "Result",
    "Run",
    "SeveralHolders",
    "Sweep",
    "SweepRun",
    "SyntheticDigits",
    "Tracing",
    "Training",
    "Tuning",
    "Votes",
    "find_runs",
    "from_json",
    "read_history",
    "read_run",
    "write_history",
    "write_run",
]
