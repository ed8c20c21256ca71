"""Where verified files are kept, and how they get there whole or not at all."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from sfumato.errors import DataUnavailable
from sfumato.storage import write_whole


def folder() -> Path:
    """$SFUMATO_CACHE, or `sfumato` in the platform's cache folder."""
    if chosen := os.environ.get("SFUMATO_CACHE"):
        return Path(chosen).expanduser()
    return _platform_caches() / "sfumato"


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


def _platform_caches() -> Path:
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    if local := os.environ.get("LOCALAPPDATA"):
        return Path(local)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
