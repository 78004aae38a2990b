"""Every picture of a report, under one name for the notebooks."""

from mpcore.report.figures_layers import figure_incidence, figure_layers
from mpcore.report.figures_outlier import figure_outlier
from mpcore.report.figures_quality import figure_interaction, figure_quality, figure_what_ifs
from mpcore.report.figures_trend import figure_trend
from mpcore.report.picture import Picture

__all__ = [
    "Picture",
    "figure_incidence",
    "figure_interaction",
    "figure_layers",
    "figure_outlier",
    "figure_quality",
    "figure_trend",
    "figure_what_ifs",
]
