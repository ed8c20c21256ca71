"""Contact-tracing risk scores that protect the people behind them.

An epidemic is held down by testing the people with the highest risk scores. A score is computed from messages
of the contacts' phones, so it reveals something about them; a `Release` sets the noise that bounds this, and
states its cost on one day, over a message's life, and for a whole person.

>>> disease = Disease()
>>> release = Release.calibrated(method="dpfn", epsilon=1, delta=1e-3, disease=disease)
>>> price = release.price(disease, contacts_per_day=10).epsilons(1e-3)
>>> price["release"] <= price["lifetime"] <= 1 < price["person"]
True
"""

from sfumato_lab.tracing.attack import RELEASES, AttackResult, attack
from sfumato_lab.tracing.campaign import UNIT, Campaign, Outcome, run
from sfumato_lab.tracing.contacts import ContactWindow, Meetings
from sfumato_lab.tracing.covasim import CovasimSimulator
from sfumato_lab.tracing.disease import Disease, Kind, TestKit
from sfumato_lab.tracing.neighbours import Belief, Evidence, believe
from sfumato_lab.tracing.population import Population
from sfumato_lab.tracing.release import METHODS, Price, Release
from sfumato_lab.tracing.scoring import release_scores
from sfumato_lab.tracing.simulators import SeirSimulator, Simulator, Town

__all__ = [
    "METHODS",
    "RELEASES",
    "UNIT",
    "AttackResult",
    "Belief",
    "Campaign",
    "ContactWindow",
    "CovasimSimulator",
    "Disease",
    "Evidence",
    "Kind",
    "Meetings",
    "Outcome",
    "Population",
    "Price",
    "Release",
    "SeirSimulator",
    "Simulator",
    "TestKit",
    "Town",
    "attack",
    "believe",
    "release_scores",
    "run",
]
