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
    try:
        from mpcore.cli import main
    except ImportError as error:
        return _without(error)
    return main()


def _without(error: ImportError) -> int:
    """What can be done where the command line itself lacks a package: say so."""
    from mpcore.workbook import doctor

    if sys.argv[1:] == ["doctor"]:
        print(doctor.examine())
        return 1
    what = f"{' '.join(str(error).split())}; do: {doctor.INSTALL}"
    print(f"mpcore: {what} (mpcore doctor looks at everything)", file=sys.stderr)
    return 2


def _end_at_once(*_: object) -> None:
    os.write(2, b"mpcore: interrupted; nothing was left behind\n")
    os._exit(130)


if __name__ == "__main__":
    sys.exit(main())
