"""A callback for the Trainer of Hugging Face: ``Trainer(..., callbacks=[GpuwatchdCallback()])``.

Each rank has one, which speaks of its own process only, in the log of transformers there.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

from gpuwatchd.integrations import missing
from gpuwatchd.integrations.training import Training

try:
    from transformers import TrainerCallback
    from transformers.utils import logging
except ModuleNotFoundError as error:
    raise missing("transformers", error) from None


class GpuwatchdCallback(TrainerCallback):
    """Shows alerts on this process in the log, and reports when a checkpoint has been saved."""

    def __init__(self) -> None:
        self._training = Training(logging.get_logger("transformers.trainer").warning)

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Show what is new."""
        self._training.step()

    on_prediction_step = on_step_end

    def on_save(self, args: Any, state: Any, *_: Any, **__: Any) -> None:
        """Report a checkpoint, which has been written by now."""
        run = args.run_name or PurePath(args.output_dir).name
        self._training.saved(f"step {state.global_step} of {run}")

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """Wait until the last checkpoint is reported."""
        self._training.end()
