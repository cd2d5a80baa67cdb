"""A callback for Keras 3: ``model.fit(..., callbacks=[saving, GpuwatchdCallback(saving)])``.

It shows alerts on its own process in the log of Keras (absl) and reports checkpoints. Keras tells
no callback what another one has saved: it is seen by the files of those that are named.
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
import time
from pathlib import Path
from typing import Any, Final

from gpuwatchd.integrations import missing
from gpuwatchd.integrations.training import READ_EVERY_S, Training

try:
    from absl import logging
    from keras.callbacks import Callback
except ModuleNotFoundError as error:
    raise missing("keras", error) from None

_FIELD: Final = re.compile(r"\{[^{}]*\}")
"""A field of a path: ``{epoch:02d}``."""


class GpuwatchdCallback(Callback):
    """Shows alerts on this process in the log, and reports what other callbacks have saved.

    Parameters
    ----------
    saving
        Callbacks that save: ``ModelCheckpoint``, ``BackupAndRestore``. They come before this one in
        the list of callbacks.
    """

    def __init__(self, *saving: Any) -> None:
        super().__init__()
        self._training = Training(logging.warning)
        self._places = [_pattern(one) for one in saving]
        self._newest_s = self._searched_at_s = 0.0

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Begin: files that are older are of another training."""
        self._newest_s = time.time()

    def on_train_batch_end(self, batch: int, *_: Any, **__: Any) -> None:
        """Show what is new, and look for checkpoints now and then."""
        self._training.step()
        if time.monotonic() - self._searched_at_s >= READ_EVERY_S:
            self._search(f"batch {batch + 1}")

    def on_epoch_end(self, epoch: int, *_: Any, **__: Any) -> None:
        """Look for checkpoints."""
        self._search(f"epoch {epoch + 1}")

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """Wait until the last checkpoint is reported."""
        self._training.end()

    def _search(self, when: str) -> None:
        """Report the newest checkpoint, where there is one since the last search."""
        self._searched_at_s = time.monotonic()
        before_s = self._newest_s
        for path in (path for pattern in self._places for path in glob.iglob(pattern)):  # noqa: PTH207 - from the root too
            with contextlib.suppress(OSError):  # one that has just been deleted
                self._newest_s = max(self._newest_s, Path(path).stat().st_mtime)
        if self._newest_s > before_s:
            at_s = min(self._newest_s, time.time())
            self._training.saved(f"{when} of {self.model.name}", at_s)


def _pattern(saving: Any) -> str:
    """Return which files a callback writes.

    Raises
    ------
    TypeError
        It is none that saves.
    """
    path = getattr(saving, "filepath", None)
    if path is not None:
        return _FIELD.sub("*", glob.escape(os.fspath(path)))
    folder = getattr(saving, "backup_dir", None)
    if folder is None:
        raise TypeError(f"{saving!r} saves no checkpoints: it has no filepath and no backup_dir")
    return f"{glob.escape(os.fspath(folder))}/*"
