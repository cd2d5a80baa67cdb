"""Start the probe in this interpreter, then the ``sitecustomize`` that it stands in front of."""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _chain() -> None:
    """Import the next ``sitecustomize``: without our directory, and without importlib.util.

    Importing importlib.util costs a third of the start of a bare interpreter.
    """
    places = [index for index, entry in enumerate(sys.path) if os.path.abspath(entry) == _HERE]
    entries = [sys.path[index] for index in places]
    own = sys.modules.pop("sitecustomize", None)
    for entry in entries:
        sys.path.remove(entry)
    try:
        import sitecustomize  # noqa: F401
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
        if own is not None:
            sys.modules["sitecustomize"] = own
    finally:
        for index, entry in zip(places, entries):
            sys.path.insert(index, entry)


try:
    import _gpuwatchd_probe

    _gpuwatchd_probe.start()
except Exception:
    pass
_chain()
