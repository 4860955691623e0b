"""`python -m fasttrack`: the same program as the `fasttrack` console script."""

import sys

from fasttrack.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
