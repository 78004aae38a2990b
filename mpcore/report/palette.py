"""The colours of every picture, light and dark, told apart by the colour-blind as well."""

from __future__ import annotations

from typing import Literal

# name -> (sentinel, light, dark). Okabe–Ito hues, darkened or lightened to ≥ 4.5 : 1 contrast.
PALETTE = {
    "fg": ("#010101", "#1b1f24", "#e6edf3"),
    "muted": ("#010102", "#57606a", "#9aa4af"),
    "line": ("#010103", "#d0d7de", "#3d444d"),
    "bg": ("#010104", "#ffffff", "#0d1117"),
    "failing": ("#010105", "#b84300", "#ff9a57"),
    "fix": ("#010106", "#0067a8", "#5cb8ff"),
    "comparator": ("#010107", "#57606a", "#aab4bf"),
    "heat0": ("#010110", "#f1f5fa", "#16202b"),
    "heat1": ("#010111", "#d9e6f3", "#1d3247"),
    "heat2": ("#010112", "#b3d0e8", "#264a69"),
    "heat3": ("#010113", "#7fb2d9", "#30668f"),
    "heat4": ("#010114", "#4a8fc4", "#4d8fbd"),
    "heat5": ("#010115", "#20659f", "#86bde3"),
    "heat6": ("#010116", "#0b3c6b", "#cfe8fb"),
}
COLOUR = {name: sentinel for name, (sentinel, _, _) in PALETTE.items()}
FONTS = "-apple-system,Segoe UI,Roboto,Liberation Sans,Arial,sans-serif"


def variables(scheme: Literal["light", "dark"]) -> str:
    """The palette as CSS variables: `--mp-fg:#1b1f24;…`."""
    column = {"light": 1, "dark": 2}[scheme]
    return ";".join(f"--mp-{name}:{colours[column]}" for name, colours in PALETTE.items())
