"""``contrib/corpus/check.py`` as a module: it is a program of its own and in no package."""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

from tests.conftest import ROOT, present

FOLDER = ROOT / "contrib" / "corpus"


def _loaded() -> Any:
    spec = present(importlib.util.spec_from_file_location("corpus_check", FOLDER / "check.py"))
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # a NamedTuple looks itself up there
    present(spec.loader).exec_module(module)
    return module


check: Any = _loaded()
