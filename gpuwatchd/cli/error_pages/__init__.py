"""What every error means and what to do about it: the source of docs/reference/errors.md.

An error names its section as ``errors#ID`` (``GpuwatchdError.page``). Ids are stable: they are
printed, stand in JSON and in people's notes. Tests hold that every id that is named anywhere is
here, and that nothing is here that no error names.
"""

from __future__ import annotations

from gpuwatchd.cli.error_pages.asking import ASKING, ErrorPage
from gpuwatchd.cli.error_pages.working import SERVING, WORKING

__all__ = ["ERROR_PAGES", "ErrorPage"]

ERROR_PAGES: tuple[ErrorPage, ...] = (*ASKING, *WORKING, *SERVING)
