"""``python -m gpuwatchd`` runs the daemon."""

import sys

from gpuwatchd.daemon.main import main

if __name__ == "__main__":
    sys.exit(main())
