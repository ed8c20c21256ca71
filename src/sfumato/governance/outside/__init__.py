"""Releases that were made with other software: read, priced, and recorded.

>>> from sfumato.governance.outside import opinion_of
>>> flower = [("library", "flower"), ("epsilon", 10), ("delta", 1e-5), ("num_server_rounds", 100)]
>>> round(opinion_of(flower).epsilon, -1)  # 10 was claimed
300.0
"""

from sfumato.governance.outside.opinion import Opinion, opinion_of
from sfumato.governance.outside.reading import read_settings

__all__ = ["Opinion", "opinion_of", "read_settings"]
