"""Which mechanism failed first: what-ifs, the sufficient set, and the smallest repair."""

from mpcore.diagnosis.diagnose import diagnose, investigate

__all__ = ["diagnose", "investigate"]
