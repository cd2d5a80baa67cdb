"""A callback for Lightning: ``Trainer(callbacks=[GpuwatchdCallback()])``.

It shows alerts on its own process in Lightning's log and reports checkpoints. Each rank has one,
which speaks of its own process only.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from typing import Any

from gpuwatchd.integrations import missing
from gpuwatchd.integrations.training import Training

try:
    if "pytorch_lightning" in sys.modules:  # the same under its other name
        from pytorch_lightning import Callback
    else:
        from lightning.pytorch import Callback
except ModuleNotFoundError as error:
    raise missing("lightning", error) from None


class GpuwatchdCallback(Callback):
    """Shows alerts on this process in the log, and reports when a checkpoint has been saved.

    A checkpoint counts from when its content was collected. One of weights alone
    (``save_weights_only=True``), from which no training goes on, does not count.
    """

    def __init__(self) -> None:
        # By its name Lightning's own handler takes it, on each rank.
        self._training = Training(logging.getLogger(Callback.__module__).warning)
        self._saving: tuple[str, float] | None = None

    def on_train_batch_end(self, *_: Any, **__: Any) -> None:
        """Show what is new."""
        self._training.step()

    on_validation_batch_end = on_test_batch_end = on_predict_batch_end = on_train_batch_end

    def on_save_checkpoint(self, trainer: Any, *_: Any, **__: Any) -> None:
        """Note that a checkpoint will be written: Lightning does not say when it has been."""
        what = f"step {trainer.global_step}"
        with contextlib.suppress(Exception):  # a logger may ask its server for its name
            run = getattr(trainer.logger, "log_dir", None) or getattr(trainer.logger, "name", None)
            what = f"{what} of {run}" if run else what
        self._saving = (what, time.time())

    def on_train_batch_start(self, *_: Any, **__: Any) -> None:
        """Report the checkpoint that was written since the last batch."""
        self._report()

    def on_exception(self, *_: Any, **__: Any) -> None:
        """Forget a checkpoint that may have failed; who saves the work now comes after this."""
        self._saving = None

    def teardown(self, *_: Any, **__: Any) -> None:
        """Report the last checkpoint."""
        self._report()
        self._training.end()

    def _report(self) -> None:
        if self._saving is not None:
            what, at_s = self._saving
            self._saving = None
            self._training.saved(what, at_s)
