"""A callback for Lightning: ``Trainer(callbacks=[GpuwatchdCallback()])``.

Each rank has one, which speaks of its own process only, in the log of Lightning there.
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
    """Shows alerts on this process in the log, and reports checkpoints, not of weights alone."""

    def __init__(self) -> None:
        self._training = Training(logging.getLogger(Callback.__module__).warning)
        self._saving: tuple[str, float] | None = None

    def on_train_batch_end(self, *_: Any, **__: Any) -> None:
        """Show what is new."""
        self._training.step()

    on_validation_batch_end = on_test_batch_end = on_predict_batch_end = on_train_batch_end

    def on_save_checkpoint(self, trainer: Any, *_: Any, **__: Any) -> None:
        """Note that a checkpoint will be written: Lightning does not say when it has been."""
        run = None
        with contextlib.suppress(Exception):  # a logger may ask its server for its name
            run = getattr(trainer.logger, "log_dir", None) or trainer.logger.name
        self._saving = f"step {trainer.global_step}{f' of {run}' if run else ''}", time.time()

    def on_train_batch_start(self, *_: Any, **__: Any) -> None:
        """Report the checkpoint that was written since the last batch."""
        if self._saving is not None:
            self._training.saved(*self._saving)
            self._saving = None

    def teardown(self, *_: Any, **__: Any) -> None:
        """Report the last checkpoint."""
        self.on_train_batch_start()
        self._training.end()
