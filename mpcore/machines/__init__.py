"""What hardware offers, and how long a GEMM takes on it by a data-sheet roofline."""

from mpcore.machines.gemm_time import GemmTime, TimingContext, gemm_time
from mpcore.machines.machine import Machine, MachineError, get_machine, list_machines

__all__ = [
    "GemmTime",
    "Machine",
    "MachineError",
    "TimingContext",
    "gemm_time",
    "get_machine",
    "list_machines",
]
