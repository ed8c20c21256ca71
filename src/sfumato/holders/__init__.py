"""Several holders, one release: each adds its share of noise, masks hide the rest, the sum is released."""

from sfumato.holders.parties import Parties

__all__ = ["Parties"]
