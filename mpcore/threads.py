"""The threads that compiled kernels run in: one pool for the process.

Kernels release the interpreter's lock, so that threads are enough. Floor 0.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache


def cores():
    """How many kernels can run at once."""
    return os.cpu_count() or 1


@lru_cache(maxsize=1)
def pool():
    """The executor, started when it is first needed. What runs in it must not wait for it."""
    return ThreadPoolExecutor(cores(), thread_name_prefix="mpcore")


if hasattr(os, "register_at_fork"):  # a forked process has the executor but none of its threads
    os.register_at_fork(after_in_child=pool.cache_clear)
