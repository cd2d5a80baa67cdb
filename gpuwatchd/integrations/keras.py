"""A callback for Keras 3: ``model.fit(..., callbacks=[saving, GpuwatchdCallback(saving)])``.

Keras tells no callback what another one has saved: it is seen by the files of those that are named.
"""

from __future__ import annotations

import contextlib
import glob
import logging
import os
import re
import time
from pathlib import Path
from typing import Any

from gpuwatchd.integrations import missing
from gpuwatchd.integrations.training import READ_EVERY_S, Training

try:
    from keras.callbacks import Callback
except ModuleNotFoundError as error:
    raise missing("keras", error) from None


class GpuwatchdCallback(Callback):
    """Shows alerts on this process in the log, and reports what other callbacks have saved.

    Parameters
    ----------
    saving
        Callbacks that save, which come before this one: ``ModelCheckpoint``, ``BackupAndRestore``.
    """

    def __init__(self, *saving: Any) -> None:
        super().__init__()
        self._training = Training(logging.getLogger("absl").warning)  # as Keras itself
        self._patterns = [_pattern(one) for one in saving]
        self._newest_s = time.time()  # files that are older are of another training
        self._searched_at_s = 0.0

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
        before_s, self._searched_at_s = self._newest_s, time.monotonic()
        for path in [path for one in self._patterns for path in glob.iglob(one)]:  # noqa: PTH207 - absolute ones too
            with contextlib.suppress(OSError):  # one that has just been deleted
                self._newest_s = max(self._newest_s, Path(path).stat().st_mtime)
        if self._newest_s > before_s:
            self._training.saved(f"{when} of {self.model.name}", min(self._newest_s, time.time()))


def _pattern(saving: Any) -> str:
    """Return which files a callback writes: a path with fields ("{epoch}"), or all of a folder."""
    folder = getattr(saving, "backup_dir", None)
    if folder is not None:
        return f"{glob.escape(os.fspath(folder))}/*"
    return re.sub(r"\{[^{}]*\}", "*", glob.escape(os.fspath(saving.filepath)))
