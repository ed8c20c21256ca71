"""Every exception Sfumato raises on purpose.

SfumatoError
├── InvalidInput            a value that makes no sense; nothing was computed or spent
├── Refused                 sensible, but not allowed
│   ├── BudgetExceeded      the ledger has no room for the charge
│   ├── RelationMismatch    a charge under another neighbouring relation or privacy unit
│   │   └── UnitMismatch    a charge for another privacy unit
│   ├── NotPrivate          an ε that cannot be justified is not printed
│   ├── NotVerified         a certificate, signature or witness that must not be relied on
│   └── UnsupportedModel    a model whose examples cannot be told apart
├── LedgerError             the ledger cannot be opened, read or written
│   └── LedgerTampered      its hash chain or its head does not agree
├── DataError
│   ├── DataUnavailable     no source has the data set
│   └── DataCorrupted       a file does not have the expected digest
└── MissingExtra            an optional dependency is not installed

LittleProtection, a warning: the request is carried out, and protects practically no one.
SettingsChanged, a warning: a run goes on with other settings than it began with, or than it was given now.
TooMuchNoise, a warning: the noise will most likely drown the model or the answer.
"""

from __future__ import annotations


class SfumatoError(Exception):
    """Base of all errors raised on purpose; its text is one sentence with the remedy."""


class LittleProtection(UserWarning):
    """An (ε, δ) at which no one is protected was asked for; the text is one sentence."""


class SettingsChanged(UserWarning):
    """A run was taken up with other settings than it began with; the text says which go on."""


class TooMuchNoise(UserWarning):
    """A learning rate at which noise alone carries the weights too far, or a query that noise drowns."""


class InvalidInput(SfumatoError, ValueError):
    """A value outside its domain, found before anything was computed or spent."""


class Refused(SfumatoError):
    """A request that makes sense but would break a guarantee."""


class BudgetExceeded(Refused):
    """The charge does not fit the rest of the budget.

    Args:
        message: One sentence with the remedy.
        epsilon_spent: The ε that the ledger has spent.
        epsilon_left: The largest further ε that it would accept.
    """

    def __init__(self, message: str, *, epsilon_spent: float, epsilon_left: float) -> None:
        super().__init__(message)
        self.epsilon_spent = epsilon_spent
        self.epsilon_left = epsilon_left


class RelationMismatch(Refused):
    """A charge stated under another neighbouring relation or for another privacy unit."""


class UnitMismatch(RelationMismatch):
    """A charge stated for another privacy unit than the budget's.

    Attributes:
        wanted: The budget's unit.
        given: The unit that was stated.
    """

    def __init__(self, *, wanted: str, given: str) -> None:
        self.wanted, self.given = wanted, given
        super().__init__(self.sentence(f"unit={wanted!r} in Python or in a policy"))

    def sentence(self, how: str) -> str:
        """The remedy, where `how` tells a reader how to state the budget's unit."""
        return (
            f"expected unit={self.wanted!r} as in the budget, got unit={self.given!r}; if one row is one "
            f"{self.wanted}, say so ({how}); if not, price the release for all rows of one "
            "(accounting.for_group), or use another ledger"
        )


class NotPrivate(Refused):
    """An ε was asked for that nothing justifies."""


class NotVerified(Refused):
    """A certificate, a signature or a witness that must not be relied on."""


class UnsupportedModel(Refused):
    """A model for which per-example clipping cannot be guaranteed."""


class LedgerError(SfumatoError):
    """The ledger cannot be opened, read or written."""


class LedgerTampered(LedgerError):
    """The ledger's hash chain, or its head against a certificate, does not agree."""


class DataError(SfumatoError):
    """A data set cannot be had or cannot be trusted."""


class DataUnavailable(DataError):
    """No source has the data set."""


class DataCorrupted(DataError):
    """A file does not have the expected digest or form."""


class MissingExtra(SfumatoError, ImportError):
    """An optional dependency is missing; the text names the extra to install.

    Args:
        package: The package that could not be imported.
        extra: The extra of Sfumato that installs it.
    """

    def __init__(self, *, package: str, extra: str) -> None:
        super().__init__(f"{package} is not installed; install it with: pip install 'sfumato[{extra}]'")
        self.package = package
        self.extra = extra


_EXTRAS = {
    "covasim": "lab",
    "fastapi": "desk",
    "matplotlib": "train",
    "mbi": "synthesis",
    "PIL": "train",
    "psycopg": "postgres",
    "pyspark": "spark",
    "safetensors": "train",
    "sfumato_lab": "lab",
    "sklearn": "train",
    "sqlalchemy": "desk",
    "torch": "train",
    "uvicorn": "desk",
}


def missing_extra(error: ModuleNotFoundError) -> MissingExtra | None:
    """Return the error that names the extra with the module; None for a module of no extra.

    >>> str(missing_extra(ModuleNotFoundError("No module named 'torch'", name="torch.nn")))
    "torch is not installed; install it with: pip install 'sfumato[train]'"
    """
    package = (error.name or "").partition(".")[0]
    return MissingExtra(package=package, extra=_EXTRAS[package]) if package in _EXTRAS else None
