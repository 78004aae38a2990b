"""One execution, stage by stage: ingress → lowering → schedule → execution → assembly → release."""

from mpcore.flow.run import open_session, run, run_policy
from mpcore.flow.session import Replay, Session

__all__ = ["Replay", "Session", "open_session", "run", "run_policy"]
