"""The `mpcore` command, and `python -m mpcore`: quiet from the first moment on.

Loading the command line takes a fifth of a second, in which an interrupt would print a traceback.
"""

import os
import signal
import sys


def main() -> int:
    """Run the command line; returns the exit status."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end_at_once)
    from mpcore.cli import main

    return main()


def _end_at_once(*_: object) -> None:
    os.write(2, b"mpcore: interrupted; nothing was left behind\n")
    os._exit(130)


if __name__ == "__main__":
    sys.exit(main())
