"""`python -m mpcore.matmul.silicon`: the silicon check of the GPU at hand, from the shell.

Exit status: 0 the check ran, or there is nothing to run it on; 1 with --gate, a row differs or
could not be replayed, or a kernel did not end; 2 bad input.
"""

import argparse
import datetime
import os
import sys
from pathlib import Path

import numpy as np

from mpcore.errors import InputError, quoted
from mpcore.matmul.silicon import marks
from mpcore.matmul.silicon.check import (
    CASES,
    DIFFERENT,
    EQUAL,
    FAILED,
    NOT_REPLAYED,
    instructions_of,
    run,
)
from mpcore.matmul.silicon.driver import NoDevice, find_device
from mpcore.matmul.silicon.ptx import CAPABILITIES, kernel_of, why_not

SKIPPED = "No CUDA device: silicon check skipped"


def main(arguments=None, find=find_device):
    """Run the command; returns the exit status."""
    try:
        options = _options(arguments)
        if options.docs:
            return _write_document(marks.read_results())
        if options.ptx:
            return _write_kernels(options.ptx)
        try:
            device = find(options.device)
        except NoDevice as error:
            print(f"{SKIPPED} ({error})")
            return 0
        return _check(device, options)
    except InputError as error:
        return _refused(error)
    except OSError as error:
        return _refused(f"{error.filename}: {error.strerror}" if error.filename else error)
    except KeyboardInterrupt:
        print("silicon: interrupted; nothing was written", file=sys.stderr)
        return 130


def _refused(error):
    print(f"silicon: {error}", file=sys.stderr)
    return 2


def _options(arguments):
    parser = argparse.ArgumentParser(
        prog="python -m mpcore.matmul.silicon",
        description="Replay matrix instructions on the GPU at hand and compare with mma.",
    )
    add = parser.add_argument
    add("--write", action="store_true", help="keep what was found, and mark the document's rows")
    add("--gate", action="store_true", help="exit status 1 where a row is not equal")
    add("--only", default="", metavar="TEXT", help="instructions whose name contains this")
    add("--cases", type=int, default=CASES, help=f"of each class, at least (default {CASES:,})")
    add("--seed", type=int, default=0, help="of the generated cases (default 0)")
    add("--device", type=int, default=0, help="number of the CUDA device (default 0)")
    add("--timeout", type=float, default=20.0, help="seconds for a kernel (default 20)")
    add("--docs", action="store_true", help="only write the document's table anew")
    add("--ptx", type=Path, metavar="DIR", help="only write every kernel into a folder")
    options = parser.parse_args(arguments)
    for name, least in (("cases", 1), ("seed", 0), ("timeout", 0)):
        if not getattr(options, name) >= least:
            raise InputError(f"--{name} is {getattr(options, name)}; {least} or more is needed")
    return options


def _check(device, options):
    capability = ".".join(map(str, device.capability))
    known = instructions_of(device.capability)
    if known is None:
        print(
            f"Silicon check skipped: {device.name} has compute capability {capability}; "
            f"the table has {', '.join('.'.join(map(str, c)) for c in CAPABILITIES)}"
        )
        return 0
    chosen = [i for i in known if options.only.lower() in str(i).lower()]
    if not chosen:
        there = ", ".join(dict.fromkeys(f"{i.arch} {i.kind}" for i in known))
        raise InputError(f"--only {quoted(options.only)}: no instruction of {there} is called so")
    vectors = _vectors(needed=options.write)
    print(f"{device.name}, compute capability {capability}, {device.driver}")
    outcomes = run(
        device,
        chosen,
        cases=options.cases,
        seed=options.seed,
        vectors=vectors,
        timeout=options.timeout,
    )
    counts = {s: sum(o.status == s for o in outcomes) for s in (EQUAL, DIFFERENT, FAILED)}
    told = ", ".join(f"{count} {status}" for status, count in counts.items())
    without = sum(o.status == NOT_REPLAYED for o in outcomes)
    print(f"{len(chosen)} instructions: {told}, {without} {NOT_REPLAYED}")
    if options.write:
        _keep(device, outcomes, options, vectors)
    is_wrong = options.gate and counts[DIFFERENT] + counts[FAILED] > 0
    return int(device.is_stuck or is_wrong)


def _vectors(needed):
    if marks.VECTORS.exists():
        with np.load(marks.VECTORS) as arrays:
            return dict(arrays)
    if needed:
        raise InputError(f"{marks.VECTORS}: not here; --write and --docs need a checkout")
    return None


def _keep(device, outcomes, options, vectors):
    date = datetime.date.today().isoformat()
    new = [marks.result_of(o, device, date, options.seed) for o in outcomes]
    results = marks.merged(marks.read_results(), [r for r in new if r])
    document = marks.with_table(_document(), results, vectors)
    marks.replace(marks.RESULTS, marks.results_text(results))
    marks.replace(marks.DOCUMENT, document)
    print(f"written: {marks.RESULTS.name}, {marks.DOCUMENT.name}")


def _document():
    return marks.DOCUMENT.read_text(encoding="utf-8")


def _write_document(results):
    text = marks.with_table(_document(), results, _vectors(needed=True))
    marks.replace(marks.DOCUMENT, text)
    return 0


def _write_kernels(folder):
    folder.mkdir(parents=True, exist_ok=True)
    for capability in CAPABILITIES:
        for i in instructions_of(capability):
            if why_not(i) is None:
                kernel = kernel_of(i, capability)
                name = f"{kernel.target}.{i.kind}.{i.qualifier}.ptx"
                (folder / name).write_text(kernel.text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # at an ordinary exit the driver waits for a kernel that does not end
