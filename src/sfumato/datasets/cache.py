"""Where verified files are kept, and how they get there whole or not at all."""

from __future__ import annotations

from pathlib import Path

from sfumato.errors import DataUnavailable
from sfumato.storage import cache_folder as folder
from sfumato.storage import write_whole

__all__ = ["folder", "write"]


def write(path: Path, contents: bytes) -> None:
    """Puts a file in place at once: another process sees all of it or none, also after a crash.

    Whoever writes last wins; as only verified contents are written, the winners are alike.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, contents, readable=True)
    except OSError as error:
        raise DataUnavailable(
            f"{path} cannot be written ({error.strerror or error}); name a folder that can in SFUMATO_CACHE"
        ) from error
