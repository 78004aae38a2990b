"""nbformat, imported in a fifth of the time: every other part of this room takes it from here.

nbformat imports jsonschema, and that, where the package is there, rfc3987_syntax: it compiles
grammars for two seconds, for a check of web addresses that no notebook's schema asks for.
"""

from __future__ import annotations

import sys

_SLOW = "rfc3987_syntax"

_kept_out = _SLOW not in sys.modules
if _kept_out:
    sys.modules[_SLOW] = None  # an import of it fails, which jsonschema expects
try:
    import nbformat
    from nbformat import NotebookNode
finally:
    if _kept_out:
        del sys.modules[_SLOW]

__all__ = ["NotebookNode", "nbformat"]
